"""Slurm's jobs in memory, as narrow as the actuator needs: states, start times, restart counts, updates that may fail half-way."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from synergy_core.records import JobState
from synergy_core.wire.hostlist import expand

from synergyd.control.arrivals import JobCounts
from synergyd.control.resize.events import Observed
from synergyd.slurm.client import SlurmError
from synergyd.slurm.parsed.associations import AccountingRules
from synergyd.slurm.parsed.job_forms import is_pending_array_remainder
from synergyd.slurm.parsed.reservations import SHIELD_FLAGS, SHIELD_S
from synergyd.slurm.parsed.rows import JobRow, PartitionRow
from synergyd.slurm.parsed.snapshot import gpuless, has_launch_failed, state_from_row

COMPLETING_S = 4.0  # from a job's end to its leaving, or to PENDING
CRED_EXPIRE_S = 121.0  # Slurm's own delay after a requeue
COUNTED = {"main": PartitionRow(name="main", gpus=8)}  # Slurm counts GPUs


def row(job_id: int = 1, **changes: object) -> JobRow:
    """A resizable job of one node with two untyped GPUs, pending and eligible."""
    plain = JobRow(
        job_id=job_id, name="train", user="ann", uid=1000, partition="main", state="PENDING", reason="Priority", num_nodes=1,
        num_cpus=8, num_tasks=1, tres_per_node="gres:gpu:2", tres_other="", node_names=(), submit_s=0.0, start_s=None,
        eligible_s=0.0, restarts=0, requeue=True, priority=100, batch=True, array=False, het=False,
    )  # fmt: skip
    return replace(plain, **changes)  # type: ignore[arg-type]


@dataclass
class FakeSlurm:
    """A SlurmWriter over `jobs`. `calls` records each write as the command's words; `requeued` the (job, incarnation) really ended.

    Knobs: `away` (nothing answers), `refuse` (words in a call -> (message, transient)), `ignore` (fields accepted in silence and not
    set), `full` (nothing can start).
    """

    now_s: float = 1000.0
    jobs: dict[int, JobRow] = field(default_factory=dict)
    required: dict[int, str] = field(default_factory=dict)
    excluded: dict[int, tuple[str, ...]] = field(default_factory=dict)
    partition_rows: tuple[PartitionRow, ...] = ()
    leaves: dict[str, str] = field(default_factory=dict)
    comments: dict[int, str] = field(default_factory=dict)
    calls: list[list[str]] = field(default_factory=list)
    requeued: list[tuple[int, int]] = field(default_factory=list)
    signals: list[tuple[int, int, float]] = field(default_factory=list)
    rules: AccountingRules = field(default_factory=AccountingRules)
    assoc_mgr: str = ""
    assoc_reads: int = 0
    acts_as_owner: bool = True
    away: bool = False
    refuse: dict[str, tuple[str, bool]] = field(default_factory=dict)
    ignore: set[str] = field(default_factory=set)
    full: bool = False
    failed: list[int] = field(default_factory=list)  # jobs that Slurm failed: started in the second of their revocation
    wait_s: float = 0.0  # WaitTime
    script: str | None = None  # every job's
    woken: list[str] = field(default_factory=list)  # nodes that were asked to power up
    submitted: int = 0  # as sdiag tells it
    ended: int = 0  # likewise
    counts: bool = True  # sdiag answers
    silent: set[str] = field(default_factory=set)  # nodes that have not registered since a takeover
    reserved: str = ""  # as scontrol shows reservations
    drained: dict[str, str] = field(default_factory=dict)  # reason by node
    ran_s: dict[int, float] = field(default_factory=dict)  # by job: seconds of all incarnations that ended
    mail_types: dict[int, str] = field(default_factory=dict)  # MailType by job
    _ends: dict[int, tuple[float, bool]] = field(default_factory=dict)
    _revoked: dict[int, float] = field(default_factory=dict)

    # -- SlurmWriter -----------------------------------------------------------------------------------------------

    def job(self, job_id: int, *, ended: bool = False) -> JobRow | None:
        self._reach("squeue")
        row = self.jobs.get(job_id)
        return row if row is None or ended or state_from_row(row) is not JobState.DONE else None

    def jobs_of_user(self, uid: int) -> tuple[JobRow, ...]:
        self._reach("squeue")
        return tuple(row for row in self.jobs.values() if row.uid == uid)

    def job_counts(self) -> JobCounts:
        if not self.counts:
            raise SlurmError("sdiag", "Access denied", transient=False)
        return JobCounts(self.submitted, self.ended)

    def required_nodes(self, job_id: int) -> tuple[str, ...]:
        self._reach("squeue")
        return expand(self.required.get(job_id, ""))

    private = frozenset[str]()

    def unheard(self, nodes: Sequence[str]) -> frozenset[str]:
        return frozenset(self.silent) & frozenset(nodes or self.silent)

    def reserve(self, name: str, nodes: Sequence[str], user: str) -> None:
        self._reach("scontrol create")
        self._refuse(f"reserve {name}")
        end_s = int(self.now_s) + SHIELD_S
        line = (
            f"ReservationName={name} StartTime={int(self.now_s)} EndTime={end_s} Nodes={','.join(nodes)} Users={user}"
        )
        self.reserved += f"{line} Flags={','.join(SHIELD_FLAGS)},SPEC_NODES\n"

    def unreserve(self, name: str) -> None:
        self._reach("scontrol delete")
        lines = self.reserved.splitlines(keepends=True)
        self.reserved = "".join(x for x in lines if not x.startswith(f"ReservationName={name} "))

    def step_wait_s(self) -> float:
        self._reach("scontrol show config")
        return self.wait_s

    def keep_nodes(self, job: int | str, nodes: Sequence[str]) -> None:
        job_id = self.named(job)
        self._write("keep", str(job_id), ",".join(nodes))
        assert set(nodes) <= set(self.jobs[job_id].node_names)
        self.set(job_id, node_names=tuple(nodes), num_nodes=len(nodes))

    def power_up(self, nodes: Sequence[str]) -> None:
        self._reach("scontrol update")
        self.woken += nodes

    def reservations(self) -> str:
        self._reach("scontrol show reservation")
        return self.reserved

    def leaf_switches(self) -> dict[str, str]:
        self._reach("scontrol show topology")
        return dict(self.leaves)

    def partitions(self, *, again: bool = True) -> tuple[PartitionRow, ...]:
        self._reach("scontrol show partition")
        return self.partition_rows

    def node_lists(self, job_ids: Sequence[int]) -> Mapping[int, tuple[tuple[str, ...], tuple[str, ...]]]:
        self._reach("squeue")
        here = [i for i in job_ids if i in self.jobs]
        return {i: (expand(self.required.get(i, "")), self.excluded.get(i, ())) for i in here}

    def accounting_rules(self) -> AccountingRules:
        self._reach("scontrol show config")
        return self.rules

    def associations(self) -> str:
        self._reach("scontrol show assoc_mgr")
        self.assoc_reads += 1
        return self.assoc_mgr

    def admin_comments(self, job_ids: Sequence[int]) -> Mapping[int, str]:
        self._reach("squeue --json")
        return {i: self.comments[i] for i in job_ids if i in self.comments}

    def admin_comment(self, job_id: int) -> str:
        self._reach("scontrol show job")
        return self.comments.get(job_id, "")

    def read_mail(self, job: int | str) -> tuple[str, str]:
        self._reach("scontrol show job")
        types = self.mail_types.get(self.named(job), "")
        return ("mina", types) if types else ("", "")

    def batch_script(self, job_id: int) -> str | None:
        self._reach("scontrol write")
        return self.script

    def update(self, job: int | str, fields: Mapping[str, str], *, within_s: float = math.inf) -> None:
        self._write("update", str(self.named(job)), *(f"{k}={v}" for k, v in fields.items()), fields=fields)

    def delay(self, jobs: Sequence[int | str], seconds: int) -> None:
        self._reach("update")
        job_ids = [self.named(job) for job in jobs]
        self.calls.append(["update", ",".join(map(str, job_ids)), f"StartTime=now+{seconds}"])
        for job_id in job_ids:
            if (job := self.jobs.get(job_id)) is not None and job.state == "PENDING":
                self._set_field(job_id, "StartTime", f"now+{seconds}")

    def update_size(self, job: int | str, uid: int, fields: Mapping[str, str]) -> None:
        self.update(job, fields)

    def requeue(self, named: int | str, *, failed: bool = False) -> None:
        job_id = self.named(named)
        self._write("requeue", str(job_id))
        job = self.jobs[job_id]
        if job.state in ("RUNNING", "SUSPENDED"):  # `incomplete`: anything else is left alone
            self.requeued.append((job_id, job.restarts))
            self.end(job_id, again=True)
        elif failed:  # SubmitTime and EligibleTime as 22.05.8 shows them
            self.set(job_id, state="PENDING", restarts=job.restarts + 1, submit_s=self.now_s, node_names=())
            self.set(job_id, eligible_s=self.now_s + CRED_EXPIRE_S)

    def release(self, job: int | str) -> None:
        job_id = self.named(job)
        self._write("release", str(job_id))
        self.set(job_id, priority=100, reason="None")

    def drain(self, node: str, reason: str) -> None:
        self._write("drain", node, reason)
        self.drained[node] = reason

    def end_allocation(self, job: int | str) -> None:
        self._write("scancel", str(job))
        del self.jobs[self.named(job)]

    def signal_launchers(self, job: int | str, name: str) -> None:
        job_id = self.named(job)
        self._write("signal", str(job_id), name)
        self.signals.append((job_id, self.jobs[job_id].restarts, self.now_s))

    def named(self, job: int | str) -> int:
        """The job id of what a write names. As in Slurm a write to one task of a record of several makes it a job of its own,
        and one to an array's bare id reaches every task: no test may see it."""
        if isinstance(job, int):
            assert not any(r.array_job_id == job for r in self.jobs.values()), f"bare array id {job} written to"
            return job
        array_id, task = int(job.partition("_")[0]), job.partition("_")[2].strip("[]")
        tasks = {r.array_task.partition("%")[0]: r for r in self.jobs.values() if r.array_job_id == array_id}
        if task in tasks:
            return tasks[task].job_id
        rest = next(r for r in tasks.values() if is_pending_array_remainder(r))
        left, _, throttle = rest.array_task.partition("%")
        others = [n for n in left.split(",") if n != task]
        assert len(others) == left.count(","), f"{task} is none of {left}"
        new_id = max(self.jobs) + 1
        self.jobs[new_id] = replace(rest, job_id=new_id, array_task=task)
        self.comments[new_id] = self.comments.get(rest.job_id, "")
        limit = f"%{throttle}" if throttle and len(others) > 1 else ""
        self.set(rest.job_id, array_task=",".join(others) + limit)
        return new_id

    # -- what happens on the cluster -------------------------------------------------------------------------------

    def observe(self, job_id: int) -> Observed:
        """As the daemon's loop sees it."""
        seen = self.job(job_id, ended=True)
        if seen is None or state_from_row(seen) is JobState.DONE:
            return Observed("GONE", seen.restarts if seen else 0, gpuless=seen is not None and gpuless(seen, COUNTED))
        state = state_from_row(seen)
        pending, ends_s = state is JobState.PENDING, None if state is JobState.PENDING else seen.end_s
        eligible_s, queued_s = (seen.eligible_s, seen.submit_s) if pending else (None, None)
        return Observed(
            state.value,
            seen.restarts,
            eligible_s,
            has_launch_failed(seen),
            queued_s=queued_s,
            limit_s=seen.time_limit_s,
            ends_s=ends_s,
            gpuless=gpuless(seen, COUNTED),
            nice=seen.nice,
        )

    def fail_launch(self, job_id: int) -> None:
        """slurmd refuses to start the job: Slurm requeues it at once, and holds it."""
        self.set(
            job_id,
            state="PENDING",
            reason="launch failed requeued held",
            priority=0,
            restarts=self.jobs[job_id].restarts + 1,
            eligible_s=self.now_s + CRED_EXPIRE_S,
            node_names=(),
        )

    def end(self, job_id: int, *, again: bool) -> None:
        """The job ends: cancelled, done, or (`again`) requeued. The restart count rises at once, as in Slurm 22.05."""
        job = self.jobs.get(job_id)
        if job is None or job.state == "COMPLETING":
            return
        if job.state == "PENDING":
            if not again:
                del self.jobs[job_id]
            return
        # as 22.05: SubmitTime is that of the requeue
        submit_s = self.now_s if again else job.submit_s
        self.jobs[job_id] = replace(job, state="COMPLETING", restarts=job.restarts + again, submit_s=submit_s)
        self.ran_s[job_id] = self.ran_s.get(job_id, 0.0) + self.now_s - (job.start_s or self.now_s)
        self._ends[job_id] = (self.now_s + COMPLETING_S, again)

    def cancel(self, job_id: int) -> None:
        """scancel: also of a job that is on its way back into the queue."""
        job = self.jobs.get(job_id)
        if job is not None and job.state == "COMPLETING":
            self._ends[job_id] = (self._ends[job_id][0], False)
        self.end(job_id, again=False)

    def set(self, job_id: int, **changes: object) -> None:
        self.jobs[job_id] = replace(self.jobs[job_id], **changes)  # type: ignore[arg-type]

    def pass_time(self, seconds: float) -> None:
        self.now_s += seconds
        for job_id, (at_s, again) in list(self._ends.items()):
            if self.now_s >= at_s:
                del self._ends[job_id]
                if again:
                    self._revoked[job_id] = at_s
                    self.set(job_id, state="PENDING", eligible_s=at_s + CRED_EXPIRE_S, node_names=())
                else:
                    del self.jobs[job_id]
        for job_id, job in list(self.jobs.items()):
            eligible = job.eligible_s is None or job.eligible_s <= self.now_s
            if job.state == "PENDING" and eligible and job.priority and not self.full:
                if int(self.now_s) <= int(self._revoked.get(job_id, -1.0)):  # "Job credential revoked"
                    self.failed.append(job_id)
                    del self.jobs[job_id]
                    continue
                end_s = None if job.time_limit_s is None else self.now_s + job.time_limit_s
                self.set(job_id, state="RUNNING", start_s=self.now_s, end_s=end_s)
            elif job.state == "RUNNING" and job.end_s is not None and job.end_s <= self.now_s:
                self.end(job_id, again=False)  # TIMEOUT

    # -- inside ----------------------------------------------------------------------------------------------------

    def _reach(self, what: str) -> None:
        if self.away:
            raise SlurmError(what, "Unable to contact slurm controller", transient=True)

    def _write(self, *words: str, fields: Mapping[str, str] | None = None) -> None:
        self._reach(words[0])
        self.calls.append(list(words))
        job_id = int(words[1])
        if job_id not in self.jobs:
            raise SlurmError(words[0], "Invalid job id specified", transient=False)
        for key, value in (fields or {}).items():
            self._refuse(f"{words[0]} {key}={value}")  # the fields before it stay set
            if key not in self.ignore:
                self._set_field(job_id, key, value)
        self._refuse(" ".join(words))

    def _refuse(self, call: str) -> None:
        for pattern, (message, transient) in self.refuse.items():
            if pattern in call:
                raise SlurmError(call, message, transient=transient)

    def _set_field(self, job_id: int, key: str, value: str) -> None:
        if self.jobs[job_id].state != "PENDING" and key not in ("AdminComment", "MailType", "Nice", "TimeLimit"):
            raise SlurmError("update", "Job is no longer pending execution", transient=False)
        match key:
            case "StartTime":
                self.set(job_id, eligible_s=self.now_s + float(value.removeprefix("now").removeprefix("+") or 0))
            case "NumNodes":
                self.set(job_id, num_nodes=int(value.partition("-")[0]))
            case "NumTasks":
                self.set(job_id, num_tasks=int(value))
            case "CPUsPerTask":
                self.set(job_id, cpus_per_task=int(value))
            case "NumCPUs":
                self.set(job_id, num_cpus=int(value))
            case "TresPerNode":
                self.set(job_id, tres_per_node=value)
            case "ReqNodeList":
                self.required[job_id] = value
            case "MailType":
                self.mail_types[job_id] = value
            case "AdminComment":
                self.comments[job_id] = value
            case "TimeLimit":
                self.set(job_id, time_limit_s=None if value == "UNLIMITED" else 60.0 * int(value))
            case "Nice":
                self.set(job_id, priority=max(2, self.jobs[job_id].priority + self.jobs[job_id].nice - int(value)))
                self.set(job_id, nice=int(value))
            case "TimeMin":
                self.set(job_id, min_time_s=60.0 * int(value))
            case _:
                raise AssertionError(f"no such field: {key}")
