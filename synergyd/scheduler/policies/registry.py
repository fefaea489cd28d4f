"""The policies by the names that the setting `Policy` takes."""

from __future__ import annotations

from collections.abc import Callable

from synergyd.errors import UsageError
from synergyd.scheduler.policies.backfill import BackfillPolicy
from synergyd.scheduler.policies.crius import CriusPolicy
from synergyd.scheduler.policies.dally import DallyPolicy
from synergyd.scheduler.policies.exact import ExactPolicy
from synergyd.scheduler.policies.fifo import FifoPolicy
from synergyd.scheduler.policies.first_fit import FirstFitPolicy
from synergyd.scheduler.policies.optimus import OptimusPolicy
from synergyd.scheduler.policies.pollux import PolluxPolicy
from synergyd.scheduler.policies.sia import SiaPolicy
from synergyd.scheduler.policies.srtf import SrtfPolicy
from synergyd.scheduler.policies.synergy import SynergyPolicy
from synergyd.scheduler.policies.tiresias import TiresiasPolicy
from synergyd.scheduler.problem.records import Policy

# The names are those of settings.POLICIES, where the reader of slurm.conf finds them without loading any policy.
POLICIES: dict[str, Callable[[], Policy]] = {
    "synergy": SynergyPolicy,
    "exact": ExactPolicy,
    "fifo": FifoPolicy,
    "first-fit": FirstFitPolicy,
    "backfill": BackfillPolicy,
    "srtf": SrtfPolicy,
    "srsf": lambda: SrtfPolicy(service=True),
    "tiresias": TiresiasPolicy,
    "optimus": OptimusPolicy,
    "pollux": PolluxPolicy,
    "sia": SiaPolicy,
    "crius": CriusPolicy,
    "dally": DallyPolicy,
}


def policy_named(name: str) -> Policy:
    """The policy of that name. Raises UsageError for a name that is not there."""
    if name not in POLICIES:
        raise UsageError("Policy", f"no policy is called '{name}'", f"one of: {', '.join(sorted(POLICIES))}")
    return POLICIES[name]()
