"""The rules of pipeline_stages.py for arrays of plans."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from synergy_core.pipeline_stages import stage_layers

from synergyd.jobmodel.model.arrays import Floats, Ints


def layers_at_ends(layers: Floats | int, pp: Ints, mtp: Floats | int = 0) -> tuple[Floats, Floats]:
    """Return the layers of the first and the last stage, each (N,), by the rule of `stage_layers`.

    Where no layout is known (rows measured elsewhere), the ends have as many layers as the other stages.
    """
    if np.ndim(layers) == 0 and np.ndim(mtp) == 0:
        first, last = _by_stages(int(layers), int(mtp), int(pp.max()) if pp.size else 1)
        return first[pp], last[pp]
    numbers = np.stack(np.broadcast_arrays(np.asarray(layers, np.int64), pp, np.asarray(mtp, np.int64)))
    # few rows differ, even of many models
    _, one, which = np.unique(numbers[0] << 40 | numbers[1] << 20 | numbers[2], return_index=True, return_inverse=True)
    ends = np.array([_ends(*row) for row in numbers[:, one].T.tolist()], dtype=np.float64)
    return ends[which, 0], ends[which, 1]


@lru_cache(maxsize=4096)
def _ends(layers: int, pp: int, mtp: int) -> tuple[int, int]:
    split = stage_layers(layers, pp, mtp)
    return (split.first, split.last) if split is not None else (-(-layers // pp),) * 2


@lru_cache(maxsize=256)
def _by_stages(layers: int, mtp: int, most: int) -> tuple[Floats, Floats]:
    """Return the layers of the first and the last stage of one model on 0 to `most` stages, (most + 1,) each."""
    ends = np.array([(0, 0), *(_ends(layers, pp, mtp) for pp in range(1, most + 1))], dtype=np.float64)
    return ends[:, 0].copy(), ends[:, 1].copy()
