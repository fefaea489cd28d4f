"""Slurm host list expressions: `n[1-3,7],gpu05` -> names."""

from __future__ import annotations

import re
from collections.abc import Iterator

from synergy_core.errors import UsageError, format_value

_PART = re.compile(r"([^,\[\]]*)(?:\[([0-9,\-]+)\])?([^,\[\]]*)")
_RANGE = re.compile(r"([0-9]{1,18})(?:-([0-9]{1,18}))?\Z")
MAX_NAMES = 100_000
_MAX_NAME = 255  # characters


def expand(text: str, where: str = "host list") -> tuple[str, ...]:
    """Return the names of a host list: at most one bracket a name, at most MAX_NAMES names. Raises UsageError on any other text."""
    text = text.strip()
    if text in ("", "(null)", "N/A", "None", "None assigned"):
        return ()
    names: list[str] = []
    try:
        for prefix, ranges, suffix in _parts(text):
            if len(prefix) + len(suffix) > _MAX_NAME or len(names) >= MAX_NAMES:
                raise ValueError
            if ranges is None:
                names.append(prefix)
                continue
            if ranges.count(",") > MAX_NAMES:
                raise ValueError
            for low, high in map(_range, ranges.split(",")):
                if not 0 <= int(high) - int(low) <= MAX_NAMES - len(names):
                    raise ValueError
                names.extend(f"{prefix}{i:0{len(low)}d}{suffix}" for i in range(int(low), int(high) + 1))
    except ValueError:
        right = f"expected one such as n[1-3,7],gpu05, with at most one bracket a name and {MAX_NAMES} names"
        raise UsageError(where, f"{format_value(text)} is not a host list", right) from None
    return tuple(names)


def _parts(text: str) -> Iterator[tuple[str, str | None, str]]:
    """Yield (before the bracket, what is in it or None, behind it) for each name. Raises ValueError."""
    position = 0
    while position <= len(text):
        match = _PART.match(text, position)
        if match is None or match.end() == position or text[match.end() : match.end() + 1] not in ("", ","):
            raise ValueError
        yield match[1], match[2], match[3]
        position = match.end() + 1


def _range(text: str) -> tuple[str, str]:
    match = _RANGE.match(text)
    if match is None:
        raise ValueError
    return match[1], match[2] or match[1]
