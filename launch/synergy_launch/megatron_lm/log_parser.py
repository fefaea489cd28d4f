"""Megatron-LM's own log lines, read for reports where Synergy's agent is not inside the process.

The lines are those that training_log() of core_v0.12 to core_v0.16 prints on the last rank, one every --log-interval
iterations; a stranger's line that looks like one can only give numbers within bounds. Pure but for `Log`'s own state.
"""

from __future__ import annotations

import math
import re
import statistics
from collections import deque
from dataclasses import dataclass, replace

from synergy_launch.agent.loss_spike import SpikeWatch

MAX_LINE = 8192  # bytes; what is longer is none of Megatron's
_ITERATION = re.compile(r"\biteration +([0-9]{1,12})/ *([0-9]{1,12}) \|")
_MEMORY = re.compile(
    r"\[Rank [0-9]{1,7}\].{0,200}? memory \(MB\) \|.{0,200}?\| max allocated: ([0-9]{1,9}(?:\.[0-9]{1,20})?) "
)
_SAVED = re.compile(r"successfully saved checkpoint from iteration +([0-9]{1,12}) to ")
_UNSTEADY = 2  # lines after a start: the first pays for allocation, and what it counts is averaged into the second
_RECENT = 20


@dataclass(frozen=True, kw_only=True)
class LogLine:
    """One line: averages over the iterations since the line before. None where the line has none."""

    iteration: int
    last: int  # iteration at which the run ends
    consumed_samples: int | None = None  # samples
    step_s: float | None = None
    batch: int | None = None
    loss: float | None = None
    grad_norm: float | None = None
    rate: float | None = None
    skipped_iterations: int = 0
    nan: int = 0


def read_line(text: str) -> LogLine | None:
    """Parse a training line; return None for any other line.

    Numbers that are not finite, or below 0 where that makes no sense, count as missing.
    """
    head = _ITERATION.search(text)
    if head is None or len(text) > MAX_LINE:
        return None
    fields: dict[str, str] = {}
    for part in text[head.end() :].split("|"):
        key, colon, value = part.rpartition(":")
        if colon:
            fields.setdefault(key.strip(), value.strip())
    losses = [k for k in fields if k.endswith("loss")]
    elapsed = _number(fields.get("elapsed time per iteration (ms)"))
    return LogLine(
        iteration=int(head[1]),
        last=int(head[2]),
        consumed_samples=_parse_whole_number(fields.get("consumed samples")),
        step_s=elapsed / 1000 if elapsed else None,
        batch=_parse_whole_number(fields.get("global batch size")) or None,
        # not printed where it is NaN
        loss=_number(fields.get("lm loss" if "lm loss" in losses else losses[0])) if losses else None,
        grad_norm=_number(fields.get("grad norm")),
        rate=_number(fields.get("learning rate")),
        skipped_iterations=_parse_whole_number(fields.get("number of skipped iterations")) or 0,
        nan=_parse_whole_number(fields.get("number of nan iterations")) or 0,
    )


def read_peak_bytes(text: str) -> int | None:
    """Read the peak memory from a rank's memory report (once, after the first iterations)."""
    match = _MEMORY.search(text) if len(text) <= MAX_LINE else None
    return int(float(match[1]) * 2**20) if match else None


def read_saved_iteration(text: str) -> int | None:
    """Read the iteration of a checkpoint that rank 0 reports as saved."""
    match = _SAVED.search(text) if len(text) <= MAX_LINE else None
    return int(match[1]) if match else None


def split_first_iteration(first: LogLine, second: LogLine) -> LogLine:
    """Return `second` without `first`: Megatron-LM prints the first iteration after a start, and counts it into the next line again.

    Its loss is an average over the iterations that were not skipped, its counts are sums.
    """
    skipped, nan = max(0, second.skipped_iterations - first.skipped_iterations), max(0, second.nan - first.nan)
    before = 1 - min(1, first.skipped_iterations)
    since = second.iteration - first.iteration - skipped
    loss = second.loss
    if loss is not None and first.loss is not None and before and since > 0:
        loss = max(0.0, (loss * (since + before) - first.loss * before) / since)
    return replace(second, loss=loss, skipped_iterations=skipped, nan=nan)


class Log:
    """The lines read so far from one incarnation's output. `parse_piece` takes it in pieces of any size, of any content."""

    def __init__(self) -> None:
        self.newest: LogLine | None = None
        self.every = 1  # iterations between two lines
        self.peak_bytes: int | None = None
        self.saved: int | None = None
        self.skipped = self.nan = 0
        self.spikes = SpikeWatch()  # of the means that are printed
        self._lines = 0
        self._first: LogLine | None = None  # after the last start
        self._recent: deque[float] = deque(maxlen=_RECENT)
        self._rest = b""
        self._too_long = False

    def parse_piece(self, piece: bytes) -> list[LogLine]:
        """Return the training lines that `piece` has completed."""
        *lines, rest = (self._rest + piece).split(b"\n")
        completed = []
        for line in lines:
            if not self._too_long and len(line) <= MAX_LINE:
                log_line = self._take(line.decode("utf-8", "replace"))
                completed += [log_line] if log_line else []
            self._too_long = False
        # the end of a line that never ends is not kept
        self._too_long = self._too_long or len(rest) > MAX_LINE
        self._rest = b"" if self._too_long else rest
        return completed

    def forget_last_start(self) -> None:
        """Forget the lines of the last start: the processes were started anew."""
        self._lines, self._first, self._rest, self._too_long = 0, None, b"", False

    @property
    def step_s(self) -> float | None:
        """Return the median of the recent lines' seconds an iteration."""
        return statistics.median(self._recent) if self._recent else None

    @property
    def first_step_s(self) -> float | None:
        """Return the seconds of the first iteration after the last start."""
        return self._first.step_s if self._first is not None else None

    @property
    def trained_s(self) -> float | None:
        """Return the seconds of training since the last start, by the iterations that were printed."""
        first, step_s = self._first, self.step_s
        if first is None or first.step_s is None or step_s is None or self.newest is None:
            return None
        return first.step_s + step_s * max(0, self.newest.iteration - first.iteration)

    def _take(self, text: str) -> LogLine | None:
        peak, saved, line = read_peak_bytes(text), read_saved_iteration(text), read_line(text)
        if peak:  # 0 where there is no GPU
            self.peak_bytes = max(peak, self.peak_bytes or 0)
        if saved is not None:
            self.saved = saved
        if line is None:
            return None
        if self.newest is not None and line.iteration > self.newest.iteration:
            self.every = line.iteration - self.newest.iteration
        if self.newest is not None and line.batch != self.newest.batch:
            self._recent.clear()  # seconds of another batch
        self._lines += 1
        if self._lines == 1:
            self._first = line
        elif self._lines == 2 and self._first is not None:
            line = split_first_iteration(self._first, line)
        if self._lines > _UNSTEADY and line.step_s is not None:
            self._recent.append(line.step_s)
        self.skipped, self.nan = self.skipped + line.skipped_iterations, self.nan + line.nan
        self.newest = line
        self._watch_loss(line)
        return line

    def _watch_loss(self, line: LogLine) -> None:
        """Judge the loss of a line. The order of the data is Megatron-LM's: a spike is only told."""
        if line.loss is None and not line.nan:
            return
        self.spikes.record_step(line.iteration, line.loss, line.batch or 0, finite=not line.nan, samples=None)
        self.spikes.agree(self.spikes.steps)
        if self.spikes.is_due and self.spikes.spike is not None:
            self.spikes.note_answer(replace(self.spikes.spike, answer="own-order"))


def _number(text: str | None) -> float | None:
    try:
        value = float(text) if text and len(text) <= 40 else math.nan
    except ValueError:
        return None
    return value if math.isfinite(value) and value >= 0 else None


def _parse_whole_number(text: str | None) -> int | None:
    return int(text) if text and len(text) <= 15 and text.isascii() and text.isdecimal() else None
