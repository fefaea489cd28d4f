"""Model and optimizer as torch.distributed.checkpoint takes them, by the names of parameters: it reshards them at loading."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict
from torch.distributed.checkpoint.state_dict_loader import load as dcp_load


class TrainingState:
    """`by_name`: the optimizer's settings are kept for each parameter, so that another stage of a pipeline finds its own; else for each
    of the optimizer's groups, which must be the same at loading."""

    def __init__(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer, by_name: bool) -> None:
        self._model, self._optimizer = model, optimizer
        self.by_name = by_name

    def read(self) -> dict[str, Any]:
        """This rank's part, as it is now: the tensors themselves, no copies."""
        return self._read(self.by_name)

    def load(self, folder: Path, by_name: bool, alone: bool) -> None:
        """All ranks together, or one that is `alone`; `by_name` as the checkpoint was written. Raises what DCP does where it holds
        another model or optimizer."""
        state = self._read(by_name)
        with without_warnings():
            dcp_load(state, checkpoint_id=str(folder), no_dist=alone)
        set_state_dict(
            self._model,
            self._optimizer,
            model_state_dict=state["model"],
            optim_state_dict=state["optimizer"],
            options=_options(by_name),
        )

    def _read(self, by_name: bool) -> dict[str, Any]:
        model, optimizer = get_state_dict(self._model, self._optimizer, options=_options(by_name))
        return {"model": model, "optimizer": optimizer}


def without_warnings() -> warnings.catch_warnings[None]:
    """torch warns of its own future at each save."""
    return warnings.catch_warnings(action="ignore")


def _options(by_name: bool) -> StateDictOptions:
    return StateDictOptions(flatten_optimizer_state_dict=by_name)
