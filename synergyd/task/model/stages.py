"""pipeline_stages.py for arrays of plans."""

from __future__ import annotations

import numpy as np

from synergyd.task.model.arrays import Floats, Ints


def layers_at_ends(layers: Floats | int, pp: Ints, mtp: Floats | int = 0) -> tuple[Floats, Floats]:
    """Layers of the first and the last stage, each (N,), by the rule of `stage_layers`; as many as the others have where no layout is
    known (rows measured elsewhere)."""
    all_, pp, further = np.broadcast_arrays(np.asarray(layers, np.int64), pp, np.asarray(mtp, np.int64))
    most = -(-all_ // pp)
    left = all_ - most * (pp - 2)
    uneven = (all_ % pp != 0) & (pp >= 3) & (left >= 2) & (left <= 2 * most)
    half = left // 2
    last = half - np.minimum(further, np.minimum(half - 1, most - (left - half)))
    first = np.where(uneven, left - last, most)
    return first.astype(np.float64), np.where(uneven, last, most).astype(np.float64)
