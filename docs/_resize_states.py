"""The resize state machine's transitions, from the table that it follows: TRANSITIONS of synergyd/control/resize/machine.py."""

from __future__ import annotations


def transitions() -> dict[tuple[str, str], list[str]]:
    """Return (from, to) -> what leads there, in words; by state. A state that is entered anew counts as a way to itself."""
    from synergyd.control.resize.lifecycle import ResizeState
    from synergyd.control.resize.machine import TRANSITIONS

    ways: dict[tuple[str, str], list[str]] = {}
    for state in ResizeState:
        for row in TRANSITIONS:
            if row.source is state and row.target is not None:
                words = ways.setdefault((state.value, row.target.value), [])
                if row.description not in words:
                    words.append(row.description)
    return ways
