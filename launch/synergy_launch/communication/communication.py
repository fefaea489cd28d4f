"""What every way to exchange less has in common: the synchronised first steps, and what the training loop asks of it.

Lin et al. 2020 (Don't Use Large Mini-Batches, Use Local SGD), section 4: post-local SGD steps together until the learning rate falls for
the first time. A schedule of today falls from its peak on, so that is here as long as the rate still rises.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from synergy_launch.communication.replicas import Replicas
from synergyd.exchange import Exchange

WARM_UP_STEPS = 100  # of the tuned batch: what torch's PeriodicModelAverager and post_localSGD_hook are shown with


class Communication:
    """One rank's side of an exchange. All ranks call its methods at the same points; none of them before `begin`.

    While `active` is False, steps are exact. `own_gradients`: a parameter's gradient after the backward pass is then this
    replica's own. `ready`: there is something to step with. `round_over`: the step ended with all replicas in step.
    """

    warms_up = True
    own_gradients = False
    tells_noise = True  # the norms of the gradients after the backward pass tell the gradient noise

    def __init__(self, exchange: Exchange, replicas: Replicas) -> None:
        self.exchange, self.replicas = exchange, replicas
        self.active = not self.warms_up
        self.ready = self.round_over = True
        self._peak = 0.0  # the highest learning rate so far

    def begin(self, rate: float, steps: float) -> bool:
        """A step at this learning rate begins, after `steps` steps of the tuned batch. True: the first that is not exact."""
        begins = not self.active and steps >= WARM_UP_STEPS and rate <= self._peak
        self._peak = max(self._peak, rate)
        self.active = self.active or begins
        return begins

    @property
    def runs(self) -> Exchange:
        """What is exchanged while it is active."""
        return self.exchange

    @property
    def alone(self) -> bool:
        """Whether DDP must not average this step's gradients."""
        return self.active and self.own_gradients

    def gradients(self, scale: float) -> list[float]:
        """The step's gradients, `scale` times those of the loss, are there: puts in their place what is to be stepped with.

        This rank's shares of what is measured; their sums over the ranks go to `measured`.
        """
        return []

    def measured(self, sums: list[float]) -> None:
        """The sums over the ranks of what `gradients` gave."""

    def stepped(self, rate: float) -> None:
        """The optimizer has made its step, at this learning rate of the schedule."""

    def settle(self, update: Callable[[], None], scale: float) -> None:
        """All ranks hold the same state afterwards, and nothing is under way. `update` steps with the gradients that are put in place."""

    @property
    def efficiency(self) -> float | None:
        """How much an example brings, of what it does with exact communication, in (0, 1]; None: not measured."""
        return None if self.active else 1.0

    def tensors(self) -> dict[str, torch.Tensor]:
        """What a checkpoint must hold besides model and optimizer, after `settle`; the same on all ranks."""
        return {}

    def blank(self, names: list[str]) -> dict[str, torch.Tensor]:
        """Tensors of those names and of the present shapes, to be loaded into; those that are not known are left out."""
        return {}

    def take(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """What `blank` gave, loaded."""

    def state(self) -> dict[str, Any]:
        """For a checkpoint's metadata, after `settle`."""
        return {"active": self.active, "peak": self._peak}

    def restore(self, state: Mapping[str, Any]) -> None:
        self.active, self._peak = bool(state["active"]), float(state["peak"])
