"""Rules for whether a communication task that is ready may start now: SRSF(t) and AdaDUAL (arXiv 2002.10105), pure.

A `Discipline` is the order in which waiting tasks are considered and the rule by which each may start.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from synergy_core.errors import UsageError

from synergyd.links.model import Link

LOOK_AHEAD = "look-ahead"  # none of these for good: whichever the forecast says (lookahead.py)


class AdmissionRule(Protocol):
    """The rule that decides on one task.

    `size_mb` it has to send, `sharers` tasks are on the most loaded link it crosses, `rests_mb` is what is left of every task
    it would share a link with, `link` the figures of that most loaded link.
    """

    @property
    def name(self) -> str: ...

    @property
    def most(self) -> int:
        """Return the most tasks on a link that the rule may ever allow: with so many there, asking is of no use."""
        ...

    def admits(self, size_mb: float, sharers: int, rests_mb: Sequence[float], link: Link) -> bool: ...


@dataclass(frozen=True)
class Srsf:
    """SRSF(t): at most `most` tasks on any link. `most` 1 avoids all contention."""

    most: int

    @property
    def name(self) -> str:
        return f"srsf-{self.most}"

    def admits(self, size_mb: float, sharers: int, rests_mb: Sequence[float], link: Link) -> bool:
        return sharers < self.most


@dataclass(frozen=True)
class AdaDual:
    """AdaDUAL: alone at once, beside one other task only with a small message, never as a third.

    Small is M_new/M_rest <= b/(2(b+h)), where M_rest is what is left of the other one.

    For two tasks this minimises the sum of their finish times. Waiting: b*R and b*R + b*M. Sharing, M <= R: (2b+h)*M and
    (b+h)*M + b*R. Sharing wins iff 2(b+h)*M <= b*R; for M > R it never does.
    """

    name: str = "ada-srsf"
    most: int = 2

    def admits(self, size_mb: float, sharers: int, rests_mb: Sequence[float], link: Link) -> bool:
        if sharers == 0:
            return True
        return sharers == 1 and size_mb <= link.threshold() * min(rests_mb)


@dataclass(frozen=True)
class Discipline:
    """The way in which waiting tasks get their links.

    `by_time` False: shortest remaining service (compute x GPUs) first, the paper's order. True: shortest remaining time first,
    the job's all-reduces alone on their links included. With `reserve` a task that may not start yet keeps its links from the
    time they will be free; one behind it may only use them alone and if its message will have ended by then (EASY backfilling,
    on links).
    """

    rule: AdmissionRule
    by_time: bool = False
    reserve: bool = False

    @property
    def name(self) -> str:
        return self.rule.name + "-time" * self.by_time + "-reserve" * self.reserve


NOBODY_WAITS = Discipline(Srsf(10_000))  # more jobs than this never share a link


def make_discipline(name: str) -> Discipline:
    """Return the discipline named `srsf-T` or `ada-srsf`, each with `-time` and `-reserve` after it. Raises UsageError."""
    rest, reserve = (name[: -len("-reserve")], True) if name.endswith("-reserve") else (name, False)
    rest, by_time = (rest[: -len("-time")], True) if rest.endswith("-time") else (rest, False)
    kind, _, most = rest.partition("-")
    if rest == "ada-srsf":
        return Discipline(AdaDual(), by_time, reserve)
    if kind == "srsf" and most.isascii() and most.isdecimal() and int(most) > 0:
        return Discipline(Srsf(int(most)), by_time, reserve)
    raise UsageError("policy", f"no discipline {name!r}", "srsf-T (T tasks on a link at most), ada-srsf or look-ahead")
