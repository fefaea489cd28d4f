"""Jobs whose compute goes on while gradients are on their way, under the link arbiter in virtual time.

The truth here is no part of the forecast: each message has two halves, the second of which is ready when the rest of the backward pass
has ended; bytes move as max-min fair queues let them, without a penalty; whoever asks waits with its backward pass.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from synergy_core.wire.link_protocol import FREE_S, Question

from synergyd.daemon.links.chooser import Choices, JobObservations
from synergyd.links.arbiter import (
    ArbiterState,
    ArbiterTerms,
    ArbiterTick,
    Event,
    JobJoined,
    JobLeft,
    SendDone,
    asks_in_vain,
    make_terms,
    step,
    wake_s,
)
from synergyd.links.model import Topology
from tests.benchmarks.shaped_links import Load

LOOK_S = 1.0  # between two looks of the look-ahead
_MS = 1e-9


@dataclass
class Job:
    """`left_mb` of the half under way; `halves` to come after it, each with when it is ready and its MB."""

    load: Load
    nodes: tuple[str, ...]
    steps: int
    asks_s: float = 0.0
    sending: bool = False
    left_mb: float = 0.0
    halves: list[tuple[float, float]] = field(default_factory=list)
    granted_s: float = 0.0
    asked: bool = False
    free_until: float = 0.0
    took: deque[float] = field(default_factory=lambda: deque(maxlen=20))
    ends: list[float] = field(default_factory=list)

    @property
    def megabytes(self) -> float:
        return self.load.megabytes * 1.048576

    @property
    def flows(self) -> bool:
        return self.sending and self.left_mb > _MS


class Played:
    """Jobs from their common start to their ends, under `rule`; with `none` nobody asks."""

    def __init__(
        self,
        loads: Sequence[Load],
        pairs: Sequence[tuple[int, int]],
        rule: str,
        topology: Topology,
        handover_s: float = 0.0,
    ) -> None:
        """`handover_s`: from a message's end until the next one that waited for it begins."""
        self.now_s, self.handover_s = 0.0, handover_s
        self.topology, self.gated = topology, rule != "none"
        self.terms: ArbiterTerms = make_terms(rule if self.gated else "srsf-1", topology, 2.0)
        self.state, self.seen = ArbiterState(), JobObservations()
        self.choices = Choices(self.seen, spent=lambda: 0.0)
        self.chosen: list[str] = []
        self.jobs: dict[int, Job] = {}
        for n, load in enumerate(loads):
            nodes = tuple(f"h{i}" for i in pairs[n])
            self.jobs[n + 1] = Job(load, nodes, load.steps, asks_s=load.compute_s * (1 - load.overlap))
            left_s = load.steps * (load.compute_s + self.jobs[n + 1].megabytes * topology.nic.per_mb / 1000.0)
            if self.gated:
                self._take(JobJoined(n + 1, nodes, 2, left_s))

    def run(self) -> list[float]:
        """When each job ends."""
        look_s = LOOK_S if self.gated and self.terms.look_ahead else math.inf
        while any(job.steps for job in self.jobs.values()):
            rates = self._rates()
            wake = wake_s(self.state, self.terms)
            until = min(look_s, math.inf if wake is None else wake)
            for job_id, job in self.jobs.items():
                if job.flows:
                    until = min(until, self.now_s + job.left_mb / rates[job_id])
                elif job.sending:
                    until = min(until, job.halves[0][0])
                elif job.steps and job_id not in self.state.waiting:
                    until = min(until, job.asks_s)
            for job_id, rate in rates.items():
                self.jobs[job_id].left_mb -= rate * (until - self.now_s)
            self.now_s = max(self.now_s, until)
            if until >= look_s:
                look_s = self.now_s + LOOK_S
                found = self.choices.look(self.state, self.terms, self.now_s)
                self.terms = ArbiterTerms(self.terms.discipline, self.topology, 2.0, look_ahead=True, disciplines=found)
                self.chosen.append("+".join(sorted({x.name for x in found.values()})))
            self._take(ArbiterTick())
            for job_id, job in self.jobs.items():
                self._goes_on(job_id, job)
        return [job.ends[-1] for job in self.jobs.values()]

    def _goes_on(self, job_id: int, job: Job) -> None:
        if job.sending and not job.flows and not job.halves:
            self._arrived(job_id, job)
        elif job.sending and not job.flows and self.now_s >= job.halves[0][0] - _MS:
            _, job.left_mb = job.halves.pop(0)
        elif not job.sending and job.steps and job_id not in self.state.waiting and self.now_s >= job.asks_s - _MS:
            job.asked = self.gated and self.now_s >= job.free_until
            if job.asked:
                asking = Question(1, job.megabytes, min(job.took, default=0.0))
                self._take(self.seen.question(job_id, asking, self.state, self.terms))
            else:
                self._begins(job, self.now_s)

    def _begins(self, job: Job, begin_s: float) -> None:
        job.sending, job.granted_s = True, begin_s
        ready_s = begin_s + job.load.compute_s * job.load.overlap
        job.left_mb, job.halves = 0.0, [(begin_s, job.megabytes / 2), (ready_s, job.megabytes / 2)]

    def _arrived(self, job_id: int, job: Job) -> None:
        job.sending = False
        job.steps -= 1
        job.ends.append(self.now_s)
        job.asks_s = self.now_s + job.load.compute_s * (1 - job.load.overlap)
        if job.asked:
            job.took.append(self.now_s - job.granted_s)
            self._take(SendDone(job_id))
        if self.gated and not job.steps:
            self._take(JobLeft(job_id))

    def _take(self, event: Event) -> None:
        if not isinstance(event, ArbiterTick):
            self.seen.note(event, self.now_s)
        self.state, grants = step(self.state, event, self.now_s, self.terms)
        for grant in grants:
            job = self.jobs[grant.job_id]
            if job.steps:
                waited = job.asks_s < self.now_s - _MS
                self._begins(job, self.now_s + waited * self.handover_s)
                if asks_in_vain(self.state, grant.job_id, self.terms) and self.seen.can_be_dismissed(
                    grant.job_id, grant.job_id in self.terms.disciplines
                ):
                    job.free_until = self.now_s + FREE_S

    def _rates(self) -> Mapping[int, float]:
        """MB/s of each job that sends: max-min fair on all links."""
        crossed = {j: job.nodes for j, job in self.jobs.items() if job.flows}
        room = {node: 1000.0 / self.topology.nic.per_mb for nodes in crossed.values() for node in nodes}
        rates: dict[int, float] = {}
        while crossed:
            shares = {
                x: room[x] / sum(x in nodes for nodes in crossed.values())
                for x in room
                if any(x in n for n in crossed.values())
            }
            worst = min(shares, key=lambda x: shares[x])
            for j in [j for j, nodes in crossed.items() if worst in nodes]:
                rates[j] = shares[worst]
                for x in crossed.pop(j):
                    room[x] -= rates[j]
        return rates
