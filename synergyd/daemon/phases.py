"""The time that each phase of the last epoch took, and each stage of its decision."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import perf_counter

#: in their order
PHASES = ("observe", "model", "decide", "store", "act")


@dataclass
class Phases:
    """The times of phases. `seconds`: of the last epoch, by phase."""

    seconds: dict[str, float] = field(default_factory=dict)
    #: seconds of the stages of `decide`
    stages: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def time_phase(self, name: str) -> Iterator[None]:
        """Time the block as (a part of) the phase `name`; the first phase of an epoch forgets the epoch before."""
        if name == PHASES[0]:
            self.seconds = {}
        began_s = perf_counter()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + perf_counter() - began_s

    @contextmanager
    def of_stage(self, name: str) -> Iterator[None]:
        """Measure one stage of the decision."""
        began_s = perf_counter()
        try:
            yield
        finally:
            self.stages[name] = perf_counter() - began_s
