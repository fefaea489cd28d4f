"""What must hold of the jobs of one cluster of a twin run, by `sacct -D` alone: pure. Each function returns findings.

All of them are asked of the plain cluster too: what is found there is a fault of the check.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from tests.throwaway.twin_jobs import (
    ACCOUNTS,
    CPUS,
    LICENCES,
    MEMORY_MIB,
    MINUTE_S,
    NODES,
    PARTITIONS,
    QOS,
    QUICK_S,
    RESERVED,
    AccountFacts,
    TwinJob,
)  # fmt: skip

Key = tuple[int, int]  # number of the job, task of its array
#: Slurm looks at time limits each 30 s, and ends a job within KillWait
LIMIT_LATE_S = 60.0
#: sacct's whole seconds; and a job's end is noted when its node has told it, up to a second after what waits for it may start
SECONDS_S = 2.0
GOOD = "COMPLETED"


@dataclass(frozen=True, kw_only=True)
class Run:
    """One incarnation: a line of `sacct -D`. TRES are of all nodes together; times in whole seconds since 1970, `end_s` is not in it."""

    key: Key
    start_s: float
    end_s: float
    nodes: tuple[str, ...]
    gpus: int
    cpus: int
    memory_mib: int
    partition: str
    limit_s: float | None
    state: str

    @property
    def each(self) -> tuple[int, int, int]:
        """GPUs, CPUs and MiB of each of its nodes."""
        count = len(self.nodes)
        return self.gpus // count, self.cpus // count, self.memory_mib // count

    def at(self, time_s: float) -> bool:
        return self.start_s <= time_s < self.end_s


@dataclass(frozen=True)
class Finding:
    """`kind`: one word for the table."""

    kind: str
    key: Key
    text: str


Jobs = Mapping[int, TwinJob]
Check = Callable[[Jobs, Sequence[Run]], Iterator[Finding]]


def breaches(jobs: Jobs, runs: Sequence[Run], window: tuple[float, float] | None) -> list[Finding]:
    """All that breaks a limit or runs where it may not. `window`: of the maintenance."""
    found = [f for check in (placed, sized, timed, twice, ordered, totals) for f in check(jobs, runs)]
    return found + list(maintained(runs, window))


def placed(jobs: Jobs, runs: Sequence[Run]) -> Iterator[Finding]:
    """Nodes, features, types and partitions are those that the options allow."""
    for run in runs:
        job = jobs[run.key[0]]
        wrong = [n for n in run.nodes if run.partition not in job.partitions or not job.may_use(n, (run.partition,))]
        if wrong and not job.constraint.startswith("["):
            yield Finding(
                "place", run.key, f"ran on {', '.join(wrong)} of partition {run.partition}, which it may not use"
            )
        if not job.nodelist <= set(run.nodes):
            yield Finding("place", run.key, f"ran on {', '.join(run.nodes)}, without {', '.join(job.nodelist)}")
        if (most := PARTITIONS[run.partition].max_nodes) and len(run.nodes) > most:
            yield Finding("place", run.key, f"has {len(run.nodes)} nodes in partition {run.partition}")
        if job.constraint.startswith("[") and not _one_of(job.constraint, run.nodes):
            yield Finding(
                "place", run.key, f"ran on {', '.join(run.nodes)}, which do not share one of {job.constraint}"
            )


def sized(jobs: Jobs, runs: Sequence[Run]) -> Iterator[Finding]:
    """GPUs within the directive's bounds (as asked, without one), CPUs and memory as the options say."""
    for run in runs:
        job = jobs[run.key[0]]
        asked, (gpus, cpus, memory_mib) = job.gpus * job.nodes, run.each
        low, high = (job.min_gpus, job.max_gpus or asked) if job.managed else (asked, asked)
        whole = job.exclusive or PARTITIONS[run.partition].whole_nodes
        if not low <= run.gpus or (run.gpus > high and not whole):
            yield Finding("size", run.key, f"had {run.gpus} GPUs, and may have {low} to {high}")
        if job.form != "no-nodes" and cpus < job.cpus_on(
            min(gpus, job.gpus) if not job.managed else gpus if not whole else 0
        ):
            yield Finding("size", run.key, f"had {cpus} CPUs and {gpus} GPUs on each node")
        if whole and cpus < CPUS:
            yield Finding("size", run.key, f"had {cpus} CPUs of a node that is to be its own")
        if not whole and job.form != "no-nodes" and memory_mib < job.memory_on(gpus):
            yield Finding("size", run.key, f"had {memory_mib} MiB on each node, and asked for {job.memory_on(gpus)}")


def timed(jobs: Jobs, runs: Sequence[Run]) -> Iterator[Finding]:
    """All incarnations together keep the time limit, and no limit is above the partition's or the QOS's."""
    for key, mine in by_key(runs).items():
        job = jobs[key[0]]
        spent_s, granted_s = 0.0, float(job.limit_s * (1 + job.continues))
        for run in mine:
            most_s = min(PARTITIONS[run.partition].max_s or granted_s, QUICK_S if job.qos == "quick" else granted_s)
            if run.limit_s is None or run.limit_s > min(job.limit_s, most_s):
                yield Finding("time", key, f"had a time limit of {run.limit_s} s, and asked for {job.limit_s} s")
            elif spent_s + run.limit_s > granted_s + MINUTE_S:
                yield Finding("time", key, f"had {run.limit_s:.0f} s after {spent_s:.0f} s of {granted_s:.0f} s")
            spent_s += run.end_s - run.start_s
        if spent_s > granted_s + LIMIT_LATE_S:
            yield Finding("time", key, f"ran for {spent_s:.0f} s of {granted_s:.0f} s")


def twice(jobs: Jobs, runs: Sequence[Run]) -> Iterator[Finding]:
    """No two incarnations at once; a plain job has one."""
    for key, mine in by_key(runs).items():
        for before, after in pairwise(mine):
            if after.start_s < before.end_s:
                yield Finding(
                    "twice", key, f"an incarnation began {before.end_s - after.start_s:.0f} s before the last one's end"
                )
        if len(mine) > 1 and not jobs[key[0]].managed:
            yield Finding("twice", key, f"a plain job was started {len(mine)} times")
        if any(run.state == GOOD for run in mine[:-1]):
            yield Finding("twice", key, "was started again after its end")


def ordered(jobs: Jobs, runs: Sequence[Run]) -> Iterator[Finding]:
    """Dependencies and array throttles."""
    mine = by_key(runs)
    ends = {number: [mine[k][-1] for k in job.keys if k in mine] for number, job in jobs.items()}
    for key, own in mine.items():
        job = jobs[key[0]]
        if job.after is not None and not job.name:
            before = ends[job.after]
            if len(before) < len(jobs[job.after].keys) or any(
                r.end_s > own[0].start_s + SECONDS_S or r.state != GOOD for r in before
            ):
                known = ", ".join(f"{r.state} {r.end_s - own[0].start_s:.0f} s after" for r in before)
                yield Finding("order", key, f"started before the good end of job {job.after} ({known})")
    for name in {job.name for job in jobs.values() if job.name}:
        spans = sorted((own[0].start_s, own[-1].end_s, k) for k, own in mine.items() if jobs[k[0]].name == name)
        for (_, end_s, _), (start_s, _, key) in pairwise(spans):
            if start_s < end_s:
                yield Finding("order", key, f"ran beside another job named {name} (singleton)")
    for number, job in jobs.items():
        if job.throttle:
            ours = [r for k in job.keys for r in mine.get(k, ())]
            for time_s, now in moments(ours):
                if len(now) > job.throttle:
                    yield Finding(
                        "order",
                        now[-1].key,
                        f"{len(now)} tasks of array {number} at {time_s:.0f}, with %{job.throttle}",
                    )
                    break


def totals(jobs: Jobs, runs: Sequence[Run]) -> Iterator[Finding]:
    """At every moment: nodes are not overbooked or shared where they may not be; limits of accounts and QOS; licences."""
    told: set[tuple[str, str]] = set()
    for time_s, now in moments(runs):
        for what, text, run in _over(jobs, now):
            if (what, text) not in told:
                told.add((what, text))
                yield Finding("limit", run.key, f"at {time_s:.0f}: {what}: {text}")


def maintained(runs: Sequence[Run], window: tuple[float, float] | None) -> Iterator[Finding]:
    """Nobody on nodes under maintenance. Slurm itself lets a job on whose end is late by its look at limits."""
    for run in runs:
        if (
            window
            and set(run.nodes) & set(RESERVED)
            and run.start_s < window[1]
            and run.end_s > window[0] + LIMIT_LATE_S
        ):
            yield Finding(
                "maintenance", run.key, f"ran on {', '.join(run.nodes)} until {run.end_s - window[0]:.0f} s into it"
            )
        if window and set(run.nodes) & set(RESERVED) and window[0] <= run.start_s < window[1]:
            yield Finding("maintenance", run.key, f"started on {', '.join(run.nodes)} during it")


def lost(jobs: Jobs, ours: Sequence[Run], plain: Sequence[Run]) -> Iterator[Finding]:
    """`ours`: of the cluster with Synergy. Its jobs start where their twins did, and end as well."""
    mine, theirs = by_key(ours), by_key(plain)
    for key, twin in theirs.items():
        state = mine[key][-1].state if key in mine else ""
        good = twin[-1].state in (GOOD, "TIMEOUT")
        if not state:
            yield Finding("never", key, "never started, and its twin did")
        elif good and state not in (GOOD, "TIMEOUT"):
            yield Finding("lost", key, f"ended as {state}, its twin as {twin[-1].state}")
        elif state == "TIMEOUT" and twin[-1].state == GOOD:
            yield Finding("lost", key, "ended at its time limit, its twin before")


# -- what the checks share -----------------------------------------------------------------------------------------------


def by_key(runs: Sequence[Run]) -> dict[Key, list[Run]]:
    """Incarnations of each job, the first one first."""
    found: dict[Key, list[Run]] = {}
    for run in sorted(runs, key=lambda r: (r.start_s, r.end_s)):
        found.setdefault(run.key, []).append(run)
    return found


def moments(runs: Sequence[Run]) -> Iterator[tuple[float, list[Run]]]:
    """Each moment at which a run begins, with all that run then."""
    for time_s in sorted({r.start_s for r in runs}):
        yield time_s, [r for r in runs if r.at(time_s)]


def tres_of(runs: Sequence[Run]) -> Counter[str]:
    """What Slurm counts of runs of one account: nodes once, though several jobs be on one."""
    return Counter(
        {
            "gres/gpu": sum(r.gpus for r in runs),
            "cpu": sum(r.cpus for r in runs),
            "mem": sum(r.memory_mib for r in runs),
            "node": len({n for r in runs for n in r.nodes}),
        }
    )


def _least(jobs: Jobs, run: Run) -> tuple[int, int, int]:
    """GPUs, CPUs and MiB that a run has on each of its nodes: where it asked for a total of GPUs, Slurm may have spread them unevenly."""
    return (1, 1, 0) if jobs[run.key[0]].form == "no-nodes" and len(run.nodes) > 1 else run.each


def _over(jobs: Jobs, now: Sequence[Run]) -> Iterator[tuple[str, str, Run]]:
    for name, facts in NODES.items():
        here = [r for r in now if name in r.nodes]
        gpus, cpus, memory_mib = (
            (sum(column) for column in zip(*(_least(jobs, r) for r in here), strict=True)) if here else (0, 0, 0)
        )
        if any(jobs[r.key[0]].exclusive or PARTITIONS[r.partition].whole_nodes for r in here):
            gpus = min(gpus, facts.gpus)  # whole nodes: GPUs of all together, and they differ
        if gpus > facts.gpus or cpus > CPUS or memory_mib > MEMORY_MIB:
            yield name, f"{gpus} GPUs, {cpus} CPUs, {memory_mib} MiB are given out", here[-1]
        alone = [r for r in here if jobs[r.key[0]].exclusive or PARTITIONS[r.partition].whole_nodes]
        if alone and len(here) > 1:
            yield name, f"shared by {len(here)} jobs, and {alone[0].key} asked for whole nodes", here[-1]
    groups: dict[str, tuple[AccountFacts, list[Run]]] = {}
    for run in now:
        job = jobs[run.key[0]]
        groups.setdefault(f"account {job.account}", (ACCOUNTS[job.account], []))[1].append(run)
        if job.qos in QOS:
            groups.setdefault(f"QOS {job.qos} of {job.user}", (QOS[job.qos], []))[1].append(run)
    for name, (limits, members) in groups.items():
        used = tres_of(members)
        for tres, most in limits.tres.items():
            if used[tres] > most:
                yield name, f"{used[tres]} {tres} of {most}", members[-1]
        if limits.jobs is not None and len(members) > limits.jobs:
            yield name, f"{len(members)} jobs of {limits.jobs}", members[-1]
    licences = [r for r in now if jobs[r.key[0]].licences]
    if sum(jobs[r.key[0]].licences for r in licences) > LICENCES:
        yield "licences", f"{len(licences)} jobs of {LICENCES}", licences[-1]


def _one_of(constraint: str, nodes: Sequence[str]) -> bool:
    """All nodes have the same one of `[a|b]`."""
    return any(all(word in NODES[n].features for n in nodes) for word in constraint.strip("[]").split("|"))
