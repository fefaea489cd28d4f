"""What data-parallel replicas exchange, and when: every gradient in every step, or less. The words in which daemon and job say it."""

from __future__ import annotations

import re
from dataclasses import dataclass

from synergyd.errors import UsageError

#: What a directive's `comm=` may allow; `exact` is always allowed.
KINDS = ("exact", "local", "delayed", "compressed")
#: What a program may refuse, as Exchange.way has it.
WAYS = ("local", "delayed", "compressed:bf16", "compressed:powersgd")
MAX_PERIOD = 10_000  # steps; beyond it replicas would be runs of their own
MAX_RANK = 64  # PowerSGD's paper goes to 4, torch's default is 1; a rank near a layer's width compresses nothing
_RIGHT = "exact, local:8, local:64:outer, delayed, compressed:bf16 or compressed:powersgd-4"
_TEXT = re.compile(
    r"(?P<kind>exact|delayed)"
    r"|(?P<local>local):(?P<period>[0-9]{1,5})(?P<outer>:outer)?"
    r"|(?P<compressed>compressed):(?:(?P<bf16>bf16)|powersgd-(?P<rank>[0-9]{1,2}))"
)


@dataclass(frozen=True)
class Exchange:
    """`exact`: all-reduce of each step's gradients. `local`: replicas step alone and average their parameters every `period`
    steps, with `outer` through an outer Nesterov step (DiLoCo). `delayed`: the average of a step's gradients serves the next
    (DaSGD). `compressed`: gradients are sent as bfloat16 where `rank` is 0, else by PowerSGD of that rank.
    """

    kind: str = "exact"
    period: int = 1
    outer: bool = False
    rank: int = 0

    @property
    def way(self) -> str:
        """One of WAYS, or exact."""
        return f"compressed:{'powersgd' if self.rank else 'bf16'}" if self.kind == "compressed" else self.kind

    def __str__(self) -> str:
        if self.kind == "local":
            return f"local:{self.period}{':outer' if self.outer else ''}"
        if self.kind == "compressed":
            return f"compressed:{f'powersgd-{self.rank}' if self.rank else 'bf16'}"
        return self.kind


EXACT = Exchange()


def kinds(text: str, where: str) -> tuple[str, ...]:
    """Those that `local,compressed` names. Raises UsageError, at `where`."""
    found = tuple(word.strip() for word in text.split(","))
    if not set(found) <= set(KINDS) or len(set(found)) != len(found):
        raise UsageError(where, f"{text!r:.60} is not right", f"some of {', '.join(KINDS)}, with commas between")
    return found


def exchange(text: str, where: str) -> Exchange:
    """Reads what `str` writes. Raises UsageError, at `where`."""
    found = _TEXT.fullmatch(text)
    period, rank = (int((found and found[name]) or 1) for name in ("period", "rank"))
    if found is None or not 1 <= period <= MAX_PERIOD or not 1 <= rank <= MAX_RANK:
        raise UsageError(where, f"{text!r:.60} is no way to exchange gradients", f"write {_RIGHT}")
    if found["local"]:
        return Exchange("local", period=period, outer=bool(found["outer"]))
    if found["compressed"]:
        return Exchange("compressed", rank=0 if found["bf16"] else rank)
    return Exchange(found["kind"])
