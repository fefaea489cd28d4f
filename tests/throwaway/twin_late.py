"""Was a job that started later than its twin made to wait by Synergy? Pure, by `sacct -D` of both clusters.

A job is late where it started more than `grace_s` (two epochs, and the seconds that Slurm's own clocks are off) after its twin.
Every moment from the twin's start to its own is then one of these, in this order, by what ran on its cluster (a moment at which
it stood in Slurm's queue as its twin did is `knock-on`):

    idle     nodes that its options allow had all that it asks for, no limit, licence, dependency, throttle or reservation was in
             its way, and no job before it in Slurm's queue for which backfill keeps the nodes: as a plain job it would have
             started. More than `grace_s` on end is a breach, whatever is said.
    hoarded  they would have had that if every job with a directive held no more than it asked for. More than `give_back_s`
             (`grace_s`, a checkpoint and a restart) on end is a breach, but where the job has a directive itself, one of those jobs
             has a higher weight=, and explain told it to wait.
    overtaken  without jobs with a directive that were submitted after it and started after its twin did there would have been
             room. A breach under the same exception.
    passed   the same of jobs without one. A job that Synergy keeps waiting stands behind a start time, so that Slurm holds no
             room for it against those that come later. A breach where these seconds and the idle ones among them are more than
             `give_back_s` in sum.
    knock-on   all else: GPUs are held by jobs that are themselves late (findings of their own), or Slurm's order is another.

Jobs run for as long in both clusters, whatever their size (twin_jobs.py). A job whose time from first start to end is longer
than its twin's by more than `give_back_s` takes from those behind it and is a finding of its own, `longer`: but where it was
stopped (Preemption=yes), has a directive, explain told it to wait, and a job of higher weight= began on its nodes meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from tests.throwaway.twin_checks import GOOD, Finding, Jobs, Key, Run, by_key, tres_of
from tests.throwaway.twin_jobs import (
    ACCOUNTS,
    CPUS,
    FREE,
    LICENCES,
    MEMORY_MIB,
    NODES,
    PARTITIONS,
    QOS,
    RESERVED,
    TwinJob,
)

LOOKS_S = 5.0  # between two looks at the queues of a busy machine, at the most
KINDS = ("idle", "hoarded", "overtaken", "passed", "knock-on")


@dataclass(frozen=True, kw_only=True)
class Both:
    """One twin run. `told`: by key, when explain told the job to wait, and why; `turns`: when a job stood in Slurm's queue as its
    plain twin does: free to start at any moment, with the size and the nodes of its sbatch line."""

    jobs: Jobs
    submitted_s: Mapping[int, float]
    ours: Sequence[Run]
    plain: Sequence[Run]
    window: tuple[float, float] | None
    grace_s: float
    give_back_s: float
    told: Mapping[Key, Sequence[tuple[float, str]]] = field(default_factory=dict)
    turns: Mapping[Key, Sequence[float]] = field(default_factory=dict)


@dataclass(frozen=True)
class Late:
    """A job that started later than its twin. `spent_s`: seconds by kind; `longest_s`: the longest on end."""

    key: Key
    by_s: float
    spent_s: Mapping[str, float]
    longest_s: Mapping[str, float]
    by_whom: tuple[Key, ...] = ()  # that hoard, or overtook


def delays(both: Both) -> dict[Key, float]:
    """Seconds by which each job started after its twin, of those that both started."""
    ours, plain = by_key(both.ours), by_key(both.plain)
    return {k: ours[k][0].start_s - plain[k][0].start_s for k in plain if k in ours}


def late(both: Both) -> list[Late]:
    """All that are, the worst first."""
    found = [_look(both, key, by_s) for key, by_s in delays(both).items() if by_s > both.grace_s]
    return sorted(found, key=lambda one: -one.by_s)


def worse_off(both: Both) -> Iterator[Finding]:
    """The breaches among those that are late, and those that take longer."""
    for one in late(both):
        words = f"started {one.by_s:.0f} s after its twin"
        if (s := one.longest_s["idle"]) > both.grace_s:
            yield Finding("idle", one.key, f"{words}: for {s:.0f} s all that it asks for was free")
        for kind, verb in (("hoarded", "hold more than they asked for"), ("overtaken", "came before it")):
            if (s := one.longest_s[kind]) > both.give_back_s and not _excused(both, one):
                yield Finding(kind, one.key, f"{words}: for {s:.0f} s {_names(one.by_whom)} {verb}")
        sum_s = one.spent_s["idle"] + one.spent_s["passed"]
        if one.spent_s["passed"] and sum_s > both.give_back_s:
            yield Finding(
                "passed", one.key, f"{words}: for {sum_s:.0f} s its room was free or went to {_names(one.by_whom)}"
            )
    ours, plain = by_key(both.ours), by_key(both.plain)
    for key in ours.keys() & plain.keys():
        took_s, twin_s = (runs[-1].end_s - runs[0].start_s for runs in (ours[key], plain[key]))
        late_end = ours[key][-1].state == plain[key][-1].state == GOOD and took_s > twin_s + both.give_back_s
        if late_end and not _made_way(both, key, ours[key]):
            yield Finding(
                "longer",
                key,
                f"took {took_s:.0f} s from start to end in {len(ours[key])} runs, its twin {twin_s:.0f} s",
            )


def had_room(both: Both, key: Key, runs: Sequence[Run], time_s: float) -> bool:
    """Could it have started as asked at `time_s`, with `runs` on the cluster?"""
    job, now = both.jobs[key[0]], [r for r in runs if r.at(time_s) and r.key != key]
    return (
        _may(both, key, runs, now, time_s)
        and any(_fits(job, name, now, both, time_s) for name in job.partitions)
        and _within_limits(job, now, both.jobs)
    )


# -- inside --------------------------------------------------------------------------------------------------------------


def _look(both: Both, key: Key, by_s: float) -> Late:
    start_s = by_key(both.ours)[key][0].start_s
    began_s = start_s - by_s
    edges = {t for r in both.ours for t in (r.start_s, r.end_s)} | {t for t in both.window or ()}
    queued = _spans(both.turns.get(key, ()))
    edges |= {t for span in queued for t in span}
    times = sorted({began_s, start_s, *(t for t in edges if began_s < t < start_s)})
    spent, longest, on_end = dict.fromkeys(KINDS, 0.0), dict.fromkeys(KINDS, 0.0), dict.fromkeys(KINDS, 0.0)
    whom: set[Key] = set()
    for a, b in pairwise(times):
        # Slurm's own order, which plain jobs are held to as well
        own_order = any(since_s <= a < until_s for since_s, until_s in queued)
        kind, by_whom = ("knock-on", set[Key]()) if own_order else _kind(both, key, a)
        whom |= by_whom
        spent[kind] += b - a
        on_end = {k: s + b - a if k == kind else 0.0 for k, s in on_end.items()}
        longest = {k: max(s, on_end[k]) for k, s in longest.items()}
    return Late(key, by_s, spent, longest, tuple(sorted(whom)))


def _spans(times: Sequence[float]) -> list[tuple[float, float]]:
    """From the first to the last of looks that follow each other."""
    found: list[tuple[float, float]] = []
    for time_s in sorted(times):
        since_s = found.pop()[0] if found and time_s - found[-1][1] <= LOOKS_S else time_s
        found.append((since_s, time_s))
    return found


def _kind(both: Both, key: Key, time_s: float) -> tuple[str, set[Key]]:
    if had_room(both, key, both.ours, time_s):
        return "idle", set()
    modest = [_as_asked(r, both.jobs[r.key[0]]) for r in both.ours]
    if had_room(both, key, modest, time_s):
        return "hoarded", {r.key for r, m in zip(both.ours, modest, strict=True) if r.at(time_s) and m is not r}
    later = {r.key for r in both.ours if r.at(time_s) and _overtook(both, key, r)}
    plain = {k for k in later if not both.jobs[k[0]].managed}
    for kind, passed in (("overtaken", later - plain), ("passed", later)):
        if passed and had_room(both, key, [r for r in modest if r.key not in passed], time_s):
            return kind, passed
    return "knock-on", set()


def _overtook(both: Both, key: Key, run: Run) -> bool:
    later = both.submitted_s[run.key[0]] > both.submitted_s[key[0]]
    return later and by_key(both.ours)[run.key][0].start_s >= by_key(both.plain)[key][0].start_s


def _excused(both: Both, one: Late) -> bool:
    job = both.jobs[one.key[0]]
    higher = any(_weight(both.jobs[k[0]]) > _weight(job) for k in one.by_whom)
    return job.managed and higher and bool(both.told.get(one.key))


def _made_way(both: Both, key: Key, runs: Sequence[Run]) -> bool:
    """Was the job stopped for one of a higher weight, and told so?"""
    job, told_s = both.jobs[key[0]], [at_s for at_s, _ in both.told.get(key, ())]
    return job.managed and any(
        any(end_s <= at_s <= again.start_s for at_s in told_s)
        and any(
            end_s <= other.start_s < again.start_s
            and set(other.nodes) & set(one.nodes)
            and _weight(both.jobs[other.key[0]]) > _weight(job)
            for other in both.ours
        )
        for one, again in pairwise(runs)
        for end_s in [one.end_s]
    )


def _weight(job: TwinJob) -> float:
    return 0.5 if "weight=0.5" in (job.directive or "") else 1.0


def _names(keys: Iterable[Key]) -> str:
    return ", ".join(f"{number}.{task}" for number, task in keys)


def _as_asked(run: Run, job: TwinJob) -> Run:
    """The run, if it held no more GPUs than it asked for: on its first nodes."""
    if not job.managed or run.gpus <= job.gpus * job.nodes:
        return run
    each, nodes = run.each, run.nodes[: job.nodes]
    gpus = min(each[0], job.gpus)
    share = Run(
        key=run.key, start_s=run.start_s, end_s=run.end_s, nodes=nodes, gpus=gpus * len(nodes),
        cpus=min(each[1], job.cpus_on(gpus)) * len(nodes), memory_mib=min(each[2], job.memory_on(gpus)) * len(nodes),
        partition=run.partition, limit_s=run.limit_s, state=run.state,
    )  # fmt: skip
    return run if _whole(job, run.partition) else share


def _whole(job: TwinJob, partition: str) -> bool:
    return job.exclusive or PARTITIONS[partition].whole_nodes


def _may(both: Both, key: Key, runs: Sequence[Run], now: Sequence[Run], time_s: float) -> bool:
    """No dependency, throttle or licence is in its way."""
    job, mine = both.jobs[key[0]], by_key(runs)
    if both.submitted_s[job.number] > time_s:
        return False
    if job.after is not None and not job.name:
        ends = [mine[k][-1] for k in both.jobs[job.after].keys if k in mine]
        if len(ends) < len(both.jobs[job.after].keys) or any(r.end_s > time_s or r.state != GOOD for r in ends):
            return False
    if job.name:
        before = [o for o in both.jobs.values() if o.name == job.name and o.number < job.number]
        if any(k not in mine or mine[k][-1].end_s > time_s for o in before for k in o.keys):
            return False
    if job.throttle and sum(r.key[0] == job.number for r in now) >= job.throttle:
        return False
    return job.licences + sum(both.jobs[r.key[0]].licences for r in now) <= LICENCES


def _fits(job: TwinJob, partition: str, now: Sequence[Run], both: Both, time_s: float) -> bool:
    limits = PARTITIONS[partition]
    if (limits.max_s and job.limit_s > limits.max_s) or (limits.max_nodes and job.nodes > limits.max_nodes):
        return False
    free = [n for n in limits.nodes if job.may_use(n, (partition,)) and _free(job, partition, n, now, both, time_s)]
    groups = [free]
    if job.constraint.startswith("["):
        free = [n for n in limits.nodes if _free(job, partition, n, now, both, time_s)]
        groups = [[n for n in free if w in NODES[n].features] for w in job.constraint.strip("[]").split("|")]
    if "--contiguous" in job.words and job.nodes > 1:
        return False  # Slurm's order of nodes is its own
    return any(job.nodelist <= set(group) and len(group) >= job.nodes for group in groups)


def _free(job: TwinJob, partition: str, name: str, now: Sequence[Run], both: Both, time_s: float) -> bool:
    if both.window and name in RESERVED and time_s < both.window[1] and time_s + job.limit_s > both.window[0]:
        return False
    return _beside(job, partition, name, now, both) and not _kept(job, partition, name, both, time_s)


def _beside(job: TwinJob, partition: str, name: str, now: Sequence[Run], both: Both) -> bool:
    """Does it fit on the node beside what runs there?"""
    here = [r for r in now if name in r.nodes]
    if here and (_whole(job, partition) or any(_whole(both.jobs[r.key[0]], r.partition) for r in here)):
        return False
    gpus, cpus, memory_mib = (
        (sum(column) for column in zip(*(r.each for r in here), strict=True)) if here else (0, 0, 0)
    )
    need = job.cpus_on(job.gpus), job.memory_on(job.gpus)
    return NODES[name].gpus - gpus >= job.gpus and CPUS - cpus >= need[0] and MEMORY_MIB - memory_mib >= need[1]


def _kept(job: TwinJob, partition: str, name: str, both: Both, time_s: float) -> bool:
    """Does Slurm's backfill keep the node for a job before it in Slurm's queue, whose start there it would delay?"""
    for run in both.ours:
        if name not in run.nodes or not time_s < run.start_s < time_s + job.limit_s or run.key[0] >= job.number:
            continue
        waits = both.submitted_s[run.key[0]] <= time_s and not both.jobs[run.key[0]].managed
        if not waits and not any(a <= time_s <= b for a, b in _spans(both.turns.get(run.key, ()))):
            continue
        if not _beside(job, partition, name, [r for r in both.ours if r.at(run.start_s)], both):
            return True
    return False


def _within_limits(job: TwinJob, now: Sequence[Run], jobs: Jobs) -> bool:
    """Of its account and QOS, if it started as well. A node that its account has already counts once more here: it may be another."""
    whole = any(_whole(job, p) for p in job.partitions)
    wants = {"gres/gpu": job.gpus * job.nodes, "cpu": (CPUS if whole else job.cpus_on(job.gpus)) * job.nodes,
             "mem": (MEMORY_MIB if whole else job.memory_on(job.gpus)) * job.nodes, "node": job.nodes}  # fmt: skip
    account = [r for r in now if jobs[r.key[0]].account == job.account]
    same = [r for r in now if jobs[r.key[0]].qos == job.qos and jobs[r.key[0]].user == job.user]
    for limits, members in ((ACCOUNTS[job.account], account), (QOS.get(job.qos, FREE), same)):
        used = tres_of(members)
        if any(used[tres] + wants[tres] > most for tres, most in limits.tres.items()):
            return False
        if limits.jobs is not None and len(members) >= limits.jobs:
            return False
    return True
