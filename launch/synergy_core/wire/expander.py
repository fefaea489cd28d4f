"""Names of allocations that a job's launchers get beside its own, by which the daemon knows whose nodes they are."""

from __future__ import annotations

import re

_NAME = re.compile(r"synergy-nodes-of-([0-9]{1,10})\.([0-9]{1,6})\.([0-9]{1,6})\Z")


def expander_name(job_id: int, restarts: int, number: int) -> str:
    """Return the name of the allocation with nodes for incarnation `restarts` of the job, by the daemon's order `number`."""
    return f"synergy-nodes-of-{job_id}.{restarts}.{number}"


def job_of_expander(name: str) -> tuple[int, int] | None:
    """Return the job and incarnation whose nodes an allocation of this name has; None for any other name."""
    match = _NAME.match(name)
    return (int(match[1]), int(match[2])) if match else None
