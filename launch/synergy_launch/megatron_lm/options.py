"""Words of a command line: the values of an option, and the line without it."""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Iterator, Sequence

OPTION = re.compile(r"--|-[A-Za-z]")  # a value such as -1 or -1e-5 is none

_MAX_DIGITS = 18


def values(arguments: Sequence[str], name: str) -> list[str]:
    """The values of option `name`."""
    pairs = zip(arguments, (*arguments[1:], ""), strict=False)
    return [w.partition("=")[2] or after for w, after in pairs if w.partition("=")[0] == name]


def words(arguments: Sequence[str], name: str) -> list[str]:
    """All values of option `name` where it is given last, up to the next option."""
    found: list[str] = []
    inside = False
    for word in arguments:
        if OPTION.match(word):
            option, equals, value = word.partition("=")
            inside = option == name
            found = ([value] if equals else []) if inside else found
        elif inside:
            found.append(word)
    return found


def number(arguments: Sequence[str], name: str, default: int) -> int:
    """The last positive number among the values of `name`."""
    # Megatron refuses 0 itself; Python refuses to read thousands of digits
    words = (v for v in values(arguments, name) if v.isascii() and v.isdecimal() and len(v) <= _MAX_DIGITS)
    numbers = [int(v) for v in words if int(v)]
    return numbers[-1] if numbers else default


def real(arguments: Sequence[str], name: str, default: float) -> float:
    """The last finite number among the values of `name`."""
    last = default
    for text in values(arguments, name):
        with contextlib.suppress(ValueError):
            last = float(text) if math.isfinite(float(text)) else last
    return last


def has(arguments: Sequence[str], name: str) -> bool:
    """Whether the option is there."""
    return any(a == name or a.startswith(name + "=") for a in arguments)


def drop(arguments: Sequence[str], names: Sequence[str]) -> list[str]:
    """Removes `--name value...` and `--name=value` of each name; values are what follows up to the next option."""
    return [word for word, inside in _inside(arguments, names) if not inside]


def only(arguments: Sequence[str], names: Sequence[str]) -> list[str]:
    """What `drop` removes."""
    return [word for word, inside in _inside(arguments, names) if inside]


def _inside(arguments: Sequence[str], names: Sequence[str]) -> Iterator[tuple[str, bool]]:
    """Each word, and whether it belongs to an option of `names`."""
    inside = False
    for word in arguments:
        if OPTION.match(word):
            inside = word.partition("=")[0] in names
        yield word, inside
