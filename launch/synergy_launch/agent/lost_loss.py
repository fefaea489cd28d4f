"""A loss that stops being a number at a batch that has grown: the run goes back to its last checkpoint, and to a batch that it bore.

Without Synergy the batch, and the learning rate with it, would not have grown. At the script's own batch nothing is done. The
bound is kept in a small file beside the checkpoints, since the run that follows starts with the same plan.
"""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

from synergy_core.records import Plan

from synergy_launch.batch.tuner import fit_batch

FILE = "synergy-batch-bound.json"
#: in a row. A step or two are bad data, or one that a gradient scaler leaves out; parameters that are no numbers stay so
LOST_STEPS = 10
#: as many losses as a trend is fitted to at least (synergy_core.loss_trend)
BORNE_STEPS = 24
_LIMIT_BYTES = 256
_MAX_BATCH = 1 << 27  # the same bound as in run_folder


class LostLoss:
    """A watch over one run's losses.

    `base`: the script's own batch, None: the batch never moves. `bound`: the largest batch that it may have, None: any.
    """

    def __init__(self, base: int | None = None, bound: int | None = None) -> None:
        # the folder may be that of a run with a smaller base: the script's own batch is never cut
        self.bound = None if base is None or bound is None else max(base, bound)
        self.in_a_row = 0
        self._base = base
        self._at = 0  # the largest batch of the steps in this row
        self._stays = False  # there is nothing to go back to in this row
        self._borne: dict[int, int] = {}  # steps with a loss that was a number, by batch

    def is_of(self, base: int | None) -> bool:
        """Return whether this watches a run whose batch may move from `base`."""
        return base is not None and self._base == base

    def record_step(self, finite: bool) -> None:
        """Record whether the newest step's loss and gradient, as this rank knows them, are finite."""
        self.in_a_row = 0 if finite else self.in_a_row + 1

    def record_lost_steps(self, in_a_row: int, batch: int) -> None:
        """Take in the most lost steps in a row that any rank saw, the newest step having been made at `batch`."""
        self.in_a_row = in_a_row
        self._at = max(self._at, batch) if in_a_row else 0
        if not in_a_row:
            self._stays = False
            self._borne[batch] = self._borne.get(batch, 0) + 1

    def note_no_way_back(self) -> None:
        """Note that there is no checkpoint that could be gone back to, or replaced by a worse one."""
        self._stays = True

    @property
    def is_harmful(self) -> bool:
        """Return whether the newest step is lost and a batch that has grown may be why: its state is not to be saved."""
        return self.in_a_row > 0 and self._base is not None and self._at > self._base and not self._stays

    @property
    def is_lost_for_good(self) -> bool:
        return self.is_harmful and self.in_a_row >= LOST_STEPS

    def tighten_bound(self) -> int:
        """Return the bound from now on, where the loss is lost for good."""
        assert self._base is not None
        borne = [b for b, steps in self._borne.items() if b < self._at and steps >= BORNE_STEPS]
        self.bound = max(self._base, *borne) if borne else self._base
        return self.bound

    def limit_batch(self, plan: Plan, batch: tuple[int, int] | None) -> tuple[int, int] | None:
        """Return `batch` (global, micro), or what `plan` has, cut down to the bound."""
        now, micro = batch or (plan.global_batch, plan.micro_batch)
        if self.bound is None or now <= self.bound:
            return batch
        below = fit_batch(plan, self.bound, micro)
        return (below.global_batch, below.micro_batch) if below is not None else batch

    def format_loss_note(self) -> str:
        return (
            f"the loss is no number for {LOST_STEPS} steps at global batch {self._at}: at most {self.bound} from now on"
        )


def read(folder: Path | None) -> int | None:
    """Return the bound that a run before this one has left beside its checkpoints."""
    if folder is None:
        return None
    try:
        with (folder / FILE).open("rb") as stream:
            batch = json.loads(stream.read(_LIMIT_BYTES))["batch"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return batch if type(batch) is int and 0 < batch < _MAX_BATCH else None


def write(folder: Path, bound: int) -> None:
    """Replace the bound. Where it can't be written the next run may lose its loss once more."""
    fresh = folder / f".{FILE}"
    with contextlib.suppress(OSError):
        fresh.write_text(json.dumps({"batch": bound}) + "\n", encoding="ascii")
        fresh.replace(folder / FILE)
