"""Words of a command line: the values of an option, and the line without it."""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Iterator, Sequence

OPTION = re.compile(r"--|-[A-Za-z]")  # a value such as -1 or -1e-5 is none

_MAX_DIGITS = 18


def option_values(arguments: Sequence[str], name: str) -> list[str]:
    """Return the values of option `name`."""
    pairs = zip(arguments, (*arguments[1:], ""), strict=False)
    return [w.partition("=")[2] or after for w, after in pairs if w.partition("=")[0] == name]


def option_words(arguments: Sequence[str], name: str) -> list[str]:
    """Return all values of option `name` where it is given last, up to the next option."""
    values: list[str] = []
    inside = False
    for word in arguments:
        if OPTION.match(word):
            option, equals, value = word.partition("=")
            inside = option == name
            values = ([value] if equals else []) if inside else values
        elif inside:
            values.append(word)
    return values


def option_number(arguments: Sequence[str], name: str, default: int) -> int:
    """Return the last positive number among the values of `name`, else `default`."""
    # Megatron refuses 0 itself; Python refuses to read thousands of digits
    words = (v for v in option_values(arguments, name) if v.isascii() and v.isdecimal() and len(v) <= _MAX_DIGITS)
    numbers = [int(v) for v in words if int(v)]
    return numbers[-1] if numbers else default


def option_real(arguments: Sequence[str], name: str, default: float) -> float:
    """Return the last finite number among the values of `name`, else `default`."""
    last = default
    for text in option_values(arguments, name):
        with contextlib.suppress(ValueError):
            last = float(text) if math.isfinite(float(text)) else last
    return last


def has_option(arguments: Sequence[str], name: str) -> bool:
    """Return whether the option is there."""
    return any(a == name or a.startswith(name + "=") for a in arguments)


def drop_options(arguments: Sequence[str], names: Sequence[str]) -> list[str]:
    """Return `arguments` without `--name value...` and `--name=value` of each name; values are what follows up to the next option."""
    return [word for word, inside in _mark_values(arguments, names) if not inside]


def only_options(arguments: Sequence[str], names: Sequence[str]) -> list[str]:
    """Return the words that `drop_options` removes."""
    return [word for word, inside in _mark_values(arguments, names) if inside]


def _mark_values(arguments: Sequence[str], names: Sequence[str]) -> Iterator[tuple[str, bool]]:
    """Yield each word, and whether it belongs to an option of `names`."""
    inside = False
    for word in arguments:
        if OPTION.match(word):
            inside = word.partition("=")[0] in names
        yield word, inside
