"""A policy by its name in synergyd/settings/policies.py."""

from __future__ import annotations

from importlib import import_module

from synergy_core.errors import UsageError

from synergyd.scheduler.problem.records import Policy
from synergyd.settings.policies import POLICIES


def load_policy(name: str) -> Policy:
    """Import and build the policy called `name`. Raises UsageError if there is none of that name."""
    if name not in POLICIES:
        raise UsageError("Policy", f"no policy is called '{name}'", f"one of: {', '.join(sorted(POLICIES))}")
    module, _, attribute = POLICIES[name].partition(":")
    policy: Policy = getattr(import_module(module), attribute)()
    return policy
