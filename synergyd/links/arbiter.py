"""The link arbiter as a pure state machine: jobs ask before each all-reduce, and are granted the links by a discipline.

One event in, (state, grants) out; times are the caller's clock in seconds. It fails open: no job waits longer than `bound_s`, a
grant without a SendDone expires after `lost_s`, and a job that is unknown or crosses no link is granted at once. The caller
wakes it with a Tick at `wake_s(state)` at the latest.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from synergyd.links.disciplines import LOOK_AHEAD, NOBODY_WAITS, Discipline, Srsf, make_discipline
from synergyd.links.model import Topology


@dataclass(frozen=True)
class ArbiterTerms:
    """The terms of the arbiter.

    `bound_s`: longest wait for a grant. `lost_s`: seconds after which a grant without a SendDone expires. `look_ahead`: a
    discipline is chosen for each group of jobs that share links (lookahead.py), and stands in `disciplines` by job id; `discipline`
    holds until then.
    """

    discipline: Discipline = field(default_factory=lambda: Discipline(Srsf(1)))
    topology: Topology = field(default_factory=Topology)
    bound_s: float = 0.5
    lost_s: float = 30.0
    look_ahead: bool = False
    disciplines: Mapping[int, Discipline] = field(default_factory=dict)


def make_terms(rule: str, topology: Topology | None = None, bound_s: float = 0.5) -> ArbiterTerms:
    """Return the terms of LinkArbiterRule=`rule`. Raises UsageError."""
    ahead = rule == LOOK_AHEAD
    discipline = NOBODY_WAITS if ahead else make_discipline(rule)
    return ArbiterTerms(discipline, topology or Topology(), bound_s, look_ahead=ahead)


@dataclass(frozen=True)
class JobJoined:
    """A job runs on these nodes; `left_s` its remaining compute seconds a GPU, on `gpus` GPUs. Sent again when they change."""

    job_id: int
    nodes: tuple[str, ...]
    gpus: int
    left_s: float


@dataclass(frozen=True)
class SendAsked:
    """A job is ready to send `size_mb`, as `measured_mb` says.

    `share`: the part of its links' rate that its bytes take while they go alone; less than 1 where compute goes on meanwhile
    (`link_share`).
    """

    job_id: int
    size_mb: float
    share: float = 1.0


@dataclass(frozen=True)
class SendDone:
    """A job's all-reduce has ended."""

    job_id: int


@dataclass(frozen=True)
class JobLeft:
    """A job has ended or is no longer gated."""

    job_id: int


@dataclass(frozen=True)
class ArbiterTick:
    """Time has passed."""


Event = JobJoined | SendAsked | SendDone | JobLeft | ArbiterTick


class SendWait(NamedTuple):  # made by the dozen in a question, where a dataclass costs three times as much
    """A message that waits. `overtaken_by`: the jobs on its links that were granted meanwhile; none is granted twice."""

    size_mb: float
    since_s: float
    overtaken_by: frozenset[int] = frozenset()
    share: float = 1.0


class SendUnderWay(NamedTuple):
    """A message under way: `left_mb` of it at `since_s`, at `ms_per_mb` from then on; granted at `granted_s`."""

    left_mb: float
    since_s: float
    ms_per_mb: float
    granted_s: float
    share: float = 1.0

    def rest(self, now_s: float) -> float:
        return max(0.0, self.left_mb - (now_s - self.since_s) * 1000.0 / self.ms_per_mb)


@dataclass(frozen=True)
class ArbiterState:
    """Everything the arbiter knows. Mappings are by job id. `links`: those that each member crosses."""

    members: Mapping[int, JobJoined] = field(default_factory=dict)
    links: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    waiting: Mapping[int, SendWait] = field(default_factory=dict)
    flights: Mapping[int, SendUnderWay] = field(default_factory=dict)


@dataclass(frozen=True)
class SendGrant:
    """The job may send now. `why`: open (nothing to arbitrate), rule, or bound (it had waited long enough)."""

    job_id: int
    why: str


def step(
    state: ArbiterState, event: Event, now_s: float, terms: ArbiterTerms
) -> tuple[ArbiterState, tuple[SendGrant, ...]]:
    """Return the next state, and the jobs that may send now, in order."""
    members, links, waiting, flights = state.members, state.links, dict(state.waiting), dict(state.flights)
    grants: list[SendGrant] = []
    if isinstance(event, JobJoined):
        members = {**members, event.job_id: event}
        links = {**links, event.job_id: terms.topology.links_crossed(event.nodes)}
    elif isinstance(event, JobLeft):
        members = {j: member for j, member in members.items() if j != event.job_id}
        links = {j: names for j, names in links.items() if j != event.job_id}
        flights.pop(event.job_id, None)
        if waiting.pop(event.job_id, None):
            grants.append(SendGrant(event.job_id, "open"))
    elif isinstance(event, SendDone):
        flights.pop(event.job_id, None)
    elif isinstance(event, SendAsked):
        # A job that asks again has ended its last all-reduce.
        flights.pop(event.job_id, None)
        if not links.get(event.job_id):
            grants.append(SendGrant(event.job_id, "open"))
        else:
            waiting[event.job_id] = SendWait(event.size_mb, now_s, share=event.share)
    flights = {j: f for j, f in flights.items() if now_s - f.granted_s < terms.lost_s}
    freed_links = {x for j in state.flights.keys() - flights.keys() for x in state.links.get(j, ())}
    if freed_links:
        flights = _with_new_paces(flights, links, freed_links, now_s, terms.topology)
    now = ArbiterState(members, links, waiting, flights)
    for job_id, why in _admit(now, _may_go(now, event, freed_links, terms), now_s, terms):
        wait = waiting.pop(job_id)
        flights[job_id] = SendUnderWay(wait.size_mb, now_s, 1.0, now_s, wait.share)
        flights = _with_new_paces(flights, links, links[job_id], now_s, terms.topology)
        mine = frozenset(links[job_id])
        for other, behind in waiting.items():
            if not mine.isdisjoint(links[other]):
                waiting[other] = behind._replace(overtaken_by=behind.overtaken_by | {job_id})
        grants.append(SendGrant(job_id, why))
    return ArbiterState(members, links, waiting, flights), tuple(grants)


def _may_go(state: ArbiterState, event: Event, freed_links: set[str], terms: ArbiterTerms) -> list[int]:
    """Return the jobs that wait and may have become admissible.

    After a question or an end these are only the job that asks, the jobs that cross the links that came free, and every job
    that had overtaken one of them. For the others more is on their links than before, or as much.
    """
    everybody = list(state.waiting)
    if not isinstance(event, SendAsked | SendDone) or terms.disciplines.get(event.job_id, terms.discipline).reserve:
        return everybody
    near = {j for j in everybody if j == event.job_id or not freed_links.isdisjoint(state.links[j])}
    behind = {i for j in near for i in state.waiting[j].overtaken_by}
    return [j for j in everybody if j in near or j in behind]


def measured_mb(size_mb: float, exposed_s: float, links: Sequence[str], topology: Topology) -> float:
    """Return the MB that the rule compares.

    A message whose time was measured counts by it, as so many MB as the links' figures say go through in that time. Then it
    does not matter how far these figures, or what a job sends beside its gradients, are off.
    """
    if exposed_s <= 0 or not links:
        return size_mb
    return exposed_s * 1000.0 / max(topology.figures(link).per_mb for link in links)


def link_share(told_mb: float, size_mb: float, nodes: int) -> float:
    """Return the share of its links' rate that a message of `told_mb` bytes takes while it goes alone.

    It goes in the time of `size_mb` (`measured_mb`), over `nodes` nodes: a ring all-reduce sends 2(n-1)/n of its bytes through
    each. Where a link's figure is slower than the link, the share is 1.
    """
    if told_mb <= 0 or size_mb <= 0 or nodes < 2:
        return 1.0
    return min(1.0, told_mb * 2.0 * (nodes - 1) / nodes / size_mb)


def asks_in_vain(state: ArbiterState, job_id: int, terms: ArbiterTerms) -> bool:
    """Return whether a job need not ask for now.

    It shares no link, or nobody waits by the discipline chosen for those that share its links.
    """
    discipline = terms.disciplines.get(job_id)
    if discipline is not None:
        return discipline.rule.most > len(state.members)
    return not shares_links(state, job_id)


def shares_links(state: ArbiterState, job_id: int) -> bool:
    """Return whether another member crosses a link that this job crosses."""
    mine = set(state.links.get(job_id, ()))
    return any(j != job_id and not mine.isdisjoint(names) for j, names in state.links.items())


def wake_s(state: ArbiterState, terms: ArbiterTerms) -> float | None:
    """Return when a Tick is due, at the first wait's bound, or None while no job waits."""
    return min((w.since_s + terms.bound_s for w in state.waiting.values()), default=None)


def _admit(
    state: ArbiterState, candidates: Sequence[int], now_s: float, terms: ArbiterTerms
) -> Iterator[tuple[int, str]]:
    """Yield (job, why) of those `candidates` that may send, one after another, each counted before the next is decided."""
    if not candidates:
        return
    flights, links = dict(state.flights), state.links
    figures = {x: terms.topology.figures(x) for x in {x for i in candidates for x in links[i]}}
    left_mb: dict[int, float] = {}  # rest of the messages under way, as far as they were looked at
    reserves: dict[str, float] = {}

    def order(job_id: int) -> tuple[float, int]:
        member = state.members[job_id]
        by_time = terms.disciplines.get(job_id, terms.discipline).by_time
        return member.left_s * (1 if by_time else member.gpus), job_id

    def rest(job_id: int) -> float:
        if job_id not in left_mb:
            left_mb[job_id] = flights[job_id].rest(now_s)
        return left_mb[job_id]

    # a job that has overtaken another on its links comes after it: no job keeps a link by asking again and again
    turns = {i for w in state.waiting.values() for i in w.overtaken_by}.intersection(candidates)
    still_waiting = dict(state.waiting)
    senders_on: dict[str, list[int]] = {}
    for j in flights:
        for x in links.get(j, ()):
            senders_on.setdefault(x, []).append(j)
    for job_id in sorted(candidates, key=lambda i: (i in turns, *order(i))):
        wait, mine = state.waiting[job_id], links[job_id]
        discipline = terms.disciplines.get(job_id, terms.discipline)
        sharers, _, last = max((len(senders_on.get(x, ())), figures[x].per_mb, -n) for n, x in enumerate(mine))
        busiest = figures[mine[-last]]
        if now_s >= wait.since_s + terms.bound_s:
            why = "bound"
        elif job_id in turns and any(
            job_id in w.overtaken_by and not set(mine).isdisjoint(links[i]) for i, w in still_waiting.items()
        ):
            why = ""
        elif not reserves.keys().isdisjoint(mine):
            end = now_s + wait.size_mb * max(figures[x].per_mb for x in mine) / 1000.0
            why = "rule" if not sharers and all(end <= reserves.get(x, end) for x in mine) else ""
        else:
            rests = [rest(j) for j in {j for x in mine for j in senders_on.get(x, ())}]
            why = "rule" if discipline.rule.admits(wait.size_mb, sharers, rests, busiest) else ""
        if why:
            flights[job_id] = SendUnderWay(wait.size_mb, now_s, busiest.cost(sharers + 1), now_s)
            for x in mine:
                senders_on.setdefault(x, []).append(job_id)
            del still_waiting[job_id]
            yield job_id, why
        elif discipline.reserve and not reserves.keys() >= set(mine):
            ends = [now_s + rest(j) * flights[j].ms_per_mb / 1000.0 for x in mine for j in senders_on.get(x, ())]
            for x in mine:
                reserves.setdefault(x, max(ends, default=now_s))


def _with_new_paces(
    flights: Mapping[int, SendUnderWay],
    links: Mapping[int, tuple[str, ...]],
    changed_links: Collection[str],
    now_s: float,
    topology: Topology,
) -> dict[int, SendUnderWay]:
    """Return the flights, where those on `changed_links` have what is left now and the pace that their links allow from now on."""
    load: dict[str, float] = {}
    for job_id, flight in flights.items():
        for link in links.get(job_id, ()):
            load[link] = load.get(link, 0.0) + flight.share
    costs = {x: topology.figures(x).cost(count) for x, count in load.items()}
    with_paces, changed_links = dict(flights), frozenset(changed_links)
    for job_id, flight in flights.items():
        mine = links.get(job_id, ())
        if changed_links.isdisjoint(mine):
            continue
        cost = max(costs[x] for x in mine)  # the costliest link decides
        rest_mb, ms_per_mb = flight.rest(now_s), cost or flight.ms_per_mb
        with_paces[job_id] = SendUnderWay(rest_mb, now_s, ms_per_mb, flight.granted_s, flight.share)
    return with_paces
