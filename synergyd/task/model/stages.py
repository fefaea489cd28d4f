"""pipeline_stages.py for arrays of plans."""

from __future__ import annotations

import numpy as np

from synergyd.task.model.arrays import Floats, Ints


def layers_at_ends(layers: Floats | int, pp: Ints) -> tuple[Floats, Floats]:
    """Layers of the first and the last stage, each (N,): those of the others where pp divides the layers, or where the rest would leave
    nothing for an end (rows measured elsewhere: how they were laid out is not known)."""
    middle = np.ceil(layers / pp)
    left = np.asarray(layers - middle * (pp - 2), dtype=np.float64)
    uneven = (layers % pp != 0) & (pp >= 3) & (left >= 2) & (left <= 2 * middle)
    last = np.floor(left / 2)
    return np.where(uneven, left - last, middle), np.where(uneven, last, middle)
