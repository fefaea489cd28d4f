"""`scontrol show reservation --oneliner` -> the reservations of nodes. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from synergyd.control.known.time_view import Reservation
from synergyd.errors import UsageError
from synergyd.wire.hostlist import expand

_MOST_LINES = 10_000  # far above any site's


def read_reservations(text: str, cpus_of_node: Mapping[str, int]) -> tuple[Reservation, ...]:
    """Reservations that have nodes, by start. Never raises: a line that makes no sense is passed over.

    `cpus_of_node`: one that has only some of its nodes' CPUs leaves the others to any job, so it is left to Slurm. One without
    nodes (licences, burst buffers) bars nobody.
    """
    found = (_reservation(line, cpus_of_node) for line in text.splitlines()[:_MOST_LINES])
    return tuple(sorted((r for r in found if r is not None), key=lambda r: (r.start_s, r.name)))


def _reservation(line: str, cpus_of_node: Mapping[str, int]) -> Reservation | None:
    fields: dict[str, str] = {}
    for word in line.split():
        key, equals, value = word.partition("=")
        if equals:
            fields.setdefault(key, value)  # a later one may be part of a comment
    flags = fields.get("Flags", "").split(",")
    name, start, end = (fields.get(key, "") for key in ("ReservationName", "StartTime", "EndTime"))
    if not line.startswith("ReservationName=") or not _whole(start) or not _whole(end) or int(end) <= int(start):
        return None
    try:
        nodes = frozenset(expand(fields.get("Nodes", "").replace("(null)", ""), f"reservation {name}"))
    except UsageError:
        return None
    if not nodes:
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


def _whole(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 12
