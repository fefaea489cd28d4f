"""Plans that failed within a run's first steps: which plans are banned for whom, and what a job goes back to. Pure.

A plan that fails is banned for its program (task/shared_profiles.py) on its GPU type. Where it ran out of memory so are all plans that need
as much: by the memory model, whose bias for that program and type is raised to what the failure shows; and by comparing degrees,
for what has no model. A job whose plan fails goes back to the plan that it ran with before, else to its own size and
arguments. Where those fail too it is the script that is broken: what the job had banned is allowed again.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from synergy_core.formatting import format_plan, format_size
from synergy_core.job_report import FAULTS_OF_NODES, FIRST_STEPS, MAX_RETURNS, EarlyFailure
from synergy_core.recompute import keeps_as_much
from synergy_core.records import Cell, Job, JobState, Measurement, Plan, Profile, Shape

from synergyd.control.in_place import run_number
from synergyd.control.resize.events import PlanFailed, ReportsReceived
from synergyd.control.resize.instructions import Target
from synergyd.control.resize.lifecycle import ON_NODES, JobLifecycle
from synergyd.control.tracked import Output, Remember, TrackedJob
from synergyd.jobmodel.shared_profiles import program_mark

PREFIX = "failed:"  # starts each key in the store: `failed:KIND:PROGRAM:GPU TYPE`
_NEED_MEMORY = ("memory", "killed")  # kinds of failure
_PLAN, _MEMORY, _SCRIPT = "plan", "memory", "script"  # kinds of keys; of the last there is one, without a plan
_PLANS, _PROGRAMS = 16, 10_000
_JUST_ABOVE = 1.0001  # the bias at which the failed plan itself does not fit
_LARGEST_BIAS = 20.0  # as of what is learnt from reports
_WORDS = {
    "memory": "out of GPU memory",
    "killed": "killed by SIGKILL, as the kernel does where a node's memory is full",
    "nccl": "NCCL error",
    "cuda": "CUDA error",
    "hang": "no first step",
    "exit": "its own error",
}


@dataclass(frozen=True)
class Bans:
    """The failures of one program: (GPU type, plan)."""

    failed_plans: frozenset[tuple[str, Plan]] = frozenset()
    too_big: frozenset[tuple[str, Plan]] = frozenset()
    #: measured over predicted peak memory at the least, by GPU type
    memory: tuple[tuple[str, float], ...] = ()
    #: its script has ended before its training began after a resize
    script: bool = False

    def is_banned(self, cell: Cell) -> bool:
        if not self.failed_plans and not self.too_big:
            return False  # true of most programs, and an epoch asks about each of their Cells
        gpu_type, plan = cell.shape.gpu_type, _same(cell.plan)
        return (gpu_type, plan) in self.failed_plans or any(
            gpu_type == kind and needs_as_much(plan, failed) for kind, failed in self.too_big
        )


NO_BANS = Bans()


def needs_as_much(plan: Plan, failed: Plan) -> bool:
    """Return whether `plan` surely needs at least `failed`'s memory on each GPU: it splits nothing further and recomputes no more."""
    split = all(getattr(plan, name) <= getattr(failed, name) for name in ("tp", "pp", "cp", "ep", "zero_stage"))
    # the more ranks share something, the less of it is on each
    shared = plan.zero_stage == 0 or plan.shard_ranks <= failed.shard_ranks
    same = (plan.precision, plan.vpp, plan.sequence_parallel) == (
        failed.precision,
        failed.vpp,
        failed.sequence_parallel,
    )
    return split and shared and same and keeps_as_much(plan, failed) and plan.micro_batch >= failed.micro_batch


@dataclass
class FailedPlans:
    """The failed plans, by key of the store.

    `add` and `lift` return what to store.

    A plan there is a measurement without an end: its step time is infinite. `Profile.memory` is the bias of
    `Bans.memory`.
    """

    _profiles: dict[str, dict[str, Profile]] = field(default_factory=dict)  # by program
    _bans: dict[str, Bans] = field(default_factory=dict)  # likewise
    _of_job: dict[int, set[tuple[str, Plan]]] = field(default_factory=dict)  # (key, plan) that this job has banned
    _survivors: set[str] = field(default_factory=set)  # programs that have trained again after a restart

    def load(self, profiles: Mapping[str, Profile]) -> None:
        """Load the bans from the store of an earlier daemon."""
        for key, profile in profiles.items():
            if key.startswith(PREFIX) and key.count(":") >= 3:
                self._keep(key, profile)

    def add(self, job: Job, gpu_type: str, failure: EarlyFailure, least_memory: float | None) -> dict[str, Profile]:
        """Ban `failure`'s plan for the job's program. `least_memory`: the memory bias with which it would not have fitted."""
        if failure.plan is None:
            return {}
        key = f"{PREFIX}{_MEMORY if failure.kind in _NEED_MEMORY else _PLAN}:{program_mark(job)}:{gpu_type}"
        profile, plan = self._profile(key), _same(failure.plan)
        bias = profile.memory
        if failure.kind == "memory" and least_memory is not None and 0 < least_memory < math.inf:
            bias = max(bias, min(_LARGEST_BIAS, least_memory * _JUST_ABOVE))
        if any(m.plan == plan for m in profile.measured) and bias == profile.memory:
            return {}
        others = tuple(m for m in profile.measured if m.plan != plan)
        measured = (*others, Measurement(plan, Shape(gpu_type, 1, plan.gpus), math.inf))[-_PLANS:]
        self._of_job.setdefault(job.job_id, set()).add((key, plan))
        return self._keep(key, replace(profile, memory=bias, measured=measured, samples=len(measured)))

    def ban_unresizable(self, tracked: TrackedJob, before: JobLifecycle) -> dict[str, Profile]:
        """Ban resizes of the job's program if its script was just found not to survive one.

        Return what to store. A program that has once trained again at another size than it asked for survives a
        resize: then a node or Slurm failed, and not the script. Such a program is not banned, and an earlier ban is
        lifted.
        """
        job, life = tracked.job or tracked.last_running_job, tracked.lifecycle
        if job is None:
            return {}
        key, program = f"{PREFIX}{_SCRIPT}:{program_mark(job)}:", program_mark(job)
        if _is_training_after_resize(life) and program not in self._survivors:
            if len(self._survivors) >= _PROGRAMS:
                self._survivors.clear()  # a matter of memory: each is seen again at its next restart
            self._survivors.add(program)
            return self._keep(key, Profile()) if self.bans_for(job).script else {}
        if life.reruns <= before.reruns or program in self._survivors:
            return {}
        return self._keep(key, Profile(samples=1))

    def lift(self, job_id: int) -> dict[str, Profile]:
        """Allow again what the job has banned."""
        changed: dict[str, Profile] = {}
        for key, plan in self._of_job.pop(job_id, ()):
            profile = self._profile(key)
            remaining_bans = tuple(m for m in profile.measured if m.plan != plan)
            changed |= self._keep(
                key,
                replace(
                    profile,
                    memory=profile.memory if remaining_bans else 1.0,
                    measured=remaining_bans,
                    samples=len(remaining_bans),
                ),
            )
        return changed

    def bans_for(self, job: Job) -> Bans:
        """Return what is banned for the job's program."""
        return self._bans.get(program_mark(job), NO_BANS) if self._bans and job.directive is not None else NO_BANS

    def forget(self, job_id: int) -> None:
        """Forget which bans came from a job that has ended. The plans that failed stay banned."""
        self._of_job.pop(job_id, None)

    def _profile(self, key: str) -> Profile:
        return self._profiles.get(_program_name(key), {}).get(key, Profile())

    def _keep(self, key: str, profile: Profile) -> dict[str, Profile]:
        program_profiles = self._profiles.setdefault(_program_name(key), {})
        program_profiles[key] = profile
        self._profiles[_program_name(key)] = self._profiles.pop(_program_name(key))  # the latest last
        self._index(_program_name(key))
        while len(self._profiles) > _PROGRAMS:
            oldest = next(iter(self._profiles))
            del self._profiles[oldest]
            self._bans.pop(oldest, None)
        return {key: profile}

    def _index(self, mark: str) -> None:
        plans: dict[str, set[tuple[str, Plan]]] = {_PLAN: set(), _MEMORY: set()}
        memory, script = [], False
        for key, profile in self._profiles[mark].items():
            _, kind, _, gpu_type = key.split(":", 3)
            plans.setdefault(kind, set()).update((gpu_type, m.plan) for m in profile.measured)
            script |= kind == _SCRIPT and profile.samples > 0
            if profile.memory > 1.0:
                memory.append((gpu_type, profile.memory))
        bans = Bans(frozenset(plans[_PLAN]), frozenset(plans[_MEMORY]), tuple(sorted(memory)), script)
        self._bans[mark] = bans


def _is_training_after_resize(life: JobLifecycle) -> bool:
    """Return whether a launcher was heard after a restart at another size than was asked for. A rerun at the former size tells nothing."""
    if life.ran is None or life.requested_target is None or life.reruns:
        return False
    return life.launched_incarnation > 0 and life.ran.shape != life.requested_target.shape


@dataclass(frozen=True)
class FollowUp:
    """The consequences of a job's report, with regard to plans that fail."""

    outputs: tuple[Output, ...] = ()
    profiles: Mapping[str, Profile] = field(default_factory=dict)
    #: for the job's lifecycle, where its launcher waits for a requeue
    event: PlanFailed | None = None


NOTHING_FOLLOWS = FollowUp()


def follow_up(tracked: TrackedJob, event: ReportsReceived, failed_plans: FailedPlans) -> FollowUp:
    """Take in the latest report of the job's present incarnation: `tracked.lifecycle` then knows what ran and what failed."""
    report, job, before = event.reports[-1], event.job or tracked.job, tracked.lifecycle
    failure = report.failure
    # later than the last one heard of: an owner who tells old ones again and again costs nothing
    fresh = failure is not None and (report.restarts, failure.number) > before.failure
    if job is None or job.directive is None:
        return NOTHING_FOLLOWS
    if failure is not None and fresh and failure.plan is None:
        return _take_in_script_failure(tracked, job, report.restarts, failure, failed_plans)
    if job.state is not JobState.RUNNING or job.restarts != report.restarts or before.state not in ON_NODES:
        return NOTHING_FOLLOWS  # Slurm has not been seen to start it: the launcher says it again
    run = run_number(report)
    if tracked.first_report is None or tracked.first_report[:2] != run:
        tracked.first_report = (*run, report.step)
    if failure is not None and failure.plan is not None and fresh:
        by_node = report.fault is not None and report.fault.kind in FAULTS_OF_NODES
        return _take_in_plan_failure(
            tracked, job, failure, failure.plan, failed_plans, event.least_memory, by_node=by_node
        )
    ran = Target(job.shape, (), before.plan)
    if before.ran == ran or report.step - tracked.first_report[2] < FIRST_STEPS:
        return NOTHING_FOLLOWS
    tracked.lifecycle = replace(before, ran=ran)
    return FollowUp((Remember(tracked.lifecycle, before.state, "Ran"),))


def _take_in_script_failure(
    tracked: TrackedJob, job: Job, restarts: int, failure: EarlyFailure, failed_plans: FailedPlans
) -> FollowUp:
    """Take in that the job failed under its own arguments: the script is broken, not a plan."""
    life = tracked.lifecycle = replace(tracked.lifecycle, failure=(restarts, failure.number))
    text = f"failed within its first steps under its own arguments ({_cause(failure)}): it ends as without Synergy"
    return FollowUp((Remember(life, life.state, "Failed", (text,)),), failed_plans.lift(job.job_id))


def _take_in_plan_failure(
    tracked: TrackedJob,
    job: Job,
    failure: EarlyFailure,
    plan: Plan,
    failed_plans: FailedPlans,
    least_memory: float | None,
    *,
    by_node: bool,
) -> FollowUp:
    """Take in that the job failed under a plan of Synergy's. `by_node`: for something that says nothing of the plan."""
    life, event = replace(tracked.lifecycle, failure=(job.restarts, failure.number)), None
    profiles = {} if by_node else failed_plans.add(job, job.shape.gpu_type, failure, least_memory)
    text = f"its plan ({format_plan(plan)}) failed within its first steps ({_cause(failure)})"
    if failure.goes_on:
        life = replace(life, plan=failure.next_plan, returns=life.returns + 1)
        next_plan = format_plan(failure.next_plan) if failure.next_plan else "its own arguments"
        text = f"{text}: started again in place with {next_plan}"
    elif life.returns < MAX_RETURNS:
        back = Target(job.shape) if tracked.keeps_size else fallback_target(life.ran, plan, job)
        life = replace(life, returns=life.returns + 1)
        tracked.blocked_decision = None
        event = PlanFailed(back, f"requeued with {format_size(back.shape, back.plan)}")
    tracked.lifecycle = life
    return FollowUp((Remember(life, life.state, "Failed", (text,)),), profiles, event)


def fallback_target(ran: Target | None, failed: Plan, job: Job) -> Target:
    """Return the last size and plan that ran, unless that plan fails like `failed`: else the user's own."""
    if ran is not None and (ran.plan is None or _same(ran.plan) != _same(failed)):
        return ran
    return Target(job.asked)


def _cause(failure: EarlyFailure) -> str:
    return f"{_WORDS[failure.kind]}, exit code {failure.code}"


def _same(plan: Plan) -> Plan:
    """Return the plan without its number of micro-batches: plans that differ in that alone fail alike."""
    return replace(plan, global_batch=plan.dp * plan.micro_batch)


def _program_name(key: str) -> str:
    return key.split(":", 3)[2]
