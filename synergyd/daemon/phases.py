"""How long each phase of the last epoch took."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import perf_counter

#: in their order
PHASES = ("observe", "model", "decide", "store", "act")


@dataclass
class Phases:
    """`seconds`: of the last epoch, by phase."""

    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def of(self, name: str) -> Iterator[None]:
        """The block is (a part of) the phase; the first phase of an epoch forgets the epoch before."""
        if name == PHASES[0]:
            self.seconds = {}
        began_s = perf_counter()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + perf_counter() - began_s
