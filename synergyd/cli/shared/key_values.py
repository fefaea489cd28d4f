"""Values of options: finite numbers, and `--set KEY=VALUE` with the options of 0.2.0 that it has taken the place of."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import click
from synergy_core.errors import UsageError, one_line

OPTION = "--set"


class WithOldOptions(click.Command):
    """A verb that still takes, for one release, options of 0.2.0 which are keys of --set now.

    `old`: option -> key; `flags`: those that had no value, whose key is then set to yes.
    """

    def __init__(self, *arguments: Any, old: Mapping[str, str], flags: Iterable[str] = (), **more: Any) -> None:
        super().__init__(*arguments, **more)
        self._old, self._flags = old, frozenset(flags)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse `args` with each old option written as --set KEY=VALUE."""
        return super().parse_args(ctx, list(self._rewritten(iter(args))))

    def _rewritten(self, words: Iterator[str]) -> Iterator[str]:
        for word in words:
            option, equals, value = word.partition("=")
            if option not in self._old:
                yield word
                continue
            if option in self._flags:
                value = "yes"
            elif not equals and (following := next(words, None)) is not None:
                value = following
            yield from (OPTION, f"{self._old[option]}={value}")


def key_values(texts: Iterable[str], types: Mapping[str, click.ParamType[Any]]) -> dict[str, Any]:
    """Return the value of each `KEY=VALUE`, as the type of its key has it; the last of a key counts. Raise UsageError."""
    values: dict[str, Any] = {}
    for text in texts:
        key, _, value = text.partition("=")
        if key not in types:
            raise UsageError(OPTION, f"no key is called {one_line(key, 60)!r}", f"one of: {', '.join(types)}")
        try:
            values[key] = types[key].convert(value, None, None)
        except click.BadParameter as error:
            raise UsageError(f"{OPTION} {key}", one_line(error.message, 200), f"write {OPTION} {key}=VALUE") from None
    return values


class FiniteRange(click.FloatRange):
    """A range of floats without nan, which click.FloatRange lets through, and without infinity."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the number. Raise click.BadParameter (a usage error, exit code 2)."""
        number: float = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value} is not a finite number.", param, ctx)
        return number
