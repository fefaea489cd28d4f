"""Which nodes are bad: marks that jobs and Slurm leave on them, and the penalty that follows and fades. Pure.

    slow     a job's ranks there took longer for the same work, or its steps did than on another node
    hung     a job's steps stopped there
    check    it fell short of other nodes when it was checked before a job's run
    gpu      the driver's messages or ECC counters of a GPU ended a job's run there
    network  a network adapter lost its link while a job's run lasted that failed there
    lost     Slurm took a job off it since it could not take jobs any more, or says that it has lost a GPU

A job's report is its owner's word. So marks of jobs make a penalty only where those of two users agree (it is the second
strongest user's), a job marks at most JOB_NODES nodes, and a user at most USER_SHARE of all nodes at a time. What Slurm says
counts by itself. A penalty of 1 is the worst; it halves each HALF_LIFE_S.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from synergy_core.field_marks import ADDED_AFTER_0_1
from synergy_core.node_check import MEASURES, NodeCheck
from synergy_core.reasons import SEPARATOR, Reason, Reasons, format_reasons
from synergy_core.records import Job, Node

from synergyd.control.state.node_figures import (
    FIGURES_S,
    NodeFigure,
    Shortfall,
    figures_of,
    find_shortfalls,
    usual_value,
)

SLOW, HUNG, BROKEN, UNLINKED, LOST, CHECKED = "slow", "hung", "gpu", "network", "lost", "check"
#: the mark that a fault (job_report.Fault) leaves on its node, by its kind
MARKS_OF_FAULTS: Mapping[str, str] = MappingProxyType({"gpu": BROKEN, "network": UNLINKED})
SLURM = -1  # in place of a user's id
# Slow phases of nodes last nearly ten hours at the longest (Greyhound, USENIX ATC 2025): a mark has faded to LEAST by then.
HALF_LIFE_S = 3 * 3600.0
LEAST = 0.1
DRAIN_AT = 0.6  # two users, or two losses, within two hours or so
KEPT_OFF_S = 86_400.0  # a node that an admin took back is not drained again for so long
JOB_NODES = 2
USER_SHARE = 0.1
DRAIN_SHARE = 0.1
REASON = "synergy: "  # start of the reason with which a node is drained
_LOSS = 0.5  # strength for one lost node: a reboot is no proof of a fault
_MARKS = 16  # most marks on a node
_NEWS = 0.9  # a mark takes another's place where that has faded to this part of it
_DRAINING_S = 120.0  # until Slurm shows a node drained, or its command failed
_TOGETHER_S = 600.0  # all jobs of a node are lost at once
_LOST_GPU = "gres/gpu count"  # slurmd registers fewer GPUs than slurm.conf has, in Slurm's words
_WORDS = {
    **{SLOW: "slow", HUNG: "steps stopped", BROKEN: "GPU failed", UNLINKED: "network link lost"},
    **{LOST: "lost", CHECKED: "short of its peers"},
}
_CHECK_EVERY_S = 60.0  # a node's checks by one user count no more often


@dataclass(frozen=True, kw_only=True)
class Mark:
    """A mark left on a node by a job of user `uid`, or by Slurm."""

    kind: str
    uid: int
    job_id: int
    at_s: float
    strength: float = 1.0
    #: of kind check: what falls short most
    shortfall: Shortfall | None = field(default=None, metadata=ADDED_AFTER_0_1)

    def remaining_strength(self, now_s: float) -> float:
        """Return how much of the mark's strength has not faded."""
        return float(self.strength * 0.5 ** (max(0.0, now_s - self.at_s) / HALF_LIFE_S))


@dataclass(frozen=True, kw_only=True)
class NodeRecord:
    """The memory of one node."""

    name: str
    marks: tuple[Mark, ...] = ()
    #: when Synergy drained it; 0: it did not, or somebody has taken it back since
    drained_s: float = 0.0
    #: when somebody took it back after that; 0: nobody did
    back_s: float = 0.0
    #: Slurm has shown it drained since
    drained: bool = False
    #: the latest of each measure, from checks before runs
    figures: tuple[NodeFigure, ...] = field(default=(), metadata=ADDED_AFTER_0_1)

    def penalty(self, now_s: float) -> float:
        """Return the node's penalty, from 0 to 1."""
        users: dict[int, float] = {}
        slurm_penalty = 0.0
        for mark in self.marks:
            if mark.uid == SLURM:
                slurm_penalty += mark.remaining_strength(now_s)
            else:
                users[mark.uid] = max(users.get(mark.uid, 0.0), mark.remaining_strength(now_s))
        agreed = sorted(users.values())[-2] if len(users) > 1 else 0.0
        worst = min(1.0, max(agreed, slurm_penalty))
        return worst if worst > LEAST else 0.0

    def is_kept_undrained(self, now_s: float) -> bool:
        """Return whether somebody took the node back lately, so that it is not drained."""
        return bool(self.back_s) and now_s - self.back_s < KEPT_OFF_S

    def reasons(self, now_s: float) -> Reasons:
        """Return why the node has a penalty, one reason per kind of mark."""
        strong_marks = [m for m in self.marks if m.remaining_strength(now_s) > LEAST]
        mark_reasons: list[Reason] = []
        for kind in _WORDS:
            jobs = sorted({m.job_id for m in strong_marks if m.kind == kind and m.job_id})
            shortfalls = [m.shortfall for m in strong_marks if m.kind == kind and m.shortfall is not None]
            if shortfalls and jobs:
                mark_reasons.append(shortfall_reason(min(shortfalls, key=lambda each: each.share), jobs))
            elif jobs:
                mark_reasons.append(Reason("bad-under", {"what": _WORDS[kind], "jobs": jobs}))
            elif any(m.kind == kind for m in strong_marks):
                mark_reasons.append(Reason("fewer-gpus"))
        return tuple(mark_reasons)

    def format_reasons(self, now_s: float) -> str:
        """Return the reasons in words."""
        return SEPARATOR.join(format_reasons((reason,)) for reason in self.reasons(now_s))

    def has_figures(self, now_s: float) -> bool:
        """Return whether a figure of the node still counts."""
        return any(now_s - figure.at_s < FIGURES_S for figure in self.figures)


def shortfall_reason(shortfall: Shortfall, jobs: list[int]) -> Reason:
    """Return what a node fell short of in checks before runs of `jobs`."""
    fields = {"measure": shortfall.measure, "what": MEASURES.get(shortfall.measure, shortfall.measure), "jobs": jobs}
    if shortfall.usual is None:
        return Reason("check-hung", fields)
    return Reason(
        "check-short", {**fields, "value": shortfall.value, "usual": shortfall.usual, "share": shortfall.share}
    )


@dataclass(frozen=True)
class RememberNodes:
    """An order to keep these records."""

    records: tuple[NodeRecord, ...]


@dataclass(frozen=True)
class DrainNode:
    """An order to let no new jobs start on the node: `reason` begins with REASON."""

    name: str
    reason: str


@dataclass
class NodeHealth:
    """The health of the nodes, by name. A method that changes a record returns it, to be stored."""

    records: dict[str, NodeRecord] = field(default_factory=dict)
    nodes: tuple[Node, ...] = ()  # as they were seen last, with GPUs
    _clean: frozenset[str] = frozenset()  # those that had all their GPUs then

    def load(self, records: Iterable[NodeRecord], now_s: float) -> None:
        """Load the records of an earlier daemon.

        Times may lie ahead if the clock was set back while no daemon ran: they then count from now.
        """
        for record in records:
            marks = tuple(replace(m, at_s=min(m.at_s, now_s)) for m in record.marks)
            times = {name: min(getattr(record, name), now_s) for name in ("drained_s", "back_s")}
            figures = tuple(replace(f, at_s=min(f.at_s, now_s)) for f in record.figures)
            self.records.setdefault(record.name, replace(record, marks=marks, figures=figures, **times))

    def set_clock(self, by_s: float) -> None:
        """Shift all times by `by_s` seconds, by which the time of day was set."""
        for name, record in self.records.items():
            marks = tuple(replace(m, at_s=m.at_s + by_s) for m in record.marks)
            times = {k: t + by_s if (t := getattr(record, k)) else t for k in ("drained_s", "back_s")}
            figures = tuple(replace(f, at_s=f.at_s + by_s) for f in record.figures)
            self.records[name] = replace(record, marks=marks, figures=figures, **times)

    def penalties(self, now_s: float) -> dict[str, float]:
        """Return the penalties of the bad nodes, by name."""
        return {name: p for name, record in self.records.items() if (p := record.penalty(now_s))}

    def mark(
        self,
        kind: str,
        name: str,
        uid: int,
        job_id: int,
        now_s: float,
        strength: float = 1.0,
        shortfall: Shortfall | None = None,
    ) -> list[NodeRecord]:
        """Mark a node. A mark that says nothing new changes nothing."""
        mark = Mark(kind=kind, uid=uid, job_id=job_id, at_s=now_s, strength=strength, shortfall=shortfall)
        record = self.records.get(name, NodeRecord(name=name))
        before = next((m for m in record.marks if uid != SLURM and m.uid == uid), None)  # a user has one on a node
        if before is not None and before.remaining_strength(now_s) > _NEWS * strength:
            return []
        if (
            uid != SLURM
            and name not in self._nodes_marked_by(job_id)
            and len(self._nodes_marked_by(job_id)) >= JOB_NODES
        ):
            return []
        changed = [] if uid == SLURM else self._give_up_oldest(uid, name, now_s)
        others = tuple(m for m in record.marks if m is not before and m.remaining_strength(now_s) > LEAST)
        return [*changed, self._keep(replace(record, marks=(*others, mark)[-_MARKS:]))]

    def clear_marks(self, kind: str, name: str) -> list[NodeRecord]:
        """Clear the marks of this kind: a job has found the node well, so no two jobs in a row found it bad."""
        record = self.records.get(name)
        if record is None or not any(m.kind == kind for m in record.marks):
            return []
        return [self._keep(replace(record, marks=tuple(m for m in record.marks if m.kind != kind)))]

    def take_checks(
        self, checks: Iterable[NodeCheck], job: Job, now_s: float
    ) -> tuple[list[NodeRecord], dict[str, Shortfall]]:
        """Take in checks of the job's nodes. Return the changed records, and what each newly marked node is shortest of.

        News of one node may show what is usual, so all nodes that this job has checked are compared. A figure that is as good as usual
        ends this user's own mark for that measure, and nobody else's.
        """
        by_name = {node.name: node for node in self.nodes if node.name in job.node_names}
        news = {c.node: c for c in checks if c.node in by_name and self._is_news(c, job, now_s)}
        changed: list[NodeRecord] = []
        for name, check in news.items():
            whole = job.shape.gpus_per_node >= by_name[name].gpus
            figures = figures_of(check, by_name[name].gpu_type, job.uid, job.job_id, now_s, has_whole_node=whole)
            measured = {figure.measure for figure in figures}
            record = self.records.get(name, NodeRecord(name=name))
            others = tuple(f for f in record.figures if f.measure not in measured)
            changed.append(self._keep(replace(record, figures=(*others, *figures))))
        own = {name: self._figures_by(job.job_id, name) for name in by_name} if news else {}
        usual: dict[tuple[str, str], float | None] = {}
        for measure, kind in {(f.measure, f.kind) for figures in own.values() for f in figures}:
            usual[measure, kind] = usual_value(self._figures_of_kind(measure, kind, now_s), job.uid)
        shortest: dict[str, Shortfall] = {}
        for name, figures in own.items():
            if short := find_shortfalls(figures, usual, news[name].hung_at if name in news else ""):
                shortest[name] = short[0]
            sound = {f.measure for f in figures if usual[f.measure, f.kind] is not None} - {s.measure for s in short}
            changed += self._clear_own_check(name, job.uid, sound)
        # the worst one last: where a user may mark few nodes, the latest mark stays
        marked: dict[str, Shortfall] = {}
        for name in sorted(shortest, key=lambda name: (-shortest[name].share, name))[-JOB_NODES:]:
            if records := self.mark(CHECKED, name, job.uid, job.job_id, now_s, shortfall=shortest[name]):
                changed, marked[name] = [*changed, *records], shortest[name]
        return changed, marked

    def marked_in_check(self, job_id: int, now_s: float) -> frozenset[str]:
        """Return the nodes that fell short in a check before a run of this job, as far as its marks have not faded."""
        return frozenset(
            record.name
            for record in self.records.values()
            for m in record.marks
            if m.kind == CHECKED and m.job_id == job_id and m.remaining_strength(now_s) > LEAST
        )

    def take_back(self, job_id: int) -> list[NodeRecord]:
        """Take back the job's marks: the fault was the job's, as it fares the same elsewhere."""
        return [
            self._keep(replace(record, marks=tuple(m for m in record.marks if m.uid == SLURM or m.job_id != job_id)))
            for record in list(self.records.values())
            if any(m.uid != SLURM and m.job_id == job_id for m in record.marks)
        ]

    def look(self, nodes: Iterable[Node], now_s: float) -> list[NodeRecord]:
        """Look at the nodes as Slurm shows them now, for GPUs that were lost and nodes that somebody took back."""
        self.nodes = tuple(nodes)
        changed = []
        short = frozenset(n.name for n in self.nodes if _LOST_GPU in n.reason.lower())
        for name in sorted(short & self._clean):
            changed += self.mark(LOST, name, SLURM, 0, now_s, 2 * _LOSS)
        self._clean = frozenset(n.name for n in self.nodes) - short
        for node in self.nodes:
            record = self.records.get(node.name)
            if record is None or not record.drained_s:
                continue
            if not node.up and not record.drained and _is_drained(node):
                changed.append(self._keep(replace(record, drained=True)))
            elif node.up and record.drained:
                # somebody has looked at it
                changed.append(self._keep(NodeRecord(name=node.name, back_s=now_s)))
            elif node.up and now_s - record.drained_s > _DRAINING_S:
                changed.append(self._keep(replace(record, drained_s=0.0)))
        return changed

    def lose(self, names: Iterable[str], job_id: int, now_s: float) -> list[NodeRecord]:
        """Mark nodes as lost: Slurm took the job off them, and they can't take jobs any more."""
        changed = []
        for name in names:
            record = self.records.get(name)
            marks = record.marks if record is not None else ()
            if not any(m.kind == LOST and now_s - m.at_s < _TOGETHER_S for m in marks):
                changed += self.mark(LOST, name, SLURM, job_id, now_s, _LOSS)
        return changed

    def forget_weak_records(self, now_s: float) -> None:
        """Forget records that say nothing any more; the store drops its own."""
        self.records = {
            name: r
            for name, r in self.records.items()
            if r.drained_s
            or r.is_kept_undrained(now_s)
            or r.has_figures(now_s)
            or any(m.remaining_strength(now_s) > LEAST for m in r.marks)
        }

    def drains(self, now_s: float) -> list[RememberNodes | DrainNode]:
        """Return the worst nodes, as many as may be drained at once: DRAIN_SHARE of all, and at least one."""
        by_name = {n.name: n for n in self.nodes}
        drained_by_synergy = {name for name, r in self.records.items() if r.drained_s and not r.drained}
        drained = drained_by_synergy | {name for name, n in by_name.items() if _is_drained(n)}
        room = max(1, int(DRAIN_SHARE * len(by_name))) - len(drained)
        up = {name for name, n in by_name.items() if n.up}
        worst = sorted((-p, name) for name, p in self.penalties(now_s).items() if p >= DRAIN_AT and name in up)
        outputs: list[RememberNodes | DrainNode] = []
        for _, name in worst:
            record = self.records[name]
            if room <= 0 or record.is_kept_undrained(now_s) or record.drained_s:
                continue
            room -= 1
            outputs.append(RememberNodes((self._keep(replace(record, drained_s=now_s)),)))
            outputs.append(DrainNode(name, REASON + record.format_reasons(now_s)))
        return outputs

    def _is_news(self, check: NodeCheck, job: Job, now_s: float) -> bool:
        """Return whether the check is no repetition, nor the same user's again so soon."""
        own = [f for f in self.records.get(check.node, NodeRecord(name="")).figures if f.uid == job.uid]
        if any((f.job_id, f.taken_s) == (job.job_id, check.taken_s) for f in own):
            return False
        return not any(0.0 <= now_s - f.at_s < _CHECK_EVERY_S for f in own)

    def _figures_of_kind(self, measure: str, kind: str, now_s: float) -> Iterator[NodeFigure]:
        for record in self.records.values():
            for f in record.figures:
                if f.measure == measure and f.kind == kind and now_s - f.at_s < FIGURES_S:
                    yield f

    def _figures_by(self, job_id: int, name: str) -> tuple[NodeFigure, ...]:
        record = self.records.get(name)
        return tuple(f for f in record.figures if f.job_id == job_id) if record is not None else ()

    def _clear_own_check(self, name: str, uid: int, sound: Collection[str]) -> list[NodeRecord]:
        """Clear the user's mark of a check that found one of the `sound` measures short."""
        if not sound:
            return []
        record = self.records[name]
        marks = tuple(
            m for m in record.marks if m.uid != uid or m.shortfall is None or m.shortfall.measure not in sound
        )
        return [] if marks == record.marks else [self._keep(replace(record, marks=marks))]

    def _nodes_marked_by(self, job_id: int) -> set[str]:
        return {r.name for r in self.records.values() for m in r.marks if m.uid != SLURM and m.job_id == job_id}

    def _give_up_oldest(self, uid: int, name: str, now_s: float) -> list[NodeRecord]:
        """Give up the oldest marks of a user who has marked as many nodes as one user may."""
        most = max(1, int(USER_SHARE * len({n.name for n in self.nodes})))
        own = [
            (m.at_s, r.name)
            for r in self.records.values()
            for m in r.marks
            if m.uid == uid and m.remaining_strength(now_s) > LEAST
        ]
        own = sorted(entry for entry in own if entry[1] != name)
        changed = []
        for _, oldest in own[: max(0, len(own) + 1 - most)]:
            record = self.records[oldest]
            changed.append(self._keep(replace(record, marks=tuple(m for m in record.marks if m.uid != uid))))
        return changed

    def _keep(self, record: NodeRecord) -> NodeRecord:
        self.records[record.name] = record
        return record


def _is_drained(node: Node) -> bool:
    """Return whether Synergy has drained the node: an admin's own reason is another."""
    return not node.up and node.reason.startswith(REASON.strip())
