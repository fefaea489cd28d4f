"""Checks of nodes as strangers send them: in a node's line to the first node, and in a job's reports."""

from __future__ import annotations

import re
from dataclasses import replace

from synergy_core.errors import UsageError, one_line
from synergy_core.node_check import DEVICE_CHARACTERS, MEASURES, NodeCheck
from synergy_core.wire.codec import decode

MAX_CHECKS = 32  # in a report: about 10 KB
NODE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.\-]{0,63}\Z")
_LIMITS: dict[str, tuple[float, float]] = {
    "taken_s": (0, 1e12), "gpus": (0, 1024), "cpus": (1, 65_536), **dict.fromkeys(MEASURES, (0.0, 1e18)),
}  # fmt: skip


def read_check(data: object) -> NodeCheck | None:
    """Return the check in `data`, as JSON has it; None where it makes no sense."""
    try:
        check = decode(NodeCheck, data, "check")
    except UsageError:
        return None
    return next(iter(harmless_checks((check,))), None)


def harmless_checks(checks: tuple[NodeCheck, ...]) -> tuple[NodeCheck, ...]:
    """Return the first MAX_CHECKS of `checks`: those whose numbers are within bounds, with text that is safe for a terminal."""
    return tuple(
        replace(each, device=one_line(each.device, DEVICE_CHARACTERS))
        for each in checks[:MAX_CHECKS]
        if NODE_NAME.match(each.node) and each.hung_at in ("", *MEASURES) and _has_sound_numbers(each)
    )


def _has_sound_numbers(check: NodeCheck) -> bool:
    values = ((getattr(check, name), limits) for name, limits in _LIMITS.items())
    return all(value is None or low <= value <= high for value, (low, high) in values)  # false for NaN
