"""`scontrol show reservation --oneliner` -> the reservations that keep jobs off whole nodes. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from synergyd.control.time_view import Reservation
from synergyd.errors import UsageError
from synergyd.wire.hostlist import expand

_MOST_LINES = 10_000  # far above any site's


def read_reservations(text: str, cpus_of_node: Mapping[str, int]) -> tuple[Reservation, ...]:
    """Reservations of whole nodes, by start. Never raises: a line that makes no sense is passed over.

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
    if "MAGNETIC" in fields.get("Flags", "").split(","):
        return None  # Slurm puts jobs of its users into it by itself, and others out
    name, start, end = (fields.get(key, "") for key in ("ReservationName", "StartTime", "EndTime"))
    if not line.startswith("ReservationName=") or not _whole(start) or not _whole(end) or int(end) <= int(start):
        return None
    try:
        nodes = frozenset(expand(fields.get("Nodes", "").replace("(null)", ""), f"reservation {name}"))
    except UsageError:
        return None
    cpus = dict(word.partition("=")[::2] for word in fields.get("TRES", "").split(",")).get("cpu", "")
    if not nodes or (_whole(cpus) and int(cpus) < sum(cpus_of_node.get(node, 0) for node in nodes)):
        return None
    return Reservation(name, float(start), float(end), nodes)


def _whole(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 12
