"""The records that an epoch stores for people to read: the decisions that are news, and every job as `synergyctl status` shows it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from synergy_core.achieved import Achieved
from synergy_core.expected import Expected
from synergy_core.formatting import format_duration
from synergy_core.job_report import Report
from synergy_core.reasons import Reason, reason_codes
from synergy_core.records import Action, Decision, Job, JobState, Plan, Snapshot

from synergyd.control.resize.lifecycle import JobLifecycle

SAY_AGAIN_S = 600.0  # an unchanged decision is stored again after so long, with its present numbers
#: of a job whose program has not reported that it can change size
OWN_SIZE = "keeps the size asked for: no agent has reported"
_NUMBER = re.compile(r"\d[\d.,]*")


def _texts(reasons: Iterable[Reason]) -> tuple[str, ...]:
    """Return the texts of the reasons, with # for each number in them."""
    values = (value for reason in reasons for value in reason.fields.values() if isinstance(value, str))
    return tuple(_NUMBER.sub("#", value) for value in values)


class DecisionLog:
    """A filter that tells decisions with something new from those that would only fill the database."""

    def __init__(self) -> None:
        self._last: dict[int, tuple[object, float]] = {}

    def with_news(self, decisions: Iterable[Decision], now_s: float) -> tuple[Decision, ...]:
        """Return the decisions that differ from the job's last one, or that come SAY_AGAIN_S seconds or more after it."""
        fresh = []
        for d in decisions:
            # a reason's numbers move every epoch: only other codes make it news
            why = reason_codes(d.reasons), _texts(d.reasons)
            key = (d.action, d.cell.shape if d.cell else None, d.cell.plan if d.cell else None, d.node_names, why)
            last = self._last.get(d.job_id)
            if last is None or last[0] != key or now_s - last[1] >= SAY_AGAIN_S:
                self._last[d.job_id] = (key, now_s)
                fresh.append(d)
        return tuple(fresh)

    def set_clock(self, by_s: float) -> None:
        """Shift the times of the last decisions by `by_s` seconds, by which the time of day was set."""
        self._last = {job_id: (key, at_s + by_s) for job_id, (key, at_s) in self._last.items()}

    def forget(self, job_id: int) -> None:
        """Forget the last decision about a job that is gone."""
        self._last.pop(job_id, None)


@dataclass(frozen=True, kw_only=True)
class JobStatus:
    """A job as `synergyctl status` shows it. GPU counts are whole GPUs of all its nodes."""

    #: Slurm's job id
    job_id: int
    #: as its user named it
    name: str
    #: its owner's login name
    user: str
    #: Slurm's state: PENDING, RUNNING, COMPLETING or SUSPENDED
    state: str
    #: state of its resize ("" before the daemon knows it)
    lifecycle: str
    #: GPUs that it holds now
    gpus: int
    #: GPUs of its sbatch line
    asked_gpus: int
    #: GPUs that the last epoch gave it (0: it waits)
    wanted_gpus: int = 0
    #: nodes that the last epoch gave it
    wanted_nodes: tuple[str, ...] = ()
    #: what comes next: the decision, the progress of its resize, or how long it has been idle
    action: str = ""
    #: why the last epoch decided so
    why: str = ""
    #: predicted goodput relative to the requested size
    relative_goodput: float | None = None
    #: the plan that it runs with
    plan: Plan | None = None
    #: sequences per step
    global_batch: int | None = None
    #: incarnations before this one
    restarts: int = 0
    #: newest step reported
    step: int | None = None
    #: loss of the newest step reported
    loss: float | None = None
    #: `synergyctl pause` holds: Synergy leaves the job as it is
    paused: bool = False
    #: held in Slurm by its user or an admin
    held: bool = False
    #: its Slurm account
    account: str = ""
    #: its partition, or those that it waits for, separated by commas
    partition: str = ""
    #: its name in squeue, if not its id: 123_4 (task 4 of array 123), 123_[5-9] (waiting tasks), 123+1 (a component)
    slurm_name: str = ""
    #: that it keeps the requested size, or a batch range from which it would gain, and how much
    hint: str = ""
    #: `why` as data
    reasons: tuple[Reason, ...] = ()
    #: expected start; null while it runs
    start: Expected | None = None
    #: expected end
    end: Expected | None = None
    #: its speed; null before its first step time
    achieved: Achieved | None = None


def job_statuses(
    snapshot: Snapshot,
    decisions: Iterable[Decision],
    now: Mapping[int, JobLifecycle],
    reports: Mapping[int, Report],
    hints: Mapping[int, str] = MappingProxyType({}),
    achieved: Mapping[int, Achieved] = MappingProxyType({}),
) -> Iterator[JobStatus]:
    """Yield what `synergyctl status` shows of each job. `hints`, `achieved`: see JobStatus, by job id."""
    decided = {d.job_id: d for d in decisions}
    for job in snapshot.jobs:
        life, report, decision = now.get(job.job_id), reports.get(job.job_id), decided.get(job.job_id)
        plan = report.plan if report and report.restarts == job.restarts else (life.plan if life else None)
        plan = None if job.own_plan else plan
        yield JobStatus(
            job_id=job.job_id,
            name=job.name,
            user=job.user,
            state=job.state.value,
            lifecycle=life.state.value if life else "",
            gpus=job.shape.gpus if job.state is not JobState.PENDING else 0,
            asked_gpus=job.asked.gpus,
            wanted_gpus=decision.cell.shape.gpus if decision and decision.cell else 0,
            wanted_nodes=decision.node_names if decision else (),
            action=_action(job, decision),
            why=decision.why if decision else "",
            reasons=decision.reasons if decision else (),
            relative_goodput=decision.relative_goodput if decision else None,
            plan=plan,
            global_batch=plan.global_batch if plan else None,
            restarts=job.restarts,
            step=report.step if report else None,
            loss=report.loss if report else None,
            paused=job.paused,
            held=job.held,
            account=job.account,
            partition=job.partition,
            slurm_name=job.slurm_name,
            hint=_hint(job, decision, hints),
            achieved=achieved.get(job.job_id),
        )


def _hint(job: Job, decision: Decision | None, hints: Mapping[int, str]) -> str:
    if job.own_plan and job.fixed:
        return OWN_SIZE
    return hints.get(job.job_id, "") if decision and decision.action is Action.KEEP else ""


def _action(job: Job, decision: Decision | None) -> str:
    if job.idle_s is not None:
        return f"idle for {format_duration(job.idle_s)}"
    return decision.action.value if decision else ""
