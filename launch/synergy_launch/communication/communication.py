"""The common part of every way to exchange less: the synchronised first steps, and what the training loop asks of it.

Lin et al. 2020 (Don't Use Large Mini-Batches, Use Local SGD), section 4: post-local SGD steps together until the learning rate falls for
the first time. A schedule of today falls from its peak on, so that is here as long as the rate still rises.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from synergy_core.exchange import Exchange

if TYPE_CHECKING:
    from synergy_launch.communication.replicas import Replicas

WARM_UP_STEPS = 100  # at the tuned batch, as in the examples of torch's PeriodicModelAverager and post_localSGD_hook


class Communication:
    """One rank's side of an exchange.

    All ranks call its methods at the same points; none of them before `begin`. While `active` is False, steps are exact. `own_gradients`: a
    parameter's gradient after the backward pass is then this replica's own. `round_over`: the step ended with all replicas in step.
    """

    warms_up = True
    own_gradients = False

    def __init__(self, exchange: Exchange, replicas: Replicas) -> None:
        self.exchange, self.replicas = exchange, replicas
        self.active = not self.warms_up
        self.round_over = True
        self._peak = 0.0  # the highest learning rate so far

    def begin(self, rate: float, steps: float) -> bool:
        """Begin a step at this learning rate, after `steps` steps of the tuned batch. Return whether it is the first that is not exact."""
        begins = not self.active and steps >= WARM_UP_STEPS and rate <= self._peak
        self._peak = max(self._peak, rate)
        self.active = self.active or begins
        return begins

    @property
    def exchange_in_use(self) -> Exchange:
        """Return the exchange that the replicas use while this is active."""
        return self.exchange

    @property
    def skips_averaging(self) -> bool:
        """Return whether DDP must not average this step's gradients."""
        return self.active and self.own_gradients

    def gradients(self) -> list[float]:
        """Return this rank's shares of what it measures of the step's gradients; their sums over the ranks go to `take_sums`."""
        return []

    def take_sums(self, sums: list[float]) -> None:
        """Take in the sums over the ranks of what `gradients` returned."""

    def after_step(self, rate: float) -> None:
        """Note that the optimizer has made its step, at this learning rate of the schedule."""

    def settle(self) -> None:
        """Bring all ranks to the same state."""

    @property
    def efficiency(self) -> float | None:
        """Return how much an example brings, relative to exact communication, in (0, 1]; None: not measured."""
        return None if self.active else 1.0

    def state(self) -> dict[str, Any]:
        """Return the entry of a checkpoint's metadata, after `settle`."""
        return {"active": self.active, "peak": self._peak}

    def restore(self, state: Mapping[str, Any]) -> None:
        self.active, self._peak = bool(state["active"]), float(state["peak"])
