"""One draw of a queue's future by Slurm's own rules: by priority, with backfill around planned starts. Pure.

Each job ends when its drawn length is over; a planned start goes by time limits, since Slurm knows no more. As in Slurm's backfill
(sched/backfill, slurm.conf(5) bf_*), the first jobs that can't start yet plan their earliest start on whole nodes, and others start there
only if their limit ends before. `PLANS` jobs plan; Slurm itself goes further, but in the order of the queue the first ones decide.

Jobs still to be submitted come as those of earlier days did (arrivals.py). Left out: changes of priority, preemption, licences, and
whether nodes that are down come back.
"""

from __future__ import annotations

import heapq
import math
from bisect import insort
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from synergy_core.constraint import has_features

from synergyd.start_times.arrivals import HOUR_S, ArrivalDraw, Arrivals
from synergyd.start_times.records import Amounts, Cap, PendingJob, Queue, QueueNode, RunningJob
from synergyd.start_times.run_lengths import LengthDraw

#: first jobs that plan their start
PLANS = 3
#: how far a draw looks ahead, and jobs still to come that it looks at: what has not started by then is left out
_HORIZON_S, _COMING = 14 * 86400.0, 3000
_END, _READY, _OPENED, _HOUR, _ARRIVAL = range(5)


@dataclass(frozen=True, eq=False)
class _Form:
    """What a job asks of nodes, one object for all jobs alike. Where one does not fit, no other of its form does."""

    need: Amounts
    nodes: int
    whole: bool
    partitions: frozenset[str]
    gpu_type: str
    features: str
    node_names: frozenset[str]
    excluded: frozenset[str]
    reservation: str


@dataclass
class _Place:
    """The nodes that a form may use, by index, those of them that have room now, and the number of its jobs that wait.

    `free_s`: when the other nodes have room by the limits of what runs there, as far as that was asked.
    """

    form: _Form
    able: frozenset[int]
    room: set[int]
    waiting: int = 0
    free_s: dict[int, float] = field(default_factory=dict)


@dataclass(frozen=True)
class _Start:
    """A start that is planned: nobody else uses these nodes for longer than until then."""

    at_s: float
    nodes: frozenset[int]


@dataclass
class _Held:
    """What a running job holds of each node, by the node's index."""

    job_id: int
    shares: tuple[tuple[int, Amounts], ...]
    limit_end_s: float
    cap: Cap | None = None
    amount: float = 0.0


Key = tuple[_Form, float, Cap | None]


@dataclass
class _State:
    """One draw as it goes on. Jobs are indices into `jobs`; those that wait are sorted by rank."""

    now_s: float
    free: list[Amounts]
    jobs: list[PendingJob]
    ranks: list[float]
    lengths: LengthDraw
    coming: ArrivalDraw | None
    to_start: int  # jobs of the queue that have not started
    places: dict[_Form, _Place] = field(default_factory=dict)  # of forms of which jobs wait
    held: dict[int, _Held] = field(default_factory=dict)
    on_node: dict[int, dict[int, tuple[float, Amounts]]] = field(default_factory=lambda: defaultdict(dict))
    events: list[tuple[float, int, int]] = field(default_factory=list)
    waiting: dict[Key, list[tuple[float, int]]] = field(default_factory=dict)
    left_of_cap: dict[Cap, float] = field(default_factory=dict)
    awaited: dict[int, set[int]] = field(default_factory=dict)  # jobs that must end first
    awaiting: dict[int, list[int]] = field(
        default_factory=lambda: defaultdict(list)
    )  # the same by the job that must end
    starts: dict[int, float] = field(default_factory=dict)
    ends: dict[int, float] = field(default_factory=dict)


class Simulation:
    """A queue, ready for draws of its future. `arrivals`: jobs that may come; `turnaround_s`: from an end to the next start there."""

    def __init__(self, queue: Queue, arrivals: Arrivals | None = None, turnaround_s: float = 0.0) -> None:
        self._queue, self._arrivals, self._turnaround_s = queue, arrivals, turnaround_s
        self._nodes = queue.nodes
        self._index = {node.name: i for i, node in enumerate(queue.nodes)}
        self._tasks = [job for job in queue.pending for _ in range(job.tasks)]
        self._able: dict[_Form, frozenset[int]] = {}
        self._forms: dict[int, _Form] = {}  # by the identity of the job's record
        self._alike: dict[tuple[object, ...], _Form] = {}
        self._closes = any(node.closed for node in queue.nodes)

    def run(self, lengths: LengthDraw, seed: int = 0) -> tuple[dict[int, float], dict[int, float]]:
        """Return (starts, ends) by job id, as far as they come. Of an array's rest they are those of its first task."""
        coming = ArrivalDraw(self._arrivals, seed) if self._arrivals is not None else None
        now_s = self._queue.now_s
        count = len(self._tasks)
        state = _State(
            now_s, [n.free for n in self._nodes], list(self._tasks), list(range(count)), lengths, coming, count
        )
        self._begin(state)
        self._schedule(state)
        while state.events and state.to_start > 0 and state.events[0][0] < now_s + _HORIZON_S:
            state.now_s = state.events[0][0]
            while state.events and state.events[0][0] <= state.now_s:
                self._handle(state, *heapq.heappop(state.events)[1:])
            self._schedule(state)
        return state.starts, state.ends

    # -- one draw ------------------------------------------------------------------------------------------------------

    def _begin(self, state: _State) -> None:
        now_s = self._queue.now_s
        for number, running in enumerate(self._queue.running):
            self._take_up(state, -1 - number, running)
        for cap in {job.cap for job in state.jobs if job.cap is not None}:
            state.left_of_cap[cap] = 0.0  # those whose limit is reached, as Slurm says, have no more than they hold now
            for number, running in enumerate(self._queue.running):
                if cap in running.caps:
                    occupancy = state.held[-1 - number]
                    occupancy.cap, occupancy.amount = cap, _amount(cap[2], running.need, len(running.nodes))
        queued = {job.job_id for job in state.jobs} | {job.job_id for job in self._queue.running}
        for at, job in enumerate(state.jobs):
            for other in job.after:
                if other in queued:
                    state.awaited.setdefault(at, set()).add(other)
                    state.awaiting[other].append(at)
            if _ready_s(job) > now_s:
                heapq.heappush(state.events, (_ready_s(job), _READY, at))
            elif at not in state.awaited:
                self._queue_up(state, at)
        for end_s in {end_s for node in self._nodes for _, end_s, _ in node.closed if end_s > now_s}:
            heapq.heappush(state.events, (end_s, _OPENED, 0))
        if state.coming is not None:
            self._add_hour(state)

    def _take_up(self, state: _State, key: int, job: RunningJob) -> None:
        """Let a job that runs hold its nodes until its drawn end."""
        now_s = self._queue.now_s
        limit_end_s = math.inf if job.limit_end_s is None else job.limit_end_s
        end_s = min(job.start_s + state.lengths.seconds(job.program, max(0.0, now_s - job.start_s)), limit_end_s)
        end_s = max(now_s, end_s)
        state.ends[job.job_id] = max(end_s, state.ends.get(job.job_id, 0.0))
        freed_s = end_s + self._turnaround_s if job.freed_s is None else max(now_s, min(end_s, job.freed_s))
        shares = tuple((self._index[name], job.need) for name in job.nodes if name in self._index)
        self._hold(state, key, _Held(job.job_id, shares, min(limit_end_s, job.freed_s or math.inf)))
        heapq.heappush(state.events, (freed_s, _END, key))

    def _handle(self, state: _State, kind: int, key: int) -> None:
        if kind == _END:
            self._end(state, key)
        elif (kind == _READY and not state.awaited.get(key)) or kind == _ARRIVAL:
            self._queue_up(state, key)
        elif kind == _HOUR:
            self._add_hour(state)

    def _add_hour(self, state: _State) -> None:
        """Add the jobs that come in this hour."""
        assert state.coming is not None
        if len(state.jobs) > len(self._tasks) + _COMING:
            return
        begin_s = state.now_s // HOUR_S * HOUR_S
        for arrival in state.coming.hour(state.now_s):
            at_s = begin_s + arrival.after_s
            if at_s <= state.now_s:
                continue
            state.jobs.append(arrival.job)
            state.ranks.append(-arrival.passes)  # until it comes
            heapq.heappush(state.events, (at_s, _ARRIVAL, len(state.jobs) - 1))
        heapq.heappush(state.events, (begin_s + HOUR_S, _HOUR, 0))

    def _queue_up(self, state: _State, at: int) -> None:
        job = state.jobs[at]
        if at >= len(self._tasks):
            state.ranks[at] = self._rank_of_arrival(state, at)
        form = self._form(job)
        place = state.places.get(form)
        if place is None:
            room = {i for i in self._able[form] if self._has_room(form, i, state.free[i])}
            place = state.places[form] = _Place(form, self._able[form], room)
        place.waiting += 1
        limit_s = math.inf if job.program.limit_s is None else job.program.limit_s
        insort(state.waiting.setdefault((form, limit_s, job.cap), []), (state.ranks[at], at))

    def _rank_of_arrival(self, state: _State, at: int) -> float:
        """Return the rank of a job that has just come: behind all, or before the share of them that it passes."""
        passes = -state.ranks[at]
        if passes <= 0:
            return float(at)
        ranks = sorted(rank for jobs in state.waiting.values() for rank, _ in jobs)
        return (
            ranks[int((1 - passes) * len(ranks))] - 0.5
            if ranks and passes < 1
            else (ranks[0] - 0.5 if ranks else float(at))
        )

    def _form(self, job: PendingJob) -> _Form:
        form = self._forms.get(id(job))
        if form is None:
            own = _form_of(job)
            form = self._forms[id(job)] = self._alike.setdefault(tuple(vars(own).values()), own)
            if form not in self._able:
                self._able[form] = frozenset(_able_nodes(form, self._nodes))
        return form

    def _has_room(self, form: _Form, node: int, free: Amounts) -> bool:
        return free.holds(self._nodes[node].total if form.whole else form.need)

    def _change(self, state: _State, shares: Iterable[tuple[int, Amounts]], sign: int) -> None:
        for node, need in shares:
            had = state.free[node]
            free = state.free[node] = Amounts(
                had.gpus + sign * need.gpus, had.cpus + sign * need.cpus, had.memory_mib + sign * need.memory_mib
            )
            for form, place in state.places.items():
                if node not in place.able:
                    continue
                place.free_s.pop(node, None)
                if self._has_room(form, node, free):
                    place.room.add(node)
                else:
                    place.room.discard(node)

    def _hold(self, state: _State, key: int, occupancy: _Held) -> None:
        state.held[key] = occupancy
        for node, need in occupancy.shares:
            state.on_node[node][key] = occupancy.limit_end_s, need

    def _end(self, state: _State, key: int) -> None:
        occupancy = state.held.pop(key)
        for node, _ in occupancy.shares:
            del state.on_node[node][key]
        self._change(state, occupancy.shares, 1)
        if occupancy.cap is not None:
            state.left_of_cap[occupancy.cap] += occupancy.amount
        for at in state.awaiting.pop(occupancy.job_id, ()):
            state.awaited[at].discard(occupancy.job_id)
            if not state.awaited[at] and _ready_s(state.jobs[at]) <= state.now_s:
                self._queue_up(state, at)

    def _schedule(self, state: _State) -> None:
        heads = [(jobs[0], key) for key, jobs in state.waiting.items()]
        heads.sort(key=lambda head: head[0], reverse=True)  # the first one last
        planned: list[_Start] = []
        blocked: list[_Form] = []
        while heads:
            (_, at), key = heads.pop()
            form, limit_s, cap = key
            place = state.places[form]
            if len(place.able) < form.nodes:
                continue
            if cap is not None and state.left_of_cap[cap] < _amount(cap[2], form.need, form.nodes):
                continue
            if len(place.room) < form.nodes:
                if len(planned) + len(blocked) < PLANS:
                    blocked.append(form)
                continue
            planned += [start for other in blocked if (start := self._plan(state, other, planned))]
            blocked = []
            nodes = self._choose(state, place, limit_s, planned)
            if nodes is None:
                if len(planned) < PLANS:
                    blocked.append(form)
                continue
            self._start(state, at, key, nodes)
            if jobs := state.waiting.get(key):
                insort(heads, (jobs[0], key), key=lambda head: (-head[0][0], -head[0][1]))

    def _choose(self, state: _State, place: _Place, limit_s: float, planned: Sequence[_Start]) -> list[int] | None:
        end_s, room = state.now_s + limit_s, place.room
        shut = [start.nodes for start in planned if end_s > start.at_s]
        if shut:
            room = room.difference(*shut)
        if self._closes:
            room = {i for i in room if not _is_closed(self._nodes[i], place.form.reservation, state.now_s, end_s)}
        if len(room) < place.form.nodes:
            return None
        return heapq.nsmallest(place.form.nodes, room, key=lambda i: (state.free[i].gpus, state.free[i].cpus, i))

    def _plan(self, state: _State, form: _Form, planned: Sequence[_Start]) -> _Start | None:
        """Return the earliest start by time limits, or None if there is none."""
        place, now_s = state.places[form], state.now_s
        planned_nodes = frozenset[int]().union(*(start.nodes for start in planned))
        able: list[tuple[float, int]] = []
        for node in place.able - planned_nodes if planned_nodes else place.able:
            if node in place.room:
                able.append((now_s, node))
                continue
            free_s = place.free_s.get(node)
            if free_s is None:
                free_s = place.free_s[node] = self._free_s(state, form, node)
            able.append((max(now_s, free_s), node))
        earliest = heapq.nsmallest(form.nodes, able)
        if len(earliest) < form.nodes or earliest[-1][0] == math.inf:
            return None
        return _Start(earliest[-1][0], frozenset(node for _, node in earliest))

    def _free_s(self, state: _State, form: _Form, node: int) -> float:
        """Return when a node that has no room for the form has it by the limits of what runs there."""
        free = state.free[node]
        for limit_end_s, need in sorted(state.on_node[node].values(), key=lambda one: one[0]):
            free += need
            if self._has_room(form, node, free):
                return limit_end_s
        return math.inf

    def _start(self, state: _State, at: int, key: Key, nodes: list[int]) -> None:
        job, (form, limit_s, cap) = state.jobs[at], key
        jobs = state.waiting[key]
        jobs.pop(0)
        if not jobs:
            del state.waiting[key]
        state.places[form].waiting -= 1
        if not state.places[form].waiting:
            del state.places[form]
        shares = tuple((i, self._nodes[i].total if form.whole else form.need) for i in nodes)
        self._change(state, shares, -1)
        occupancy = _Held(job.job_id, shares, state.now_s + limit_s)
        if cap is not None:
            occupancy.cap, occupancy.amount = cap, _amount(cap[2], form.need, form.nodes)
            state.left_of_cap[cap] -= occupancy.amount
        self._hold(state, at, occupancy)
        end_s = state.now_s + state.lengths.seconds(job.program)
        heapq.heappush(state.events, (end_s + self._turnaround_s, _END, at))
        if at < len(self._tasks):
            state.to_start -= 1
            if job.job_id not in state.starts:
                state.starts[job.job_id], state.ends[job.job_id] = state.now_s, end_s


def _ready_s(job: PendingJob) -> float:
    return max(job.may_start_s, job.planned_s or 0.0)


def _form_of(job: PendingJob) -> _Form:
    return _Form(
        job.need,
        job.nodes,
        job.whole_nodes,
        job.partitions,
        job.gpu_type,
        job.features,
        job.node_names,
        job.excluded,
        job.reservation,
    )


def _able_nodes(form: _Form, nodes: Sequence[QueueNode]) -> list[int]:
    """Return the nodes that may ever take a job of this form. If its --nodelist is shorter than it needs, it has others too."""
    able = [
        i
        for i, node in enumerate(nodes)
        if form.partitions & node.partitions
        and (not form.gpu_type or form.gpu_type == node.gpu_type)
        and has_features(form.features, node.features)
        and node.name not in form.excluded
        and node.total.holds(form.need)
    ]
    nodelist = [i for i in able if nodes[i].name in form.node_names]
    return nodelist if form.node_names and len(nodelist) >= form.nodes else able


def able_nodes(job: PendingJob, nodes: Sequence[QueueNode]) -> list[QueueNode]:
    """Return the nodes that the job may use when they are free."""
    return [nodes[i] for i in _able_nodes(_form_of(job), nodes)]


def _is_closed(node: QueueNode, reservation: str, from_s: float, to_s: float) -> bool:
    return any(name != reservation and start_s < to_s and from_s < end_s for start_s, end_s, name in node.closed)


def _amount(measure: str, need: Amounts, nodes: int) -> float:
    return {"gpus": need.gpus * nodes, "cpus": need.cpus * nodes, "nodes": nodes}.get(measure, 1)
