"""The policies by the names that the setting `Policy` takes."""

from __future__ import annotations

from collections.abc import Callable

from synergyd.errors import UsageError
from synergyd.scheduler.fifo import FifoPolicy
from synergyd.scheduler.milp import MilpPolicy
from synergyd.scheduler.policy import Policy
from synergyd.scheduler.synergy import SynergyPolicy

POLICIES: dict[str, Callable[[], Policy]] = {"synergy": SynergyPolicy, "exact": MilpPolicy, "fifo": FifoPolicy}


def policy_named(name: str) -> Policy:
    """The policy of that name. Raises UsageError for a name that is not there."""
    if name not in POLICIES:
        raise UsageError("Policy", f"no policy is called '{name}'", f"one of: {', '.join(sorted(POLICIES))}")
    return POLICIES[name]()
