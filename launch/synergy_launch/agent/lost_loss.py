"""A loss that stops being a number at a batch that has grown: the run goes back to its last checkpoint, and to a batch that it bore.

Without Synergy the batch, and the learning rate with it, would not have grown. At the script's own batch nothing is done. What is
kept is a small file beside the checkpoints, since the run that follows starts with the same plan.
"""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

FILE = "synergy-batch-bound.json"
#: in a row. A step or two are bad data, or one that a gradient scaler leaves out; parameters that are no numbers stay so
LOST_STEPS = 10
#: as many losses as a trend is fitted to at least (synergyd.loss_trend)
BORNE_STEPS = 24
_LIMIT_BYTES = 256
_MAX_BATCH = 1 << 27  # as run_folder's


class LostLoss:
    """Watches one run's losses. `base`: the script's own batch, None: the batch never moves. `bound`: the largest batch that it may
    have, None: any."""

    def __init__(self, base: int | None = None, bound: int | None = None) -> None:
        self.bound = bound
        self.in_a_row = 0
        self._base = base
        self._borne: dict[int, int] = {}  # steps with a loss that was a number, by batch

    def saw(self, finite: bool, batch: int) -> None:
        """The newest step's loss and gradient, at `batch`."""
        self.in_a_row = 0 if finite else self.in_a_row + 1
        if finite:
            self._borne[batch] = self._borne.get(batch, 0) + 1

    def harms(self, batch: int) -> bool:
        """The newest step is lost, and `batch` may be why: its state is not to be saved."""
        return self.in_a_row > 0 and self._base is not None and batch > self._base

    def bounded(self, batch: int) -> int | None:
        """The bound from now on where the loss is lost for good at `batch`; None where it is not."""
        if not self.harms(batch) or self.in_a_row < LOST_STEPS or self._base is None:
            return None
        borne = [b for b, steps in self._borne.items() if b < batch and steps >= BORNE_STEPS]
        self.bound = max(self._base, *borne) if borne else self._base
        return self.bound


def read(folder: Path | None) -> int | None:
    """The bound that a run before this one has left beside its checkpoints."""
    if folder is None:
        return None
    try:
        with (folder / FILE).open("rb") as stream:
            batch = json.loads(stream.read(_LIMIT_BYTES))["batch"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return batch if type(batch) is int and 0 < batch < _MAX_BATCH else None


def write(folder: Path, bound: int) -> None:
    """Replaces the bound. Where it can't be written the next run may lose its loss once more."""
    fresh = folder / f".{FILE}"
    with contextlib.suppress(OSError):
        fresh.write_text(json.dumps({"batch": bound}) + "\n", encoding="ascii")
        fresh.replace(folder / FILE)
