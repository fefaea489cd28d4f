"""DiLoCo's outer step (Douillard et al. 2023, algorithm 1): how far replicas have moved on average is a gradient, for Nesterov."""

from __future__ import annotations

from collections.abc import Mapping

import torch

OUTER_RATE, OUTER_MOMENTUM = 0.7, 0.9  # Douillard et al. 2023, section 3: for all their runs


class OuterStep:
    """Of parameters by name. After `begin`, `step` is called when they hold the average over the replicas."""

    def __init__(self, parameters: Mapping[str, torch.nn.Parameter]) -> None:
        self._parameters = dict(parameters)
        self._anchors: dict[str, torch.nn.Parameter] = {}  # where the period began
        self._sgd: torch.optim.SGD | None = None

    def begin(self) -> None:
        """From here, where all replicas stand, the first period starts."""
        self._anchors = {name: torch.nn.Parameter(p.detach().clone()) for name, p in self._parameters.items()}
        self._sgd = torch.optim.SGD(self._anchors.values(), OUTER_RATE, OUTER_MOMENTUM, nesterov=True)

    @torch.no_grad()
    def step(self) -> None:
        """The parameters become the new anchors."""
        assert self._sgd is not None
        for name, anchor in self._anchors.items():
            anchor.grad = anchor - self._parameters[name]
        self._sgd.step()
        self._sgd.zero_grad()
        for name, anchor in self._anchors.items():
            self._parameters[name].copy_(anchor)

    def tensors(self) -> dict[str, torch.Tensor]:
        """Anchors and momenta, for a checkpoint."""
        found: dict[str, torch.Tensor] = {}
        for name, anchor in self._anchors.items():
            found[f"anchor.{name}"] = anchor.detach()
            momentum = self._sgd.state[anchor].get("momentum_buffer") if self._sgd is not None else None
            # SGD's first momentum is the gradient itself: as if it had been 0
            found[f"momentum.{name}"] = torch.zeros_like(anchor) if momentum is None else momentum
        return found

    def blank(self, names: list[str]) -> dict[str, torch.Tensor]:
        """To be loaded into; none unless `names` are exactly these parameters'."""
        wanted = {f"{kind}.{name}": p for kind in ("anchor", "momentum") for name, p in self._parameters.items()}
        return {key: torch.zeros_like(p) for key, p in wanted.items()} if set(names) == set(wanted) else {}

    @torch.no_grad()
    def take(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """What `tensors` gave; with none the period starts where the parameters are."""
        self.begin()
        assert self._sgd is not None
        for name, anchor in self._anchors.items() if tensors else ():
            anchor.copy_(tensors[f"anchor.{name}"])
            self._sgd.state[anchor]["momentum_buffer"] = tensors[f"momentum.{name}"]
