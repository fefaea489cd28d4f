"""Random faults, alone and in pairs, on a real cluster full of jobs; after each round all that must hold is checked."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from random import Random

from synergy_core.wire.expander import job_of_expander

from tests.throwaway.chaos_checks import GONE_S, changed_words, longest_gap_s, of_job, taken_over_s, two_leaders
from tests.throwaway.chaos_faults import KINDS, Struck, kinds
from tests.throwaway.chaos_jobs import ChaosJob, Jobs
from tests.throwaway.chaos_site import PARK_S, Site
from tests.throwaway.faults import CALL, STATES

SETTLE_S = 180.0  # twice Park and what a start takes: after that nothing of Synergy's may keep a job waiting
EPOCHS_AGAIN_S = 60.0  # after faults of at most HOLD_S the daemon's back-off is below 16 s
DRAIN_S = 420.0
LIVE_STATES = ("JOINING", "RESTARTING", "RETURNING")  # of changes without a requeue: no call is stopped in them
ORPHAN_S = 30.0  # after which nothing may keep an allocation whose job does not run
STATE_S = 6.0  # longest that is waited for a job in the state that was drawn
HOLD_S = (2.0, 8.0)  # below SlurmdTimeout: beyond it Slurm itself may run a job of a lost node twice
LEADER_HOLD_S = (5.0, 14.0)  # long enough for the other daemon to take over
TRAINING, PLAIN = 3, 1  # jobs in the queue


@dataclass(frozen=True)
class Round:
    """One line of the schedule, known before the run: `seeds` draw what each fault hits."""

    number: int
    state: str
    when: str  # before or after the call that keeps a job in the state
    kinds: tuple[str, ...]
    seeds: tuple[int, ...]
    gap_s: float
    hold_s: float
    plain: bool  # a plain job arrives


def schedule(seed: int, names: Sequence[str]) -> Iterator[Round]:
    """Rounds without end. Each kind comes once before any comes again."""
    rng, bag, number = Random(seed), list[str](), 0

    def draw(before: str = "") -> str:
        if not bag:
            bag.extend(rng.sample(list(names), len(names)))
        # two faults of one thing are no pair: a thing that was killed can't be stopped
        found = next((k for k in bag if not before or k.split("-")[0] != before.split("-")[0]), "")
        if found:
            bag.remove(found)
        return found

    while True:
        number += 1
        chosen = [draw()]
        if rng.random() < 0.4 and (second := draw(chosen[0])):
            chosen.append(second)
        leads = any(k.startswith("synergyd") or k.endswith("cut-off") for k in chosen)
        yield Round(
            number,
            rng.choice((*STATES, *LIVE_STATES, "ANY")),
            rng.choice(("before", "after")),
            tuple(chosen),
            tuple(rng.randrange(1 << 30) for _ in chosen),
            rng.uniform(0.0, 3.0),
            rng.uniform(*(LEADER_HOLD_S if leads else HOLD_S)),
            rng.random() < 0.5,
        )


@dataclass
class Tally:
    """Of one kind of fault. Seconds of single faults alone."""

    run: int = 0
    held: int = 0
    findings: int = 0
    longest_gap_s: float = 0.0
    taken_over_s: list[float] = field(default_factory=list)


class Chaos:
    """One run. `findings` are lines; `tallies` by kind of fault."""

    def __init__(
        self, site: Site, seed: int, *, steps: tuple[int, int] = (100, 350), say: Callable[[str], None] = print
    ) -> None:
        self.site, self.seed, self._steps, self._say = site, seed, steps, say
        self.jobs = Jobs(site)
        self.tallies: dict[str, Tally] = {}
        self.findings: list[str] = []
        self._told: set[tuple[int, str]] = set()
        self._began_s = time.monotonic()
        self._rng = Random(seed)

    def run(self, minutes: float, names: Sequence[str] = ()) -> None:
        """Rounds for so long, then until all jobs have ended."""
        self._began_s = time.monotonic()
        try:
            for planned in schedule(self.seed, names or kinds(self.site)):
                if time.monotonic() - self._began_s > 60 * minutes:
                    break
                self._round(planned)
            self._drain()
        except RuntimeError as error:
            self._find(0, f"the site can't go on: {error}")

    # -- a round ---------------------------------------------------------------------------------------------------

    def _round(self, planned: Round) -> None:
        before = len(self.findings)
        logs = {d.name: d.log.stat().st_size for d in self.site.daemons}
        self._submit(planned.plain or planned.state in CALL)
        state = self._await_state(planned, logs)
        began_s = time.monotonic()
        strucks = self._strike(planned)
        mended_s = time.monotonic()
        self.site.recover()
        problem = self._settle(mended_s)
        settled_s = time.monotonic()
        if problem:
            self._find(0, f"not settled after {settled_s - mended_s:.0f} s: {problem}")
        self._check(began_s)
        if problem:
            self.jobs.release_held()  # one finding is enough: the next round begins in order
        self._count(planned, strucks, before, began_s, settled_s)
        what = " + ".join(f"{k} ({s.what})" if s.what else k for k, s in zip(planned.kinds, strucks, strict=True))
        gap_s = longest_gap_s(self.site.epochs(), began_s, settled_s)
        self._log(
            f"#{planned.number} {state}: {what}, {planned.hold_s:.0f} s; settled {settled_s - mended_s:.1f} s, gap {gap_s:.1f} s"
        )

    def _submit(self, plain: bool) -> None:
        live = self.jobs.live
        for _ in range(TRAINING - sum(j.managed for j in live)):
            self.jobs.submit(self._rng, managed=True, steps=self._steps)
        if plain and sum(not j.managed for j in live) < PLAIN:
            self.jobs.submit(self._rng, managed=False, steps=self._steps)

    def _await_state(self, planned: Round, logs: dict[str, int]) -> str:
        """Waits a while for a job to come to the state, and keeps it there where a call can be stopped."""
        end, call = time.monotonic() + STATE_S, CALL.get(planned.state, "")
        if call:
            self.site.stalls.set(call, planned.when)
        while time.monotonic() < end:
            if call and self.site.stalls.reached(call, planned.when):
                return f"{planned.state} ({planned.when} the call)"
            if not call and (job_id := self.jobs.reached(planned.state, logs)) is not None:
                return f"{planned.state} job {job_id}" if job_id else planned.state
            time.sleep(0.05)
        return f"ANY (no job came to {planned.state})"

    def _strike(self, planned: Round) -> list[Struck]:
        """All faults of the round, from the first one's begin to the last one's end."""
        strucks = [Struck() for _ in planned.kinds]
        entered: list[AbstractContextManager[None]] = []
        call = CALL.get(planned.state, "")
        if any(k.startswith("command") for k in planned.kinds):
            self.site.stalls.clear()  # they are faults of the same calls
            call = ""
        try:
            for i, (kind, seed, struck) in enumerate(zip(planned.kinds, planned.seeds, strucks, strict=True)):
                time.sleep(planned.gap_s if i else 0.0)
                fault = KINDS[kind](self.site, self.jobs, Random(seed), struck)
                struck.at_s = time.monotonic()
                fault.__enter__()
                entered.append(fault)
                if call and not i:
                    self.site.stalls.unset(call, planned.when)
            time.sleep(planned.hold_s)
        finally:
            for fault in reversed(entered):
                fault.__exit__(None, None, None)
        return strucks

    def _settle(self, mended_s: float) -> str:
        """Waits until all is as it should be; returns what is not, "" if nothing."""
        since_s, problem, late = time.time(), "", False
        while time.monotonic() < mended_s + SETTLE_S:
            self.site.watch()
            again = sum(e.acts and e.time_s > mended_s for e in self.site.epochs()) >= 2
            if not again and not late and time.monotonic() > mended_s + EPOCHS_AGAIN_S:
                late = True
                self._find(0, f"no two epochs were completed within {EPOCHS_AGAIN_S:.0f} s after the faults were over")
            problem = "epochs are not completed" if not again else "squeue does not answer"
            if again and self.jobs.look() and not (problem := self.jobs.waiting_for(since_s)):
                return ""
            time.sleep(0.3)
        return problem

    # -- what is found ---------------------------------------------------------------------------------------------

    def _check(self, began_s: float) -> None:
        for text in self.site.mishaps:
            self._find(0, text)
        self.site.mishaps.clear()
        for text in two_leaders(self.site.epochs(), began_s):
            self._find(0, text)
        for job in self.jobs.all:
            for text in of_job(job.seen, time.time(), PARK_S):
                self._find(job.job_id, text)
            if job.live:
                for text in changed_words(job.expected, job.last):
                    self._find(job.job_id, text)
            job.expected.clear()
        for text in self._orphans():
            self._find(0, text)

    def _orphans(self) -> list[str]:
        """Allocations with nodes that joined a job, which outlive the run of that job that they belong to by ORPHAN_S."""
        end = time.monotonic() + ORPHAN_S
        while True:
            shown = self.site.run("squeue", "-h", "-t", "R", "-O", "JobID:20,RestartCnt:10,Name:64")
            rows = [line.split() for line in shown.stdout.splitlines()] if shown else []
            runs = {(int(job_id), int(restarts)) for job_id, restarts, *_ in rows}
            names = [row[2] for row in rows if len(row) == 3]
            alone = [name for name in names if (of := job_of_expander(name)) is not None and of not in runs]
            if not alone or time.monotonic() >= end:
                return [f"orphan: {name} is there {ORPHAN_S:.0f} s after its job's run" for name in alone]
            time.sleep(1.0)

    def _find(self, job_id: int, text: str) -> None:
        """Tells of a finding once a job."""
        key = (job_id, text if not job_id else text.partition(":")[0])
        if job_id and key in self._told:
            return
        self._told.add(key)
        self.findings.append(f"job {job_id}: {text}" if job_id else text)
        self._log(f"FINDING {self.findings[-1]}\n{self._reasons(job_id)}")

    def _reasons(self, job_id: int) -> str:
        """What is needed to see the reason."""
        parts = []
        if job_id:
            job = next(j for j in self.jobs.all if j.job_id == job_id)
            ledger = job.folder / "ledger"
            output = job.folder / "output"
            told = self.site.run("synergyctl", "explain", str(job_id), timeout_s=30)
            parts += [told.stdout + told.stderr if told else "explain does not answer"]
            shown = self.site.run("scontrol", "show", "job", str(job_id))
            parts += [shown.stdout if shown else "", ledger.read_text() if ledger.exists() else "no ledger"]
            parts += [output.read_text(errors="replace")[-1500:] if output.exists() else "no output"]
        for daemon in self.site.daemons:
            parts += [f"-- synergyd {daemon.name}", daemon.tail(15)]
            parts += _about(job_id, daemon.log.read_text(errors="replace"))
        log = (self.site.cluster.folder / "log" / "slurmctld.log").read_text(errors="replace")
        parts += ["-- slurmctld", *(_about(job_id, log) or log.splitlines()[-10:])]
        return "\n".join(f"    {line}" for part in parts for line in part.splitlines())

    def _count(self, planned: Round, strucks: Sequence[Struck], before: int, began_s: float, settled_s: float) -> None:
        found, epochs = len(self.findings) - before, self.site.epochs()
        for kind, struck in zip(planned.kinds, strucks, strict=True):
            tally = self.tallies.setdefault(kind, Tally())
            tally.run += 1
            tally.held += not found
            tally.findings += found
            if len(planned.kinds) == 1:
                tally.longest_gap_s = max(tally.longest_gap_s, longest_gap_s(epochs, began_s, settled_s))
            if struck.leader and (taken_s := taken_over_s(epochs, struck.at_s)) is not None:
                tally.taken_over_s.append(taken_s)

    # -- the end ---------------------------------------------------------------------------------------------------

    def _drain(self) -> None:
        """No more faults: every job must end."""
        end, told_s = time.monotonic() + DRAIN_S, 0.0
        while time.monotonic() < end and not (self.jobs.look() and not self.jobs.live):
            problem = self.jobs.waiting_for(time.time() - STATE_S)  # an admin releases what Slurm itself held
            if time.monotonic() > told_s + 30:
                told_s = time.monotonic()
                self._log(f"no more faults; {len(self.jobs.live)} jobs are to end; {problem or 'all is well'}")
            time.sleep(0.5)
        time.sleep(GONE_S)
        self.jobs.look()
        self._check(self._began_s)
        for job in self.jobs.live:
            self._find(job.job_id, f"does not end: {job.last['job_state']} ({job.last['state_reason']})")

    def table(self) -> str:
        """Faults by kind, and what is to be reported of the whole run."""
        lines = [f"{'fault':<22} {'run':>4} {'held':>4} {'findings':>8} {'longest gap':>11}  take-over"]
        for kind, t in sorted(self.tallies.items()):
            gap = f"{t.longest_gap_s:.1f} s" if t.longest_gap_s else "-"
            taken = ", ".join(f"{s:.1f} s" for s in t.taken_over_s)
            lines.append(f"{kind:<22} {t.run:>4} {t.held:>4} {t.findings:>8} {gap:>11}  {taken}")
        done, cancelled = (sum(test(j) for j in self.jobs.all) for test in (_done, lambda j: "cancel" in j.acts))
        gap_s = max((t.longest_gap_s for t in self.tallies.values()), default=0.0)
        taken_s = [s for t in self.tallies.values() for s in t.taken_over_s]
        lines.append(
            f"seed {self.seed}, {self.site.database}: {sum(t.run for t in self.tallies.values())} faults, "
            f"{len(self.findings)} findings; {len(self.jobs.all)} jobs, {done} done, {cancelled} cancelled by their users, "
            f"{self.jobs.slurm_held} held by Slurm itself; longest time without an epoch with single faults {gap_s:.1f} s; "
            f"longest take-over {max(taken_s, default=0.0):.1f} s of {len(taken_s)}"
        )
        return "\n".join([*lines, *self.findings])

    def _log(self, text: str) -> None:
        self._say(f"[{time.monotonic() - self._began_s:5.0f} s] {text}")


def _done(job: ChaosJob) -> bool:
    return any(x.what == "done" for x in job.seen.ledger)


def _about(job_id: int, log: str) -> list[str]:
    """The last lines of a log that name a job."""
    marks = (f"job {job_id} ", f"job {job_id}:", f"JobId={job_id} ", f"JobId={job_id}\n")
    return [x for x in log.splitlines() if any(m in f"{x}\n" for m in marks)][-15:] if job_id else []
