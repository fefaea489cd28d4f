"""The twin run: the same random jobs at the same moments on two clusters, one with Synergy, one without #SYNERGY lines. No job
of the first may be worse off. What counts as that is said in twin_late.py, what else must hold in twin_checks.py."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median

from tests.throwaway.ledger import lost_steps, overlaps, read_ledger, twice_started
from tests.throwaway.twin_checks import Finding, Key, Run, breaches, by_key, lost
from tests.throwaway.twin_jobs import TwinJob, generate
from tests.throwaway.twin_late import KINDS, Both, Late, delays, late, worse_off
from tests.throwaway.twin_site import CHECKPOINT_S, Side, Twins, ledger_of

GPU_SECONDS = 50.0  # of a job on average, as drawn
GPUS = 22
LOAD = 0.9  # of the GPUs, while jobs come
CLOCK_S = 3.0  # sacct's whole seconds of two clusters, and Slurm's own scheduler, which looks each second
#: requeue (KillWait), RestartDelay, release and start on a busy machine
RESTART_S = 12.0
QUIET_S = 45.0  # the plain cluster has started nothing for so long, and nothing runs: what is left there never starts
FOLLOW_S = 180.0  # that the other has from then on
ROWS = 12


@dataclass(frozen=True)
class Outcome:
    """Of one run. `plain_breaches`: what the checks find on the plain cluster, where there is nothing to find."""

    both: Both
    findings: Sequence[Finding]
    plain_breaches: Sequence[Finding]
    lates: Sequence[Late]
    waits: Mapping[Key, float]
    refused: int

    def table(self) -> str:
        """What is to be reported."""
        by_s = sorted(self.waits.values())
        lines = (
            [
                f"{len(self.both.jobs)} sbatch calls, {self.refused} refused by both; {len(by_s)} jobs and tasks started on both clusters",
                f"started later than the twin by (s): median {median(by_s):.0f}, p90 {_at(by_s, 0.9):.0f}, p99 {_at(by_s, 0.99):.0f}, "
                f"worst {by_s[-1]:.0f}, earliest {by_s[0]:.0f}, mean {sum(by_s) / len(by_s):.1f}",
                f"late by more than {self.both.grace_s:.0f} s: {len(self.lates)}; seconds of them: "
                + ", ".join(f"{k} {sum(one.spent_s[k] for one in self.lates):.0f}" for k in KINDS),
            ]
            if by_s
            else ["no job started on both clusters"]
        )
        kinds = sorted({f.kind for f in self.findings})
        lines.append(
            "findings: " + (", ".join(f"{sum(f.kind == k for f in self.findings)} {k}" for k in kinds) or "none")
        )
        lines += [f"FINDING {_line(f, self.both.jobs)}" for f in self.findings]
        lines += [
            f"FAULT OF THE CHECK (found on the plain cluster) {_line(f, self.both.jobs)}" for f in self.plain_breaches
        ]
        return "\n".join(lines)


def run(
    count: int,
    seed: int,
    *,
    epoch_s: float = 5.0,
    verbose: bool = False,
    maintenance: bool = True,
    say: Callable[[str], None] = print,
) -> Outcome:
    """`count` sbatch calls on both clusters, and what is found. Raises RuntimeError where a cluster does not come up."""
    span_s = count * GPU_SECONDS / GPUS / LOAD
    jobs = generate(count, seed, span_s)
    with Twins(epoch_s) as twins:
        say(
            f"up; {count} jobs in {span_s:.0f} s; {twins.ours.cluster.folder} with Synergy, {twins.plain.cluster.folder} without"
        )
        if maintenance:
            twins.maintain(0.6 * span_s, 1)
        submitted_s = _submit(twins, jobs, say)
        _follow(twins, say)
        outcome = _judge(twins, jobs, submitted_s)
        told = [
            *outcome.findings,
            *(Finding("late", one.key, f"by {one.by_s:.0f} s") for one in outcome.lates if verbose),
        ]
        for finding in told:
            say(_reasons(twins, outcome, finding))
    return outcome


def _submit(twins: Twins, jobs: Sequence[TwinJob], say: Callable[[str], None]) -> dict[int, float]:
    began_s, submitted_s = time.time(), dict[int, float]()
    for job in jobs:
        while (left_s := began_s + job.submit_s - time.time()) > 0:
            time.sleep(min(left_s, 0.5))
            twins.on_both("look")
        submitted_s[job.number] = time.time()
        twins.on_both("submit", job)
        if job.number % 25 == 0:
            say(
                f"[{time.time() - began_s:5.0f} s] {job.number} submitted; {', '.join(_queue(side) for side in twins.sides)}"
            )
    return submitted_s


def _follow(twins: Twins, say: Callable[[str], None]) -> None:
    """Waits until all that starts on the plain cluster has ended, and all that started there has on the other."""
    quiet_s = told_s = time.time()
    started: set[Key] = set()
    while True:
        twins.on_both("look")
        states = {key: looks[-1] for key, looks in twins.plain.looks.items()}
        now_s = time.time()
        here = {key for key, (at_s, _, _) in states.items() if now_s - at_s < 5}
        running = {key for key in here if states[key][1] not in ("PENDING",)}
        started |= running
        if running or not here:
            quiet_s = now_s if running else quiet_s
        ours = {key: looks[-1] for key, looks in twins.ours.looks.items() if now_s - looks[-1][0] < 5}
        refused = twins.plain.refused.keys()
        waited_for = [
            key
            for key, (_, state, _) in ours.items()
            if (key not in here and key[0] not in refused) or state != "PENDING"
        ]
        if now_s - told_s > 30:
            told_s = now_s
            say(f"[end] {', '.join(_queue(side) for side in twins.sides)}; {len(waited_for)} are to end")
        still = not here or now_s - quiet_s > QUIET_S
        if still and (not waited_for or now_s - quiet_s > QUIET_S + FOLLOW_S):
            time.sleep(3)  # slurmdbd is told a little later
            return
        time.sleep(1)


def _queue(side: Side) -> str:
    now_s = time.time()
    last = [looks[-1] for looks in side.looks.values() if now_s - looks[-1][0] < 5]
    return f"{sum(s == 'RUNNING' for _, s, _ in last)} run, {sum(s == 'PENDING' for _, s, _ in last)} wait"


def _judge(twins: Twins, jobs: Sequence[TwinJob], submitted_s: Mapping[int, float]) -> Outcome:
    # what depends on a job that was refused was submitted without that
    by_number = {j.number: j if j.after is None or j.after in twins.ours.ids else replace(j, after=None) for j in jobs}
    ours, plain = twins.ours.runs(), twins.plain.runs()
    both = Both(
        jobs=by_number,
        submitted_s=submitted_s,
        ours=ours,
        plain=plain,
        window=twins.window,
        grace_s=2 * twins.epoch_s + CLOCK_S,
        give_back_s=2 * twins.epoch_s + CLOCK_S + CHECKPOINT_S + RESTART_S,
        told=twins.ours.told(),
        turns=twins.ours.turns,
    )
    findings = [*breaches(by_number, ours, twins.window), *lost(by_number, ours, plain), *worse_off(both)]
    for number in twins.ours.refused.keys() ^ twins.plain.refused.keys():
        words = twins.ours.refused.get(number) or twins.plain.refused[number]
        if not any(r.key[0] == number for r in (plain if number in twins.ours.refused else ours)):
            continue  # Slurm looks at nodes only where no limit is in the way at that moment: the other waits for ever
        who = "only with Synergy" if number in twins.ours.refused else "only without Synergy"
        findings.append(Finding("refused", (number, 0), f"refused {who}: {words}"))
    for key in by_key(ours):
        lines = read_ledger(ledger_of(twins.ours, key))
        steps = lost_steps(lines) if by_number[key[0]].trains else []
        findings += [Finding("twice", key, t) for t in (*overlaps(lines), *twice_started(lines))]
        findings += [Finding("steps", key, t) for t in steps]
    refused = len(twins.ours.refused.keys() & twins.plain.refused.keys())
    return Outcome(both, findings, breaches(by_number, plain, twins.window), late(both), delays(both), refused)


def _reasons(twins: Twins, outcome: Outcome, finding: Finding) -> str:
    """What is needed to see the reason of a finding."""
    key, both = finding.key, outcome.both
    ids = [raw for raw, k in twins.ours.raw.items() if k == key] or [twins.ours.ids.get(key[0], 0)]
    lines = [f"-- {_line(finding, both.jobs)}", f"   {both.jobs[key[0]]}"]
    for name, side, runs in (("ours", twins.ours, both.ours), ("twin", twins.plain, both.plain)):
        mine = [_words(r, both.submitted_s[key[0]]) for r in runs if r.key == key]
        lines.append(f"   {name}: {'; '.join(mine)}")
        looks = side.looks.get(key, [])
        changes = [one for i, one in enumerate(looks) if not i or one[1:] != looks[i - 1][1:]]
        lines.append("   " + "; ".join(f"{at - both.submitted_s[key[0]]:.0f}: {s} {r}" for at, s, r in changes[:ROWS]))
    one = next((x for x in outcome.lates if x.key == key), None)
    lines += [f"   {one}"] if one else []
    lines += [f"   told {at - both.submitted_s[key[0]]:.0f}: {why}" for at, why in both.told.get(key, ())[:ROWS]]
    told = twins.ours.cluster.run("synergyctl", "explain", str(ids[-1]), check=False)
    lines += [f"   | {x}" for x in told.stdout.splitlines()[:60]]
    return "\n".join(lines)


def _words(run: Run, since_s: float) -> str:
    nodes = ",".join(run.nodes)
    return f"{run.start_s - since_s:.0f}-{run.end_s - since_s:.0f} s {nodes} {run.gpus} GPUs {run.cpus} CPUs {run.partition} {run.state}"


def _line(finding: Finding, jobs: Mapping[int, TwinJob]) -> str:
    job = jobs[finding.key[0]]
    kind = "plain" if not job.managed else "training" if job.trains else "directive"
    return f"{finding.kind}: job {finding.key[0]}.{finding.key[1]} ({kind}): {finding.text}"


def _at(values: Sequence[float], share: float) -> float:
    return values[min(len(values) - 1, int(share * len(values)))]
