"""One epoch's decisions, from its inputs. A pure function of its arguments."""

from __future__ import annotations

from synergy_core.records import Decision

from synergyd.scheduler.amend import AMEND
from synergyd.scheduler.epoch import EpochInputs, begin, run
from synergyd.scheduler.formulate import FORMULATE
from synergyd.scheduler.problem.records import Policy
from synergyd.scheduler.problem.rules import DecisionRules
from synergyd.scheduler.solve import SOLVE

#: phase -> its stages, in their order
PHASES = {"formulate": FORMULATE, "solve": SOLVE, "amend": AMEND}
STAGES = (*FORMULATE, *SOLVE, *AMEND)


def decide(inputs: EpochInputs, rules: DecisionRules, policy: Policy) -> tuple[Decision, ...]:
    """Return one Decision per job of the snapshot, in its order.

    A running job is stopped (Action.WAIT: it gives back all its GPUs) only with the setting Preemption; else it keeps at
    least its smallest Cell, whatever the policy. Held jobs, jobs with a wrong directive and fixed ones are not touched:
    the GPUs that they hold are not handed out, like those of other users of Slurm.
    """
    return run(STAGES, begin(inputs, rules, policy)).decisions
