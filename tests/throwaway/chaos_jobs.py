"""The jobs of a chaos run: training jobs that end after some steps, plain ones beside them, and what their users do."""

from __future__ import annotations

import re
import shlex
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from synergy_core.wire.hostlist import expand

from tests.throwaway import agent_job
from tests.throwaway.chaos_checks import ENDED, JobSeen
from tests.throwaway.chaos_site import GPUS, Site
from tests.throwaway.ledger import read_ledger
from tests.throwaway.slurm_output import job_rows

END_S = 30.0  # from a job's last word to its leaving of the nodes
LIFE_RE = re.compile(r"job (\d+) ([A-Z]+): ")
_TRAINING = """#!/bin/bash
#SBATCH -J train{n} -N1 --gres=gpu:{gpus} --open-mode=append -o {folder}/output
#SYNERGY min_gpus=1 max_gpus=8 global_batch=8 checkpoint={folder}/checkpoints
export STALLS={stalls}
srun() {{
  for try in 1 2 3 4 5 6; do
    command srun $overlap "$@"
    code=$?
    # a step whose launch failed for want of munge is never freed, and holds the GPUs against the next
    overlap=--overlap
    # an srun that never came so far as to start the job: Slurm's own failure
    grep -q "^start ${{SLURM_RESTART_COUNT:-0}} " {folder}/ledger && break
    sleep 3
  done
  return $code
}}
srun synergy-launch --runner python --checkpoint {folder}/checkpoints {job} {folder}/ledger {steps}
"""
_PLAIN = """#!/bin/bash
#SBATCH -J plain{n} -N1 --gres=gpu:{gpus} --open-mode=append -o {folder}/output
exec 9> {folder}/alive
say() {{ echo "$1 ${{SLURM_RESTART_COUNT:-0}} 0 $$ $(date +%s)" >> {folder}/ledger; }}
flock -n 9 || say overlap
say start
sleep {seconds} 9>&-
say done
"""


@dataclass
class ChaosJob:
    """One submitted job. `acts`: as JobSeen has them; `expected`: fields that its user wrote last."""

    job_id: int
    managed: bool
    gpus: int
    folder: Path
    at_sbatch: Mapping[str, Any]
    last: Mapping[str, Any]
    here: bool = True
    acts: set[str] = field(default_factory=set)
    expected: dict[str, Any] = field(default_factory=dict)
    seen_s: float = field(default_factory=time.monotonic)  # when it was last in the queue
    free_s: float = field(default_factory=time.monotonic)  # when it last had a priority above 0

    @property
    def seen(self) -> JobSeen:
        return JobSeen(
            job_id=self.job_id,
            managed=self.managed,
            at_sbatch=self.at_sbatch,
            last=self.last,
            here=self.here,
            ledger=read_ledger(self.folder / "ledger"),
            acts=frozenset(self.acts),
            held_s=time.monotonic() - self.free_s,
            gone_s=0.0 if self.live else time.monotonic() - self.seen_s,
            output=_end_of(self.folder / "output"),
        )

    @property
    def live(self) -> bool:
        """It may still run."""
        return self.here and self.last["job_state"] not in ENDED

    def steps_since(self, time_s: float) -> bool:
        """Its present incarnation has made a step since then, or it is done."""
        if done := [x for x in read_ledger(self.folder / "ledger") if x.what == "done"]:
            return time.time() < done[-1].time_s + END_S
        path = self.folder / "checkpoints" / "steps.jsonl"
        if not self.managed or not path.exists():
            return not self.managed
        lines = path.read_text().splitlines()
        return path.stat().st_mtime > time_s and f'"restarts": {self.last["restart_cnt"]},' in (lines or [""])[-1]


def _end_of(path: Path) -> str:
    return path.read_text(errors="replace")[-2000:] if path.exists() else ""


class Jobs:
    """All that were submitted, and the queue as it was last seen."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.all: list[ChaosJob] = []
        self.submitted_s = 0.0  # monotonic
        self.to_release: list[ChaosJob] = []  # their users hold them no longer
        self.slurm_held = 0  # plain jobs that Slurm itself held after a failed launch

    @property
    def live(self) -> list[ChaosJob]:
        return [j for j in self.all if j.live]

    def look(self) -> bool:
        """Reads the queue; False where Slurm does not answer."""
        done = self.site.run("squeue", "-a", "--json", timeout_s=5)
        if done is None or done.returncode:
            return False
        try:
            rows = {j["job_id"]: j for j in job_rows(done.stdout)}
        except ValueError:
            return False
        for job in self.all:
            job.here = job.job_id in rows
            job.last = rows.get(job.job_id, job.last)
            job.seen_s = time.monotonic() if job.live else job.seen_s
            job.free_s = job.free_s if job.here and not job.last["priority"] else time.monotonic()
        return True

    def submit(self, rng: Random, *, managed: bool, steps: tuple[int, int]) -> ChaosJob:
        """sbatch of one more job. `steps`: least and most, of 0.8 GPU seconds each. Raises RuntimeError."""
        number, gpus = len(self.all) + 1, rng.choice((2, GPUS))
        folder = self.site.cluster.folder / "jobs" / str(number)
        folder.mkdir(parents=True)
        words = {
            "n": number, "gpus": gpus, "folder": shlex.quote(str(folder)), "job": shlex.quote(agent_job.__file__),
            "steps": rng.randint(*steps), "seconds": rng.randint(10, 30),
            "stalls": shlex.quote(str(self.site.stalls.folder)),
        }  # fmt: skip
        job_id = self.site.cluster.sbatch((_TRAINING if managed else _PLAIN).format(**words))
        self.submitted_s = time.monotonic()
        queue = job_rows(self.site.cluster.run("squeue", "-a", "--json").stdout)
        row = next(j for j in queue if j["job_id"] == job_id)
        self.all.append(ChaosJob(job_id, managed, gpus, folder, row, row))
        return self.all[-1]

    def pick(self, rng: Random) -> ChaosJob | None:
        """A training job in the queue."""
        found = [j for j in self.live if j.managed]
        return found[rng.randrange(1000) % len(found)] if found else None

    def idle_gpus(self) -> int:
        """The most that no job has on any one node."""
        free = dict.fromkeys(self.site.cluster.node_names, GPUS)
        for job in self.all:
            if job.here and job.last["nodes"] and job.last["job_state"] in ("RUNNING", "COMPLETING", "SUSPENDED"):
                for name in expand(job.last["nodes"], "squeue"):
                    free[name] -= int(job.last["tres_per_node"].rpartition(":")[2])
        return max(free.values())

    def waiting_for(self, since_s: float) -> str:
        """Why not all jobs are as they should be when nothing fails ("" if they are). `since_s`: seconds since 1970."""
        for job in list(self.to_release):
            if job.live and not job.last["priority"]:
                release(self, job)
                return f"job {job.job_id} is to be released"
            self.to_release.remove(job)
            job.acts.discard("hold")
        idle = self.idle_gpus()
        for job in self.live:
            state = job.last["job_state"]
            who = f"job {job.job_id} ({'training' if job.managed else 'plain'})"
            if state == "RUNNING":
                if not job.steps_since(since_s):
                    return f"{who} runs and makes no steps, or is done and runs on"
            elif state != "PENDING":
                return f"{who} is {state}"
            elif not job.managed and job.last["priority"] == 0:
                self.slurm_held += 1  # Slurm itself does that when a launch fails; its admin releases it
                self.site.did("scontrol", "release", str(job.job_id))
                return f"{who} is held by Slurm"
            elif job.last["restart_cnt"] and job.last["eligible_time"] > time.time():
                continue  # requeued by Slurm, which puts it off; `held` says for how long it may
            elif "hold" not in job.acts and idle >= job.gpus:
                return f"{who} waits ({job.last['state_reason']}) although {idle} GPUs of a node are idle"
        return ""

    def release_held(self) -> None:
        """An admin releases what nobody meant to hold."""
        for job in self.live:
            if not job.last["priority"] and "hold" not in job.acts:
                self.site.did("scontrol", "release", str(job.job_id))

    def reached(self, state: str, since: Mapping[str, int]) -> int | None:
        """A job that a daemon has logged as coming to `state`, in what it logged beyond byte `since` (by daemon)."""
        if state == "ANY":
            return 0
        for daemon in self.site.daemons:
            text = daemon.log.read_bytes()[since.get(daemon.name, 0) :].decode(errors="replace")
            if found := [int(m[1]) for m in LIFE_RE.finditer(text) if m[2] == state]:
                return found[-1]
        return None


# -- what users do -----------------------------------------------------------------------------------------------------


def cancel(jobs: Jobs, job: ChaosJob) -> None:
    job.acts.add("cancel")
    jobs.site.run("scancel", str(job.job_id))


def requeue(jobs: Jobs, job: ChaosJob) -> None:
    jobs.site.run("scontrol", "requeue", str(job.job_id))


def hold(jobs: Jobs, job: ChaosJob) -> None:
    job.acts.add("hold")
    jobs.site.run("scontrol", "uhold", str(job.job_id))


def release(jobs: Jobs, job: ChaosJob) -> None:
    jobs.site.run("scontrol", "release", str(job.job_id))


def update(jobs: Jobs, job: ChaosJob, rng: Random) -> None:
    """A field that is the user's own."""
    key, name, value = rng.choice(
        (("Comment", "comment", f"mine-{rng.randrange(1000)}"), ("TimeLimit", "time_limit", rng.randint(100, 10_000)))
    )
    if jobs.site.did("scontrol", "update", f"JobId={job.job_id}", f"{key}={value}"):
        job.expected[name] = value
