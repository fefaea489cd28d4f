"""Local steps: replicas step alone, and average their parameters every H steps.

Lin et al. 2020, algorithm 2 (post-local SGD); as local AdamW in Gu et al. 2024 (A Quadratic Synchronization Rule for Distributed Deep
Learning), whose rule lengthens the period as the learning rate falls: H = max(H_base, floor((alpha / rate)^2)). alpha is
not tuned here: the rule is to give H_base at the highest rate, so alpha = highest rate * sqrt(H_base). Averaged are parameters and
floating-point buffers, such as BatchNorm's; the optimizer's states stay with their replicas, but for `settle`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from synergy_core.exchange import MAX_PERIOD, Exchange

from synergy_launch.communication.communication import Communication
from synergy_launch.communication.replicas import Replicas


def next_period(base: int, peak: float, rate: float) -> int:
    """Return the steps until the next average at this learning rate, by QSR: `base` at the `peak`, more below it."""
    if not 0 < rate < peak:
        return base
    # rounding must not cost the floor a whole step
    return max(base, min(MAX_PERIOD, math.floor(base * (peak / rate) ** 2 + 1e-9)))


class LocalSteps(Communication):
    """One rank of local steps; `exchange.period` is H_base."""

    own_gradients = True

    def __init__(self, exchange: Exchange, replicas: Replicas) -> None:
        super().__init__(exchange, replicas)
        self._since = 0  # steps since the last average at a period's end
        self._apart = False  # states differ between replicas
        self._period = exchange.period  # the period that is told: the last round's, to a factor of 2

    def after_step(self, rate: float) -> None:
        if not self.active:
            return
        self._apart = True
        self._since += 1
        self.round_over = self._since >= next_period(self.exchange.period, self._peak, rate)
        if self.round_over:
            if not self._period < 2 * self._since < 4 * self._period:
                self._period = self._since
            self._since = 0
            self.replicas.average([*self.replicas.parameters, *self.replicas.buffers()])

    @property
    def exchange_in_use(self) -> Exchange:
        """Return the exchange with the period that the rule has come to."""
        return replace(self.exchange, period=self._period)

    def settle(self) -> None:
        """Average the replicas once more, the optimizer's states too, and begin a period."""
        if not self._apart:
            return
        self._apart = False
        self._since = 0
        # 0-dim. states are counts, the same everywhere
        states = [
            value
            for p in self.replicas.parameters
            for value in self.replicas.optimizer.state.get(p, {}).values()
            if isinstance(value, torch.Tensor) and value.dim() and value.is_floating_point()
        ]
        self.replicas.average([*self.replicas.parameters, *self.replicas.buffers(), *states])

    def state(self) -> dict[str, Any]:
        return {**super().state(), "since": self._since, "longer": self._period / self.exchange.period}

    def restore(self, state: Mapping[str, Any]) -> None:
        super().restore(state)
        self._since = int(state["since"])
        # the plan's period may be another now; older checkpoints have no "longer"
        self._period = min(MAX_PERIOD, round(self.exchange.period * float(state.get("longer", 1.0))))
