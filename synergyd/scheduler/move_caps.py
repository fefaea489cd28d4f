"""How many running jobs may change at once: the decisions that gain most go first, the others wait and say so. Pure.

A start or a growth may need GPUs that a running job has to leave first, or what a usage limit leaves once it has shrunk. Such
changes are begun together or not at all: a job is not shrunk for one that waits all the same. Where they are too many to be ever
begun together, jobs leave as the bounds allow.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from synergy_core.formatting import format_shape
from synergy_core.node_needs import NO_ROOM, Room
from synergy_core.reasons import Reason, Reasons
from synergy_core.records import Action, Cell, Decision

from synergyd.scheduler.problem.records import JobRequest, NodeCapacity, Problem, UsageLimit
from synergyd.scheduler.problem.utility import relative_goodput, stay_value, value_terms

# (its own name, GPU type); a usage limit, of which jobs hold a part like that of a node's GPUs: ("", its number)
_Node = tuple[str, str]
_EXACT = 1e-6  # sums of parts of limits are not exact


@dataclass(frozen=True, kw_only=True)
class MoveCaps:
    """Bounds on changes of running jobs, and what is under way. Rates are GiB/s of checkpoints."""

    #: jobs at once; 0: no bound
    most: int = 0
    #: rate of all checkpoints together; 0: no bound
    write_gib_s: float = 0.0
    under_way: int = 0
    writing_gib_s: float = 0.0
    #: rate of each job, by job id; a job that is not here writes alone
    rates_gib_s: Mapping[int, float] = field(default_factory=dict)
    #: jobs that do not wait
    urgent_jobs: frozenset[int] = frozenset()

    def rate(self, job_id: int) -> float:
        return self.rates_gib_s.get(job_id, self.write_gib_s)


NO_CAPS = MoveCaps()


def within_caps(decisions: Sequence[Decision], problem: Problem, caps: MoveCaps) -> tuple[Decision, ...]:
    """Put off the changes that the bounds do not allow now: the job keeps what it has, and its reason says what it waits for."""
    if not caps.most and not caps.write_gib_s:
        return tuple(decisions)
    pacing = _Pacing(decisions, problem, caps)
    pacing.run()
    return tuple(
        pacing.waiting_decision(d) if d.job_id in pacing.changes and d.job_id not in pacing.begun else d
        for d in decisions
    )


class _Pacing:
    """One epoch's changes: `begun` are those that may begin."""

    def __init__(self, decisions: Iterable[Decision], problem: Problem, caps: MoveCaps) -> None:
        self._jobs = {job.job_id: job for job in problem.jobs}
        self._problem, self._caps = problem, caps
        self._nodes: dict[_Node, NodeCapacity] = {(n.host or n.name, n.gpu_type): n for n in problem.nodes}
        self._key = {n.name: (n.host or n.name, n.gpu_type) for n in problem.nodes}
        self.changes = {d.job_id: d for d in decisions if d.job_id in self._jobs and d.action is not Action.KEEP}
        self.changes = {i: d for i, d in self.changes.items() if d.cell is not None or self._runs(i)}
        self._gains = {
            i: sum(worth for _, worth in d.worth) - stay_value(self._jobs[i], problem.terms)
            for i, d in self.changes.items()
        }
        self._limits: dict[_Node, UsageLimit] = {("", str(k)): limit for k, limit in enumerate(problem.limits)}
        self._differences = {i: self._difference(i) for i in self.changes}
        self._holders: dict[_Node, dict[int, None]] = {}  # jobs whose change leaves some of it, and has not begun
        for i in sorted(self.changes, key=lambda i: (-self._gains[i], i)):
            for node, (count, part) in self._differences[i].items():
                if min(count, part.cpus, part.memory_mib) < 0:
                    self._holders.setdefault(node, {})[i] = None
        self._gpus: dict[_Node, float] = {key: n.free for key, n in self._nodes.items()}
        self._gpus |= {key: limit.most for key, limit in self._limits.items()}
        self._room = {key: n.room for key, n in self._nodes.items() if n.room is not None}
        for job in problem.jobs:
            if job.current is not None:
                cell = job.cells[job.current]
                for node, (count, part) in self._signed_use(job, cell, self._held_nodes(job.job_id), -1).items():
                    self._add(node, count, part)
        self._count, self._writing = caps.under_way, caps.writing_gib_s
        self.begun: set[int] = set()
        self._awaited: dict[int, set[int]] = {}  # the jobs that it would begin with, by job id
        self._waiting: set[int] = set()  # all of these

    def run(self) -> None:
        order = sorted(self.changes, key=lambda i: (i not in self._caps.urgent_jobs, -self._gains[i], i))
        forced: list[int] = []
        for i in order:
            if i in self.begun:
                continue
            if self._gains[i] < 0 and i not in self._caps.urgent_jobs:
                forced.append(i)  # usually for other jobs, and it begins with them
                continue
            self._begin(i)
        for i in forced:
            if i not in self.begun and i not in self._waiting:
                self._begin(i)

    def waiting_decision(self, decision: Decision) -> Decision:
        """Return the decision of a job that has to wait."""
        job, cell = self._jobs[decision.job_id], decision.cell
        to = format_shape(cell.shape, decision.node_names) if cell is not None else "no GPUs, for others"
        others = sorted(i for i in self._awaited.get(decision.job_id, ()) if i != decision.job_id and self._runs(i))
        bound = self._binding_cause()
        if job.current is None:
            why = (Reason("capped-start", {"size": to, "after": others, "because": bound}),)
            return replace(decision, action=Action.WAIT, cell=None, node_names=(), reasons=why, relative_goodput=None,
                           worth=value_terms(job, None, False, self._problem.terms), sharing=None)  # fmt: skip
        present = job.cells[job.current]
        reasons: Reasons = (Reason("capped-change", {"size": to, "because": bound}),)
        reasons += (Reason("capped-together", {"jobs": others}),) if others else ()
        return replace(
            decision,
            action=Action.KEEP,
            cell=present,
            node_names=tuple(name.partition(":")[0] for name in job.nodes),
            reasons=reasons,
            relative_goodput=relative_goodput(present, job.cells, job.requested_cell),
            worth=value_terms(job, job.current, True, self._problem.terms),
            sharing=None,
        )

    def _binding_cause(self) -> str:
        caps, words = self._caps, []
        if caps.most:
            words.append(f"at most {caps.most} running job{'s' * (caps.most != 1)} may change at once (MaxResizes)")
        if caps.write_gib_s:
            words.append(f"checkpoints may write {caps.write_gib_s:g} GiB/s together (MaxCheckpointGiBps)")
        return f"{' and '.join(words)}, and others are under way or gain more"

    def _begin(self, job_id: int) -> None:
        """Begin the change, with those that it needs, where the bounds allow all of them."""
        together = self._together(job_id)
        runs = [i for i in together if self._counts(i)]
        if job_id in self._caps.urgent_jobs or self._fits(runs):
            self._accept(together)
            return
        self._awaited[job_id] = set(together)
        self._waiting.update(together)
        if self._count or self._writing or self._fits_alone(runs):
            return
        # never all at once: some leave now, and the others as soon as these have
        for i in (i for i in runs if not self._needs_others(i)):
            if self._fits([i]):
                self._accept([i])

    def _together(self, job_id: int) -> list[int]:
        """Return the change and those that have to begin with it, since it takes what they leave, directly or by way of others."""
        group = {job_id: None}  # in the order of their finding
        while True:
            short = self._find_overcommitments(group)
            holders = (i for node in short for i in self._holders.get(node, ()))
            leaver = next((i for i in holders if i not in group), None)
            if leaver is None:
                # the nodes still short are held by others or asleep: the change is begun when they are there
                return list(group)
            group[leaver] = None

    def _find_overcommitments(self, jobs: Iterable[int]) -> list[_Node]:
        """Return the nodes and limits that these changes would overcommit."""
        gpus: dict[_Node, float] = {}
        room: dict[_Node, Room] = {}
        for i in jobs:
            for node, (count, part) in self._differences[i].items():
                gpus[node] = gpus.get(node, 0) + count
                room[node] = room.get(node, NO_ROOM).plus(part)
        # a negative rest means that jobs hold more than is handed out: they may leave, and change what they have
        return [
            node
            for node, count in sorted(gpus.items())
            if max(self._gpus[node], 0) + _EXACT < count
            or (node in self._room and not self._room[node].maximum(NO_ROOM).has_room_for(room[node]))
        ]

    def _difference(self, job_id: int) -> dict[_Node, tuple[float, Room]]:
        """Return what the change takes of each node and limit, negative where it leaves more."""
        job, cell = self._jobs[job_id], self.changes[job_id].cell
        difference = {} if cell is None else self._signed_use(job, cell, self._taken_nodes(job_id), 1)
        if job.current is None:
            return difference
        for node, (gpus, part) in self._signed_use(job, job.cells[job.current], self._held_nodes(job_id), -1).items():
            count, room = difference.get(node, (0.0, NO_ROOM))
            difference[node] = count + gpus, room.plus(part)
        return difference

    def _signed_use(
        self, job: JobRequest, cell: Cell, nodes: Iterable[_Node], sign: int
    ) -> dict[_Node, tuple[float, Room]]:
        """Return what the job has with a Cell on these nodes, of each node and of each limit, times `sign`."""
        shape = cell.shape
        each = shape.gpus_per_node
        use: dict[_Node, tuple[float, Room]] = {
            node: (sign * each, NO_ROOM.plus(self._part(job, each, node), sign)) for node in nodes
        }
        for key, limit in self._limits.items():
            if (rate := limit.rate(job)) is not None:
                use[key] = sign * rate.count_use(shape.gpu_type, shape.nodes, each), NO_ROOM
        return use

    def _accept(self, jobs: Iterable[int]) -> None:
        for i in jobs:
            for node, (count, part) in self._differences[i].items():
                self._add(node, -count, NO_ROOM.plus(part, -1))
                self._holders.get(node, {}).pop(i, None)
            self.begun.add(i)
            if self._counts(i):
                self._count += 1
                self._writing += self._caps.rate(i)

    def _add(self, node: _Node, count: float, part: Room) -> None:
        """Add `count` and `part` to what is left of the node."""
        self._gpus[node] += count
        if node in self._room:
            self._room[node] = self._room[node].plus(part)

    def _fits(self, runs: Sequence[int]) -> bool:
        if not runs:
            return True
        caps, rate = self._caps, sum(self._caps.rate(i) for i in runs)
        few = not caps.most or self._count + len(runs) <= caps.most
        # one that is above the bound by itself goes alone
        slow = (
            not caps.write_gib_s or self._writing + rate <= caps.write_gib_s or (not self._writing and len(runs) == 1)
        )
        return few and slow

    def _fits_alone(self, runs: Sequence[int]) -> bool:
        """Return whether the bounds would allow these changes with nothing else under way."""
        caps, rate = self._caps, sum(self._caps.rate(i) for i in runs)
        return (not caps.most or len(runs) <= caps.most) and (
            not caps.write_gib_s or rate <= caps.write_gib_s or len(runs) == 1
        )

    def _needs_others(self, job_id: int) -> bool:
        return bool(self._find_overcommitments([job_id]))

    def _part(self, job: JobRequest, gpus: int, key: _Node) -> Room:
        node = self._nodes[key]
        return node.total if job.needs.whole_nodes else job.needs.room_for(gpus, node.threads, node.total.memory_mib)

    def _runs(self, job_id: int) -> bool:
        return self._jobs[job_id].current is not None

    def _counts(self, job_id: int) -> bool:
        """Return whether the change leaves what the job has at once.

        A job that waits for nodes to power up goes on meanwhile, and counts when they are up.
        """
        new = set(self._taken_nodes(job_id)).difference(self._held_nodes(job_id))
        return self._runs(job_id) and all(self._nodes[node].free > 0 for node in new)

    def _held_nodes(self, job_id: int) -> list[_Node]:
        job = self._jobs[job_id]
        return [self._key[name] for name in job.nodes if name in self._key] if job.current is not None else []

    def _taken_nodes(self, job_id: int) -> list[_Node]:
        decision = self.changes[job_id]
        keys = [(name, decision.cell.shape.gpu_type) for name in decision.node_names] if decision.cell else []
        return [key for key in keys if key in self._nodes]
