"""Slurm host list expressions: `n[1-3,7],gpu05` <-> names."""

from __future__ import annotations

import re

_PART = re.compile(r"([^,\[\]]*)(?:\[([0-9,\-]+)\])?([^,\[\]]*)")
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
                low, _, high = part.partition("-")
                if not low.isdigit() or (high and not high.isdigit()) or int(high or low) - int(low) > MAX_NAMES:
                    raise ValueError(f"not a host list: {text!r}")
                names.extend(f"{prefix}{i:0{len(low)}d}{suffix}" for i in range(int(low), int(high or low) + 1))
        position = match.end()
        if position < len(text):
            if text[position] != ",":
                raise ValueError(f"not a host list: {text!r}")
            position += 1
    return tuple(names)
