"""How near to one another a job's nodes are, and for how long jobs lately waited for them. Pure.

Dally (Sharma et al., arXiv 2401.16492): a job holds out for nodes as near as its GPUs can be, for a delay timer per tier of the
network; an auto-tuner sets the timers from the waiting times that jobs of as many GPUs lately had for that tier. The definitions are
those of the authors' simulator (github.com/aakash-sharma/cluster-sim): setDemandDelay (what counts as a wait), getMcDemandDelay and
getRackDemandDelay (mean + 2 standard deviations), tuneDelayTimers (the bounds), consolidatedGPUAllocation (what they gate).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple

from synergy_core.records import Job, JobState, Snapshot

#: The timers' unit. The authors' is an hour, for jobs that last 15.5 h in the median (their SenseTime trace); the median job of a
#: shared cluster lasts 13 min (Jeon et al., ATC 2019), which makes it about a minute.
LEASE_S = 60.0
#: leases of the moving window; the authors give it on the command line, so this is our choice: twice the longest of LEAST
WINDOW = 24.0
#: the fewest leases that a job waits before it takes more than a node, more than a leaf
LEAST = (6.0, 12.0)
#: the most that it waits, as a share of WINDOW
MOST = (0.8, 1.0)


class Tier(IntEnum):
    """How far apart a job's GPUs are."""

    NODE = 0
    LEAF = 1
    ACROSS = 2


class Wait(NamedTuple):
    """A wait that is over: at `time_s` a job got `gpus` GPUs inside `tier`, for which it had waited `waited_s`."""

    time_s: float
    gpus: int
    tier: Tier
    waited_s: float


@dataclass(frozen=True)
class DelayHistory:
    """The present and past waits of jobs.

    `waiting`: since when each job that could start waits; `running`: since when each one runs, both by job id; `waits`: those
    of the window, the oldest first. Seconds as in Snapshot.time_s.
    """

    waiting: Mapping[int, float] = field(default_factory=dict)
    running: Mapping[int, float] = field(default_factory=dict)
    waits: tuple[Wait, ...] = ()


NO_DELAYS = DelayHistory()


def with_observation(history: DelayHistory, snapshot: Snapshot) -> DelayHistory:
    """Return the history with what this snapshot shows. A wait of less than a lease does not count as one."""
    leaf = {node.name: node.leaf for node in snapshot.cluster.nodes}
    waiting, running, waits = {}, {}, []
    for job in snapshot.jobs:
        if job.state is JobState.RUNNING:
            start_s = running[job.job_id] = snapshot.time_s if job.start_s is None else job.start_s
            waited_s = start_s - history.waiting.get(job.job_id, math.inf)
            if waited_s >= LEASE_S:
                waits.append(Wait(snapshot.time_s, job.shape.gpus, find_tier(job.node_names, leaf), waited_s))
        elif _could_start(job, snapshot.time_s):
            waiting[job.job_id] = history.waiting.get(job.job_id, snapshot.time_s)
    after_s = snapshot.time_s - WINDOW * LEASE_S
    return DelayHistory(waiting, running, (*(w for w in history.waits if w.time_s >= after_s), *waits))


def clock_set(history: DelayHistory, by_s: float) -> DelayHistory:
    """Return the history as it would be if the clock had always been as it is now.

    A clock set back by a day would otherwise delay jobs by a day.
    """
    waiting, running = (
        {i: time_s + by_s for i, time_s in times.items()} for times in (history.waiting, history.running)
    )
    return DelayHistory(waiting, running, tuple(w._replace(time_s=w.time_s + by_s) for w in history.waits))


def find_tier(names: Iterable[str], leaf: Mapping[str, str]) -> Tier:
    """Return the tier of GPUs on these nodes; `leaf` is by node name. Nodes without a leaf are all in one."""
    nodes = set(names)
    if len(nodes) < 2:
        return Tier.NODE
    return Tier.LEAF if len({leaf.get(name, "") for name in nodes}) == 1 else Tier.ACROSS


def timer_s(history: DelayHistory, gpus: int, beyond: Tier) -> float:
    """Return the seconds that a job of `gpus` GPUs waits before it takes GPUs that are further apart than `beyond` (not ACROSS).

    The time is in whole leases.
    """
    waited = [wait.waited_s / LEASE_S for wait in history.waits if (wait.gpus, wait.tier) == (gpus, beyond)]
    usual = statistics.fmean(waited) + 2.0 * statistics.pstdev(waited) if waited else 0.0
    return LEASE_S * min(math.ceil(MOST[beyond] * WINDOW), max(LEAST[beyond], math.ceil(usual)))


def may_take(history: DelayHistory, gpus: int, best: Tier, waited_s: float) -> Tier:
    """Return the furthest tier that a job may take after it has waited for `waited_s` seconds.

    `best` is the nearest that it can ever have.
    """
    if best is Tier.ACROSS or waited_s >= timer_s(history, gpus, Tier.LEAF):
        return Tier.ACROSS
    return Tier.LEAF if best is Tier.LEAF or waited_s >= timer_s(history, gpus, Tier.NODE) else Tier.NODE


def _could_start(job: Job, now_s: float) -> bool:
    """Return whether only the lack of GPUs keeps the job from starting."""
    free = job.directive is not None and not job.directive_error and not job.held
    later = job.begin_s is not None and job.begin_s > now_s
    return job.state is JobState.PENDING and free and not later and not job.reason.startswith("Dependency")
