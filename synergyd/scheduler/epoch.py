"""One epoch's decisions: formulate the problem, solve it, amend the answer. Pure.

Each phase is a tuple of named stages that run in order; each stage takes the draft of the epoch and returns it with more of it decided.
STAGES is all of them: the table in docs/concepts/epoch.md and the times in the metrics come from it.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field

from synergy_core.reasons import Reason
from synergy_core.records import Cell, Decision, Plan, Snapshot
from synergy_core.restarts import RestartBudget
from synergy_core.shared_links import Sharing

from synergyd.scheduler.due_jobs import DueProblem
from synergyd.scheduler.epoch_answer import EpochAnswer
from synergyd.scheduler.give_back import ForcedShrinks
from synergyd.scheduler.move_caps import NO_CAPS, MoveCaps
from synergyd.scheduler.placement.place import Placement
from synergyd.scheduler.problem.delays import NO_DELAYS, DelayHistory
from synergyd.scheduler.problem.from_snapshot import UntouchedJob
from synergyd.scheduler.problem.gpu_limits import NO_SLURM_LIMITS, Allowance, SlurmLimits
from synergyd.scheduler.problem.records import Allocation, JobRequest, Policy, Problem, Progress
from synergyd.scheduler.problem.rules import DecisionRules

_NOTHING_TO_SOLVE = Problem((), ())
_NOTHING_SOLVED = EpochAnswer(_NOTHING_TO_SOLVE, Allocation((), frozenset(), 0.0, 0.0, True), Placement({}, {}, {}))


@dataclass(frozen=True, kw_only=True)
class EpochInputs:
    """Everything that an epoch decides from. All mappings are by job id; a job may be absent from any of them."""

    #: jobs and nodes; what is being carried out counts as done
    snapshot: Snapshot
    #: the Cells that each job could have
    cells: Mapping[int, tuple[Cell, ...]] = field(default_factory=dict)
    #: why a job has no Cell
    no_cell_reasons: Mapping[int, str] = field(default_factory=dict)
    #: plans of running jobs
    current_plans: Mapping[int, Plan] = field(default_factory=dict)
    #: Sia's T in seconds; without it the time since submission, which Slurm resets at each requeue
    ages_s: Mapping[int, float] = field(default_factory=dict)
    #: how far each job has come
    progress: Mapping[int, Progress] = field(default_factory=dict)
    #: median training time of jobs that have ended, in seconds; None: none has
    typical_s: float | None = None
    #: the room that Slurm's associations and QOS leave
    slurm_limits: SlurmLimits = NO_SLURM_LIMITS
    #: the room that the bounds on changes of running jobs leave
    caps: MoveCaps = NO_CAPS
    #: the cost of restarts, expected and so far; RestartRules.cost_s where a job is absent
    restarts: Mapping[int, RestartBudget] = field(default_factory=dict)
    #: waiting jobs that others without a directive have overtaken
    overtaken: Container[int] = ()
    #: those that any others have overtaken and that have waited for longer than a resize takes
    outrun: Container[int] = ()
    #: the time since which jobs wait, for a policy that observes it
    delays: DelayHistory = NO_DELAYS


@dataclass(frozen=True, kw_only=True)
class Draft:
    """An epoch on its way from inputs to decisions. Each field is set by one stage and may be amended by later ones."""

    inputs: EpochInputs
    rules: DecisionRules
    policy: Policy
    #: the snapshot as it is decided about: forced shrinks count as done, spare nodes as given
    snapshot: Snapshot
    #: jobs that hold more than they may keep
    shrinks: ForcedShrinks
    #: jobs that give a spare node back, which they do at once
    spare_returners: frozenset[int] = frozenset()
    #: for every job of the snapshot, in its order: what it asks for, or why it is not touched
    requests_in_order: tuple[JobRequest | UntouchedJob, ...] = ()
    requests: tuple[JobRequest, ...] = ()
    #: finish-time fairness as far as it is known, by job id
    fairness: Mapping[int, float] = field(default_factory=dict)
    problem: Problem = _NOTHING_TO_SOLVE
    due_problem: DueProblem = field(default_factory=lambda: DueProblem(_NOTHING_TO_SOLVE))
    answer: EpochAnswer = _NOTHING_SOLVED
    #: indices of the job that tries a size, and of that Cell
    trial: tuple[int, int] | None = None
    #: by job id, a reason of its own for a job that waits
    wait_reasons: Mapping[int, Reason] = field(default_factory=dict)
    #: what shared links cost, by job id
    sharing: Mapping[int, Sharing] = field(default_factory=dict)
    #: one for each job of the snapshot, in its order
    decisions: tuple[Decision, ...] = ()
    #: the rest of all limits; each amendment takes its part
    allowance: Allowance = field(default_factory=lambda: Allowance(_NOTHING_TO_SOLVE, ()))

    @property
    def by_rule(self) -> bool:
        """Return whether the policy follows a rule of its own, so that the objective explains nothing."""
        return bool(self.policy.rule) or self.policy.sizes_fixed

    @property
    def untouched_jobs(self) -> dict[int, UntouchedJob]:
        """Return the jobs that this epoch does not touch, by job id."""
        pairs = zip(self.snapshot.jobs, self.requests_in_order, strict=True)
        return {job.job_id: one for job, one in pairs if isinstance(one, UntouchedJob)}


@dataclass(frozen=True, kw_only=True)
class Stage:
    """A step of an epoch's decision."""

    name: str
    #: one sentence for docs/concepts/epoch.md
    text: str
    run: Callable[[Draft], Draft]


#: measures one stage, by its name
StageTimer = Callable[[str], AbstractContextManager[object]]


def begin(inputs: EpochInputs, rules: DecisionRules, policy: Policy) -> Draft:
    """Return the draft that the first stage takes."""
    snapshot = inputs.snapshot
    none = ForcedShrinks(snapshot, inputs.current_plans, {})
    return Draft(inputs=inputs, rules=rules, policy=policy, snapshot=snapshot, shrinks=none)


def run(stages: Iterable[Stage], draft: Draft, timer: StageTimer | None = None) -> Draft:
    """Run `stages` one after the other, each inside `timer(name)`."""
    for stage in stages:
        with nullcontext() if timer is None else timer(stage.name):
            draft = stage.run(draft)
    return draft
