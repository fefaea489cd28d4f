"""Lightning's counters in a checkpoint, as a run with another number of micro-batches a step has to find them.

Lightning counts micro-batches, of which a step has more with fewer ranks, and its place in an epoch is such a number. So they are
written anew when a checkpoint is loaded, from the steps that it has done, in one of the two forms that Lightning 2.6 goes on from
without a hook too many: inside an epoch, as after a batch's last hook; or before an epoch. Nothing here knows of Lightning.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from synergy_core.errors import UsageError

_COUNTS = ("ready", "started", "processed", "completed")
_BATCHES, _EPOCHS, _LOOP = "epoch_loop.batch_progress", "epoch_progress", "epoch_loop.state_dict"


def rewrite(checkpoint: Mapping[str, Any], was: int, now: int, epoch_steps: int) -> bool:
    """Rewrite the counters of `checkpoint` in place, from `was` to `now` micro-batches a step; an epoch has `epoch_steps` steps.

    Return whether it goes on before an epoch, with nothing of it done. Raises UsageError where they are not those of a whole step.
    """
    where = "fit: ckpt_path"
    try:
        steps, loop = int(checkpoint["global_step"]), checkpoint["loops"]["fit_loop"]
        batches, epochs, stepped = loop[_BATCHES], loop[_EPOCHS], loop[_LOOP]
        ready, done = int(epochs["current"]["ready"]), int(epochs["current"]["processed"])
        micro = int(batches["current"]["processed"])
    except (KeyError, TypeError, ValueError) as error:
        what = f"its loops are not those of Lightning 2 ({type(error).__name__}: {error})"
        raise UsageError(where, what, "a checkpoint of Lightning 2") from None
    if micro % was:
        raise UsageError(where, "it was written inside a step, whose gradients it has not", "synergy.resume_from()")
    in_epoch = 0 if ready == done else micro // was  # nothing is left to do of an epoch that has ended
    if in_epoch == epoch_steps:
        done, in_epoch = done + 1, 0
    batches["is_last_batch"] = False
    _set_counts(batches["total"], steps * now)
    _set_counts(batches["current"], in_epoch * now)
    if in_epoch:  # Lightning completes the batch itself, and counts its step for the loggers
        for which in ("total", "current"):
            batches[which]["completed"] -= 1
        stepped["_batches_that_stepped"] = steps - 1
        return False
    for which in ("total", "current"):
        _set_counts(epochs[which], done)
    stepped["_batches_that_stepped"] = steps
    return True


def _set_counts(counts: dict[str, int], value: int) -> None:
    for name in _COUNTS:
        counts[name] = value
