"""Whether a node is slow for a job alone on it: by the steps of runs of the same program, plan and size on other nodes. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Hashable
from dataclasses import dataclass, field

# As of a job's own ranks (agent/straggler.py).
SLOW = 1.2
_WELL = 1.05
_LEAST_STEPS = 20  # per run: before that, its smoothed step time has the first steps in it
_RUNS, _NODES = 4096, 64


@dataclass
class NodePaces:
    """Step times by what is run (program, plan, size), and by node."""

    _paces: dict[Hashable, dict[str, float]] = field(default_factory=dict)

    def add(self, run: Hashable, node: str, step_s: float, steps: int) -> bool | None:
        """Return whether `node` is slow (True), as quick as others (False), or not known to be either (None).

        `steps`: the number that this run has made.
        """
        if steps < _LEAST_STEPS or step_s <= 0:
            return None
        paces = self._paces.setdefault(run, {})
        paces.pop(node, None)
        others = list(paces.values())
        paces[node] = step_s
        if len(paces) > _NODES:
            del paces[next(iter(paces))]
        if len(self._paces) > _RUNS:
            del self._paces[next(iter(self._paces))]
        if not others:
            return None
        ratio = step_s / statistics.median(others)
        return True if ratio >= SLOW else False if ratio <= _WELL else None
