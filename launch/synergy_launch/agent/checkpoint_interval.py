"""The time to train between two checkpoints, from the cost of one and from how often runs fail. Pure.

The interval that loses least is about sqrt(2 d M) for a checkpoint of d seconds and a mean time M between failures
(Young 1974); Daly 2006, equation 37, is right also where d is no longer small against M.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

# Llama 3's 54 days on 16384 GPUs: 419 unexpected interruptions (Grattafiori et al. 2024, section 3.3.4), one in 50,000
# GPU hours. It counts like this many failures seen, so that a run's own soon outweigh it.
PRIOR_GPU_S = 50_000 * 3600.0
_PRIOR_FAILURES = 1.0
FIRST_S = 300.0  # before anything was measured
SHORTEST_S = 15.0
LONGEST_S = 6 * 3600.0
#: the part of training's time that memory checkpoints may take
MEMORY_COST = 0.01


def daly_s(save_s: float, failure_s: float) -> float:
    """Return the seconds of training between two checkpoints that take `save_s` each, with a failure each `failure_s` on average.

    sqrt(2 d M) [1 + sqrt(d / 2M) / 3 + (d / 2M) / 9] - d below d = 2 M, M from there on (Daly 2006, equation 37).
    """
    if save_s >= 2 * failure_s:
        return failure_s
    part = save_s / (2 * failure_s)
    return math.sqrt(2 * save_s * failure_s) * (1 + math.sqrt(part) / 3 + part / 9) - save_s


def failure_s(gpus: int, run_s: float, failures: int) -> float:
    """Return the mean seconds between failures of a run on `gpus` GPUs that failed `failures` times in `run_s` seconds of training.

    It is the mean of a gamma posterior of the rate a GPU, whose prior is one failure in PRIOR_GPU_S.
    """
    rate = (_PRIOR_FAILURES + failures) / (PRIOR_GPU_S * _PRIOR_FAILURES + gpus * run_s)
    return 1 / (rate * gpus)


@dataclass(frozen=True)
class Interval:
    """The chosen interval and what it was made of, all in seconds.

    `save_s`: how long one checkpoint holds training up. `written_s`: the time until one is good, where that is longer.
    """

    every_s: float
    save_s: float
    failure_s: float
    written_s: float = 0.0

    def format(self) -> str:
        """Return the interval and its reasons as text, for `explain`."""
        beside = self.written_s > self.save_s
        takes = f"holds training up for {_format_span(self.save_s)} of {_format_span(self.written_s)}" if beside else ""
        return (
            f"checkpoints every {_format_span(self.every_s)}: one {takes or f'takes {_format_span(self.save_s)}'}, "
            f"a failure is expected every {_format_span(self.failure_s)}"
        )


def choose_interval(gpus: int, save_s: float, run_s: float, failures: int, written_s: float = 0.0) -> Interval:
    """Return the interval for a run as it stands. It is never so short that one checkpoint is still being written when the next is due."""
    expected = failure_s(gpus, run_s, failures)
    least = max(SHORTEST_S, 2 * written_s)
    return Interval(min(LONGEST_S, max(least, daly_s(save_s, expected))), save_s, expected, written_s)


def choose_memory_interval(held_s: float, copied_s: float) -> float:
    """Return the seconds between two memory checkpoints, one of which holds training up for `held_s` seconds in all.

    `copied_s`: the seconds until it is held twice. Failures do not matter here, in contrast to checkpoints on disk: whoever asks for
    memory checkpoints wants to lose few steps, at a known price.
    """
    return max(SHORTEST_S, held_s / MEMORY_COST, 2 * copied_s)


def _format_span(seconds: float) -> str:
    for size, unit in ((365 * 86_400, "years"), (86_400, "days"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds:.3g} s"
