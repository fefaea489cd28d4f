"""`scontrol show reservation --oneliner` -> the reservations of nodes, and Synergy's own among them. Pure.

Synergy makes a reservation, a *shield*, for the moments in which a job of its restarts: `synergy-JOBID`, of the daemon's user alone,
for SHIELD_S at most. No decision takes it for a reservation of the site's.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from synergy_core.errors import UsageError
from synergy_core.wire.hostlist import expand

from synergyd.control.state.time_view import Reservation

_MOST_LINES = 10_000  # far above any site's
SHIELD_S = 300
#: whatever runs there and whatever else is reserved there
SHIELD_FLAGS = ("IGNORE_JOBS", "OVERLAP")
_SHIELD_NAME = re.compile(r"synergy-([0-9]{1,10})\Z")


@dataclass(frozen=True)
class Shield:
    """A reservation that keeps `nodes` for a job that restarts. `user`: the one that it names."""

    job_id: int
    user: str
    nodes: frozenset[str] = frozenset()


def shield_name(job_id: int) -> str:
    return f"synergy-{job_id}"


def read_shields(text: str) -> tuple[Shield, ...]:
    """Return the shields in `text`: reservations that have the name and the form of one."""
    shields = (_shield(_fields(line)) for line in text.splitlines()[:_MOST_LINES])
    return tuple(s for s in shields if s is not None)


def _shield(fields: Mapping[str, str]) -> Shield | None:
    name = _SHIELD_NAME.match(fields.get("ReservationName", ""))
    start, end, user = (fields.get(key, "") for key in ("StartTime", "EndTime", "Users"))
    if name is None or not _whole(start) or not _whole(end) or int(end) - int(start) > SHIELD_S:
        return None
    whole = frozenset(SHIELD_FLAGS) <= frozenset(fields.get("Flags", "").split(","))
    return Shield(int(name[1]), user, _nodes(fields) or frozenset()) if whole and user and "," not in user else None


def _nodes(fields: Mapping[str, str]) -> frozenset[str] | None:
    """Return the reservation's nodes, or None if they make no sense."""
    try:
        return frozenset(expand(fields.get("Nodes", "").replace("(null)", ""), "a reservation's nodes"))
    except UsageError:
        return None


def read_reservations(text: str, cpus_of_node: Mapping[str, int]) -> tuple[Reservation, ...]:
    """Return the reservations that have nodes, by start.

    Never raises: a line that makes no sense is passed over. `cpus_of_node`: a reservation that has only some of its
    nodes' CPUs leaves the others to any job, so it is left to Slurm. A reservation without nodes (licences, burst
    buffers) bars nobody.
    """
    reservations = (_reservation(line, cpus_of_node) for line in text.splitlines()[:_MOST_LINES])
    return tuple(sorted((r for r in reservations if r is not None), key=lambda r: (r.start_s, r.name)))


def _reservation(line: str, cpus_of_node: Mapping[str, int]) -> Reservation | None:
    fields = _fields(line)
    if _shield(fields) is not None:
        return None
    flags = fields.get("Flags", "").split(",")
    name, start, end = (fields.get(key, "") for key in ("ReservationName", "StartTime", "EndTime"))
    if not line.startswith("ReservationName=") or not _whole(start) or not _whole(end) or int(end) <= int(start):
        return None
    if not (nodes := _nodes(fields)):
        return None
    cpus = dict(word.partition("=")[::2] for word in fields.get("TRES", "").split(",")).get("cpu", "")
    holds = "a part of its nodes' CPUs is reserved"
    if not _whole(cpus) or int(cpus) >= sum(cpus_of_node.get(node, 0) for node in nodes):
        holds = "Slurm replaces its nodes as jobs take them (REPLACE)" if "REPLACE" in flags else ""
    return Reservation(
        name,
        float(start),
        float(end),
        nodes,
        # Slurm puts jobs of the users of a magnetic one into it by itself, and others out
        bars="MAGNETIC" not in flags and not holds.startswith("a part"),
        holds=holds,
        ends_jobs="FLEX" not in flags,
    )


def _fields(line: str) -> dict[str, str]:
    fields: dict[str, str] = {}
    for word in line.split():
        key, equals, value = word.partition("=")
        if equals:
            fields.setdefault(key, value)  # a later one may be part of a comment
    return fields


def _whole(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 12
