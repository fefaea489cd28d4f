"""Model and optimizer as torch.distributed.checkpoint takes them, by the names of parameters: it reshards them at loading."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict
from torch.distributed.checkpoint.state_dict_loader import load as dcp_load

from synergy_launch.agent.host_memory import read_free_bytes
from synergy_launch.pytorch.checkpoint_files import CheckpointReader

_COPY_SHARE = 0.5  # share of the host's free memory for copies of the state while it is written


class TrainingState:
    """Model and optimizer of a run, as DCP takes them.

    `by_name`: the optimizer's settings are kept for each parameter, so that another stage of a pipeline finds its own; else for each
    of the optimizer's groups, which must be the same at loading.
    """

    def __init__(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer, by_name: bool) -> None:
        self._model, self._optimizer = model, optimizer
        self.by_name = by_name

    def read(self) -> dict[str, Any]:
        """Return this rank's part, as it is now: the tensors themselves, no copies."""
        return self._read(self.by_name)

    def load(self, folder: Path, by_name: bool, alone: bool) -> None:
        """Load the state, on all ranks together or on one that is `alone`; `by_name` as the checkpoint was written.

        Raises what DCP does where it holds another model or optimizer.
        """
        state = self._read(by_name)
        with without_warnings():
            dcp_load(state, storage_reader=CheckpointReader(str(folder)), no_dist=alone)
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
    """Return a context that hides torch's warnings of its own future, which come at each save."""
    return warnings.catch_warnings(action="ignore")


def _options(by_name: bool) -> StateDictOptions:
    return StateDictOptions(flatten_optimizer_state_dict=by_name)


class HostCopy:
    """The copy of the state in host memory from which a checkpoint is written beside training.

    Its memory is kept for the next checkpoint: fresh memory costs a page fault for each 4 KiB, and pinning it more. On a GPU it is pinned,
    so that the next copy takes place at the speed of the link to the host.
    """

    def __init__(self) -> None:
        self._stager: Any = None
        self._kept_bytes = 0  # by every process of this node

    def obstacle(self, state: Mapping[str, Any]) -> str:
        """Return why a copy of `state` by every process of this node would take too much host memory, or "".

        Too much is more than half of what is left without it. Each process copies all that it holds: under DDP that is everything.
        """
        needed, free = _node_bytes(state), read_free_bytes()
        if free is None or needed <= _COPY_SHARE * (free + self._kept_bytes):
            return ""
        free += self._kept_bytes
        return (
            f"a copy beside training needs {needed / 2**30:.1f} GiB of host memory, and {free / 2**30:.1f} GiB are left"
        )

    def options(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments of `async_save` by which `state` is copied here; {} before torch 2.9, which copies to fresh memory."""
        try:
            from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
        except ImportError:
            return {}
        if self._stager is None:
            gpu = _is_on_gpu(state)
            options = StagingOptions(
                use_pinned_memory=gpu, use_shared_memory=False, use_async_staging=False, use_non_blocking_copy=False
            )
            self._stager = DefaultStager(options)
        self._kept_bytes = _node_bytes(state)
        return {"async_stager": self._stager}

    def close(self) -> None:
        """Give the memory back."""
        if self._stager is not None:
            self._stager.close()
            if (inner := getattr(self._stager, "_state_dict_stager", None)) is not None:  # torch 2.9 leaves it
                inner.close()
        self._stager, self._kept_bytes = None, 0


def _node_bytes(state: Mapping[str, Any]) -> int:
    """Return the bytes of `state` in all processes of this node, which hold as much each."""
    return _size_bytes(state) * int(os.environ.get("LOCAL_WORLD_SIZE") or 1)


def _is_on_gpu(state: Any) -> bool:
    """Return whether any tensor in nested mappings and sequences is on a CUDA or ROCm device."""
    if isinstance(state, torch.Tensor):
        return state.is_cuda
    if isinstance(state, Mapping):
        return any(_is_on_gpu(one) for one in state.values())
    return any(_is_on_gpu(one) for one in state) if isinstance(state, (list, tuple)) else False


def _size_bytes(state: Any) -> int:
    """Return the bytes of all tensors in nested mappings and sequences, as far as this process holds them."""
    if isinstance(state, torch.Tensor):
        local = state.to_local() if hasattr(state, "to_local") else state
        return int(local.numel() * local.element_size())
    if isinstance(state, Mapping):
        return sum(_size_bytes(one) for one in state.values())
    return sum(_size_bytes(one) for one in state) if isinstance(state, (list, tuple)) else 0
