"""The event simulation: exact at the level of tasks, in milliseconds.

Every iteration of a job is a forward and a backward pass on each of its GPUs, then one all-reduce, which needs every worker's
backward pass and crosses the job's links; on one node it takes no time. A GPU runs one pass at a time, not interrupted; of
the residents that are ready it takes the one with the shortest remaining service (compute x GPUs). A GPU takes as many residents as
its memory holds, or one.

Runs of passes that nothing can interrupt are one event; a resident that becomes ready and comes first cuts the run at the end
of the pass in progress. This is exact and saves most of the events.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from synergy_core.errors import UsageError

from synergy_sim.contention.workload import JobSpec
from synergyd.links.disciplines import Discipline
from synergyd.links.model import Link, Topology

_EPS = 1e-9
_COMM, _GPU, _ARRIVAL = 0, 1, 2
# The parts of a busy GPU's run.
_FORWARD, _BACKWARD, _STEP, _ALL = 0, 1, 2, 3

Placer = Callable[["Engine", int], Sequence[int] | None]


@dataclass(frozen=True)
class Machine:
    """`nodes` nodes of `gpus` GPUs with `memory_mb` each; with `exclusive` a GPU has one resident at most."""

    nodes: int = 16
    gpus: int = 4
    memory_mb: float = 32768.0
    exclusive: bool = False
    topology: Topology = field(default_factory=Topology)

    def node_name(self, index: int) -> str:
        return f"n{index}"


class Engine:
    """One simulation: the state of jobs, GPUs and links. `set_discipline` changes the discipline between calls of `advance`."""

    def __init__(self, machine: Machine, jobs: Sequence[JobSpec], placer: Placer, discipline: Discipline) -> None:
        self.machine, self.jobs, self.placer, self.discipline = machine, tuple(jobs), placer, discipline
        self.now = 0.0
        count, gpus = len(jobs), machine.nodes * machine.gpus
        for job in jobs:
            if job.gpus > gpus or job.memory_mb > machine.memory_mb:
                raise UsageError(
                    f"job {job.job_id}", "it does not fit on the empty machine", "fewer GPUs or less memory"
                )
        self.events: list[tuple[float, int, int, int]] = [(j.arrival_ms, _ARRIVAL, i, 0) for i, j in enumerate(jobs)]
        heapq.heapify(self.events)
        self.queue: list[int] = []
        # Jobs.
        self.left = [job.iterations for job in jobs]
        self.key = [job.iterations * job.step_ms * job.gpus for job in jobs]
        self.unit = [job.step_ms * job.gpus for job in jobs]
        self.pending = [job.gpus for job in jobs]  # workers that have not ended this iteration's backward pass
        self.where: list[tuple[int, ...]] = [()] * count
        self.links: list[tuple[int, ...]] = [()] * count
        self.finish = [-1.0] * count
        self.ready_since = [0.0] * count
        self.waited = [0.0] * count  # ms ready to send but not allowed to
        self.sent = [0.0] * count  # ms sending
        # GPUs.
        self.residents: list[list[int]] = [[] for _ in range(gpus)]
        self.memory = [machine.memory_mb] * gpus
        self.ready: list[dict[int, int]] = [{} for _ in range(gpus)]
        self.running = [-1] * gpus
        self.mode = [0] * gpus
        self.since = [0.0] * gpus
        self.version = [0] * gpus
        self.touched: set[int] = set()
        # Links: by index into `link_names`.
        self.link_index: dict[str, int] = {}
        self.figures: list[Link] = []
        self.carries: list[set[int]] = []
        self.load: list[int] = []  # len of each of `carries`
        self.cycle = [job.step_ms for job in jobs]  # an iteration's compute and its message alone on its links
        self.flow: dict[int, list[float]] = {}  # job -> [MB left, ms/MB, since]
        self.flow_version = [0] * count
        self.waiting: set[int] = set()
        self.fresh: set[int] = set()  # waiting and not asked about yet
        self.freed_links: set[int] = set()  # links on which a message has ended since tasks were asked about
        self.ask_all = False
        self.look = False  # admissions are to be looked at
        self.freed = False  # memory came free or a job arrived: the queue is to be looked at
        self.changed = False  # a job with links has started or ended

    # -- reading ---------------------------------------------------------------------------------------------------

    @property
    def unfinished_jobs(self) -> list[int]:
        """Return the jobs that have arrived and not finished."""
        return [j for j, job in enumerate(self.jobs) if self.finish[j] < 0 and job.arrival_ms <= self.now + _EPS]

    def mb_left(self, job: int) -> float:
        """Return the MB that a job in flight has still to send."""
        remaining_mb, cost, since = self.flow[job]
        return max(0.0, remaining_mb - (self.now - since) / cost)

    def iterations_left(self, job: int) -> int:
        """Return the number of the job's iterations that have not ended; those that have ended in a run in progress count as ended."""
        if self.where[job] and len(self.where[job]) == 1:
            gpu = self.where[job][0]
            if self.running[gpu] == job and self.mode[gpu] == _ALL:
                return self.left[job] - int((self.now - self.since[gpu] + _EPS) // self.jobs[job].step_ms)
        return self.left[job]

    def work_left_ms(self, job: int) -> float:
        """Return the remaining ms of a placed job if nothing were in its way: compute, and its all-reduces alone on their links."""
        return self.iterations_left(job) * self.cycle[job]

    def gpu_work_left_ms(self) -> list[float]:
        """Return the remaining ms by GPU, summed over its residents."""
        work_ms = {j: self.work_left_ms(j) for j in {j for some in self.residents for j in some}}
        return [sum(work_ms[j] for j in some) for some in self.residents]

    # -- running ---------------------------------------------------------------------------------------------------

    def advance(self, until: float = float("inf"), to_change: bool = False) -> bool:
        """Run all events up to and including `until`; return whether any are left.

        With `to_change`, stop as soon as a job with links has started or ended, before anything else is decided at that moment.
        """
        events = self.events
        self._start_all_possible()
        while events:
            time, kind, index, version = events[0]
            if (kind == _GPU and version != self.version[index]) or (
                kind == _COMM and version != self.flow_version[index]
            ):
                heapq.heappop(events)
                continue
            if time > until:
                self.now = max(self.now, until)
                return True
            self.now = max(self.now, time)
            while events and events[0][0] <= self.now + _EPS:
                _, kind, index, version = heapq.heappop(events)
                if kind == _GPU:
                    if version == self.version[index]:
                        self._end_pass(index)
                elif kind == _COMM:
                    if version == self.flow_version[index]:
                        self._end_message(index)
                else:
                    self.queue.append(index)
                    self.freed = True
            if self.queue and self.freed:
                self._place_queue()
            self.freed = False
            if to_change and self.changed:
                self.changed = False
                return True
            self._start_all_possible()
        return False

    def _start_all_possible(self) -> None:
        """Decide all that may begin now: messages, then passes."""
        if self.look:
            self.look = False
            self._admit_messages()
        if self.touched:
            touched, self.touched = self.touched, set()
            for gpu in sorted(touched):
                if self.running[gpu] < 0 and self.ready[gpu]:
                    self._dispatch(gpu)

    def fork(self, discipline: Discipline, arrivals: bool = False) -> Engine:
        """Return a copy that goes on from here under another discipline, without the arrivals to come unless `arrivals`."""
        copy = object.__new__(Engine)
        copy.__dict__.update(self.__dict__)
        copy.events = list(self.events) if arrivals else [e for e in self.events if e[1] != _ARRIVAL]
        heapq.heapify(copy.events)
        for name in ("queue", "left", "key", "pending", "where", "links", "finish", "ready_since", "waited", "sent",
                     "memory", "running", "mode", "since", "version", "figures", "flow_version", "load", "cycle"):  # fmt: skip
            setattr(copy, name, list(getattr(self, name)))
        copy.residents = [list(x) for x in self.residents]
        copy.ready = [dict(x) for x in self.ready]
        copy.carries = [set(x) for x in self.carries]
        copy.link_index = dict(self.link_index)
        copy.flow = {j: list(x) for j, x in self.flow.items()}
        copy.waiting, copy.touched = set(self.waiting), set(self.touched)
        copy.fresh, copy.freed_links = set(self.fresh), set(self.freed_links)
        copy.set_discipline(discipline)
        return copy

    def set_discipline(self, discipline: Discipline) -> None:
        """Put another discipline in force; every waiting message is considered again."""
        if discipline != self.discipline:
            self.discipline = discipline
            self.look = self.ask_all = True

    # -- GPUs ------------------------------------------------------------------------------------------------------

    def _place_queue(self) -> None:
        """Place waiting jobs, shortest service first; jobs that do not fit wait while others pass."""
        self.queue.sort(key=lambda j: (self.key[j], j))
        waiting = []
        for job in self.queue:
            gpus = self.placer(self, job)
            if gpus is None:
                waiting.append(job)
            else:
                self._start(job, tuple(gpus))
        self.queue = waiting

    def _start(self, job: int, gpus: tuple[int, ...]) -> None:
        machine = self.machine
        self.where[job] = gpus
        names = [machine.node_name(n) for n in sorted({g // machine.gpus for g in gpus})]
        self.links[job] = tuple(self._link(name) for name in machine.topology.links_crossed(names))
        if self.links[job]:
            self.changed = True
            alone = max(self.figures[x].per_mb for x in self.links[job])
            self.cycle[job] = self.jobs[job].step_ms + self.jobs[job].message_mb * alone
        for gpu in gpus:
            self.residents[gpu].append(job)
            self.memory[gpu] -= self.jobs[job].memory_mb
            self._make_ready(gpu, job)

    def _link(self, name: str) -> int:
        if name not in self.link_index:
            self.link_index[name] = len(self.figures)
            self.figures.append(self.machine.topology.figures(name))
            self.carries.append(set())
            self.load.append(0)
        return self.link_index[name]

    def _make_ready(self, gpu: int, job: int) -> None:
        """Note that a new iteration's forward pass may run; it cuts a run in progress that it comes before."""
        self.ready[gpu][job] = _FORWARD
        self.touched.add(gpu)
        current = self.running[gpu]
        if current < 0:
            return
        mode, since, spec = self.mode[gpu], self.since[gpu], self.jobs[current]
        if mode == _STEP:
            if self._precedes(job, current) and self.now <= since + spec.forward_ms + _EPS:
                self._run(gpu, current, _FORWARD, since, since + spec.forward_ms)
        elif mode == _ALL:
            done = int((self.now - since + _EPS) // spec.step_ms)
            into = self.now - since - done * spec.step_ms
            if into <= _EPS and done > 0:
                done, into = done - 1, spec.step_ms
            start = since + done * spec.step_ms
            forward = into <= spec.forward_ms + _EPS
            # The run's own service, as it will stand when the pass in progress ends.
            then = self.key[current] - self.unit[current] * (done + (not forward))
            if (self.key[job], job) < (then, current) and done + 1 <= self.left[current]:
                self.left[current] -= done
                self.key[current] -= self.unit[current] * done
                end = start + (spec.forward_ms if forward else spec.step_ms)
                self._run(gpu, current, _FORWARD if forward else _STEP, start, end)

    def _precedes(self, job: int, other: int) -> bool:
        return (self.key[job], job) < (self.key[other], other)

    def _run(self, gpu: int, job: int, mode: int, since: float, end: float) -> None:
        self.running[gpu], self.mode[gpu], self.since[gpu] = job, mode, since
        self.version[gpu] += 1
        heapq.heappush(self.events, (end, _GPU, gpu, self.version[gpu]))

    def _dispatch(self, gpu: int) -> None:
        ready, key = self.ready[gpu], self.key
        if len(ready) == 1:
            ((job, phase),) = ready.items()
        else:
            job = min(ready, key=lambda j: (key[j], j))
            phase = ready[job]
        del ready[job]
        spec = self.jobs[job]
        if phase == _BACKWARD:
            self._run(gpu, job, _BACKWARD, self.now, self.now + spec.backward_ms)
        elif spec.gpus == 1:
            self._run(gpu, job, _ALL, self.now, self.now + self.left[job] * spec.step_ms)
        else:
            self._run(gpu, job, _STEP, self.now, self.now + spec.step_ms)

    def _end_pass(self, gpu: int) -> None:
        job, mode = self.running[gpu], self.mode[gpu]
        self.running[gpu] = -1
        self.version[gpu] += 1
        self.touched.add(gpu)
        if mode == _FORWARD:
            self.ready[gpu][job] = _BACKWARD
        elif mode == _ALL:
            self.left[job] = 0
            self._finish_job(job)
        else:
            self.pending[job] -= 1
            if self.pending[job] == 0:
                if self.links[job]:
                    self.waiting.add(job)
                    self.fresh.add(job)
                    self.ready_since[job] = self.now
                    self.look = True
                else:
                    self._end_iteration(job)

    def _end_iteration(self, job: int) -> None:
        self.left[job] -= 1
        self.key[job] -= self.unit[job]
        if self.left[job] == 0:
            self._finish_job(job)
            return
        self.pending[job] = self.jobs[job].gpus
        for gpu in self.where[job]:
            self._make_ready(gpu, job)

    def _finish_job(self, job: int) -> None:
        self.finish[job] = self.now
        self.freed = True
        self.changed |= bool(self.links[job])
        for gpu in self.where[job]:
            self.residents[gpu].remove(job)
            self.memory[gpu] += self.jobs[job].memory_mb

    # -- links -----------------------------------------------------------------------------------------------------

    def competing_jobs(self, job: int) -> set[int]:
        """Return the jobs whose message is in flight on a link that this one crosses."""
        return set().union(*(self.carries[x] for x in self.links[job]))

    def _admit_messages(self) -> None:
        """Admit waiting tasks in the discipline's order.

        All of them are considered where there are reservations, else those for which something may have changed (rules refuse the more,
        the more is on the links and the less is left of it).
        """
        discipline, load, figures, all_links = self.discipline, self.load, self.figures, self.links
        rule, most, reserve = discipline.rule, discipline.rule.most, discipline.reserve
        candidates = self.waiting
        if not reserve and not self.ask_all:
            freed = self.freed_links
            candidates = {j for j in candidates if j in self.fresh or not freed.isdisjoint(all_links[j])}
        self.fresh.clear()
        self.freed_links.clear()
        self.ask_all = False
        key, remaining_iterations, cycle = self.key, self.left, self.cycle
        by_time = discipline.by_time
        order = sorted([(remaining_iterations[j] * cycle[j] if by_time else key[j], j) for j in candidates])
        reserved: dict[int, int] = {}  # link -> the first job that keeps it
        for _, job in order:
            links = all_links[job]
            count, is_reserved = 0, False
            for x in links:
                if load[x] > count:
                    count = load[x]
                if x in reserved:
                    is_reserved = True
            admitted = False
            if is_reserved:
                if not count:
                    end = self.now + self.jobs[job].message_mb * max(figures[x].per_mb for x in links)
                    admitted = all(end <= self._find_links_free_s(reserved[x]) + _EPS for x in links if x in reserved)
            elif not count:
                admitted = rule.admits(self.jobs[job].message_mb, 0, (), figures[links[0]])
            elif count < most:
                busiest = max((x for x in links if load[x] == count), key=lambda x: figures[x].per_mb)
                rests = [self.mb_left(other) for other in self.competing_jobs(job)]
                admitted = rule.admits(self.jobs[job].message_mb, count, rests, figures[busiest])
            if admitted:
                self.waiting.discard(job)
                self.waited[job] += self.now - self.ready_since[job]
                self._send(job)
            elif reserve:
                for x in links:
                    reserved.setdefault(x, job)

    def _find_links_free_s(self, job: int) -> float:
        """Return when all of a job's links will be free at the present paces.

        If they are free now (the job waits behind a reservation), return now, so that nothing passes it.
        """
        return max((self.now + self.mb_left(o) * self.flow[o][1] for o in self.competing_jobs(job)), default=self.now)

    def _send(self, job: int) -> None:
        self.flow[job] = [self.jobs[job].message_mb, 1.0, self.now]
        self.ready_since[job] = self.now
        for link in self.links[job]:
            self.carries[link].add(job)
            self.load[link] += 1
        self._update_flows(self.competing_jobs(job), fresh=job)

    def _end_message(self, job: int) -> None:
        near = self.competing_jobs(job) - {job}
        self.freed_links.update(self.links[job])
        for link in self.links[job]:
            self.carries[link].discard(job)
            self.load[link] -= 1
        del self.flow[job]
        self.sent[job] += self.now - self.ready_since[job]
        self.flow_version[job] += 1
        self._update_flows(near)
        self.look = True
        self._end_iteration(job)

    def _update_flows(self, jobs: set[int], fresh: int = -1) -> None:
        """Compute the new paces of tasks whose links changed, and with them new ends."""
        figures, load = self.figures, self.load
        for job in jobs:
            cost = 0.0
            for x in self.links[job]:
                link, count = figures[x], load[x]
                cost = max(cost, count * link.per_mb + (count - 1) * link.penalty)
            flow = self.flow[job]
            if cost != flow[1] or job == fresh:
                if job != fresh:
                    flow[0] = self.mb_left(job)
                flow[1], flow[2] = cost, self.now
                self.flow_version[job] += 1
                heapq.heappush(self.events, (self.now + flow[0] * cost, _COMM, job, self.flow_version[job]))
