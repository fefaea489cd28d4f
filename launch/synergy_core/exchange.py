"""The gradients that data-parallel replicas exchange: all in every step, or less. Also the words in which daemon and job say it."""

from __future__ import annotations

import re
from dataclasses import dataclass

from synergy_core.errors import UsageError

#: the exchanges that a directive's `comm=` may allow; `exact` is always allowed
KINDS = ("exact", "local", "compressed")
#: kinds of 0.2.0 that were slower than the exact exchange to the same loss (docs/design/communication.md)
REMOVED_KINDS = ("delayed",)
#: the ways that a program may refuse, as Exchange.way names them
WAYS = ("local", "compressed:bf16")
MAX_PERIOD = 10_000  # steps; beyond it replicas would be runs of their own
_TEXT = re.compile(r"exact|local:(?P<period>[0-9]{1,5})|compressed:bf16")
_REMOVED = re.compile(r"delayed|local:[0-9]{1,5}:outer|compressed:powersgd-[0-9]{1,2}")


@dataclass(frozen=True)
class Exchange:
    """One way to exchange.

    `exact`: an all-reduce of each step's gradients. `local`: replicas step alone and average their parameters every
    `period` steps. `compressed`: gradients are sent as bfloat16.
    """

    kind: str = "exact"
    period: int = 1

    @property
    def way(self) -> str:
        """Return one of WAYS, or exact."""
        return "compressed:bf16" if self.kind == "compressed" else self.kind

    def __str__(self) -> str:
        return f"local:{self.period}" if self.kind == "local" else self.way


EXACT = Exchange()


def parse_kinds(text: str, where: str) -> tuple[str, ...]:
    """Return the kinds that `local,compressed` names. Raise UsageError, at `where`."""
    names = tuple(word.strip() for word in text.split(","))
    if not set(names) <= set(KINDS) or len(set(names)) != len(names):
        raise UsageError(where, f"{text!r:.60} is not right", f"some of {', '.join(KINDS)}, with commas between")
    return names


def is_removed(text: str) -> bool:
    """Return whether `text` is a way to exchange that 0.2.0 had and that was removed."""
    return _REMOVED.fullmatch(text) is not None


def parse_exchange(text: str, where: str) -> Exchange:
    """Read what `str` writes; a removed way, in what 0.2.0 stored or sent, is EXACT. Raises UsageError, at `where`."""
    if is_removed(text):
        return EXACT
    match = _TEXT.fullmatch(text)
    period = int((match and match["period"]) or 1)
    if match is None or not 1 <= period <= MAX_PERIOD:
        right = "write exact, local:8 or compressed:bf16"
        raise UsageError(where, f"{text!r:.60} is no way to exchange gradients", right)
    return Exchange(text.partition(":")[0], period=period)


def exchange_today(text: str) -> str:
    """Return `text` as 0.2.0 stored or sent it, or exact where it is a way that was removed."""
    return str(EXACT) if is_removed(text) else text


def kinds_today(names: tuple[str, ...]) -> tuple[str, ...]:
    """Return the kinds among `names`, as 0.2.0 stored or sent them, that still exist."""
    return tuple(name for name in names if name not in REMOVED_KINDS)
