"""pipeline_stages.py for arrays of plans."""

from __future__ import annotations

import numpy as np

from synergyd.pipeline_stages import stage_layers
from synergyd.task.model.arrays import Floats, Ints


def layers_at_ends(layers: Floats | int, pp: Ints, mtp: Floats | int = 0) -> tuple[Floats, Floats]:
    """Layers of the first and the last stage, each (N,); as many as the others have where no layout is known (rows measured elsewhere)."""
    rows = np.stack(np.broadcast_arrays(np.asarray(layers, dtype=np.float64), pp, np.asarray(mtp, dtype=np.float64)))
    # plans of one search differ in few of these
    kinds, which = np.unique(rows, axis=1, return_inverse=True)
    ends = []
    for count, stages, further in kinds.T.astype(np.int64).tolist():
        found = stage_layers(count, stages, further)
        ends.append((found.first, found.last) if found else (-(-count // stages),) * 2)
    first, last = np.array(ends, dtype=np.float64).reshape(-1, 2)[which.reshape(-1)].T
    return first, last
