"""Slurm host list expressions: `n[1-3,7],gpu05` -> names."""

from __future__ import annotations

import re

_PART = re.compile(r"([^,\[\]]*)(?:\[([0-9,\-]+)\])?([^,\[\]]*)")
_RANGE = re.compile(r"([0-9]{1,18})(?:-([0-9]{1,18}))?\Z")
MAX_NAMES = 100_000


def expand(text: str) -> tuple[str, ...]:
    """Names of a host list with at most one bracket a name. Raises ValueError on any other text."""
    names: list[str] = []
    position = 0
    text = text.strip()
    if text in ("", "(null)", "N/A", "None", "None assigned"):
        return ()
    while position < len(text):
        match = _PART.match(text, position)
        if match is None or match.end() == position:
            raise ValueError(f"not a host list: {text!r}")
        prefix, ranges, suffix = match.groups()
        if ranges is None:
            names.append(prefix + suffix)
        else:
            for part in ranges.split(","):
                match_range = _RANGE.match(part)
                if match_range is None:
                    raise ValueError(f"not a host list: {text!r}")
                low, high = match_range[1], match_range[2] or match_range[1]
                if not 0 <= int(high) - int(low) <= MAX_NAMES - len(names):
                    raise ValueError(f"not a host list: {text!r}")
                names.extend(f"{prefix}{i:0{len(low)}d}{suffix}" for i in range(int(low), int(high) + 1))
        position = match.end()
        if position < len(text):
            if text[position] != ",":
                raise ValueError(f"not a host list: {text!r}")
            position += 1
            if position == len(text):
                raise ValueError(f"not a host list: {text!r}")
    return tuple(names)
