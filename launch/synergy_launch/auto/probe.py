"""A record of what each training process does in a step, for `synergy-launch --try`: loss, learning rate, examples.

It looks from outside: at the optimizer's steps, at the scalars on which backward() is called, and at the first tensor that goes into the
model in training. One line of JSON a step and process, in the folder that SYNERGY_TRY names.
"""

from __future__ import annotations

import functools
import json
import time
import zlib
from pathlib import Path
from typing import Any, TextIO

from synergy_launch.auto.optimizer_steps import is_state_made


def row_marks(batch: Any) -> list[int]:
    """Return a number for each example (row) of a tensor; padding at the ends of rows of whole numbers does not count."""
    marks = []
    for row in batch.detach().cpu():
        if row.is_floating_point() or row.is_complex():
            marks.append(zlib.crc32(row.double().contiguous().numpy().tobytes()))
            continue
        values = row.reshape(-1).tolist()
        low, high = 0, len(values)
        while high - low > 1 and values[high - 2] == values[high - 1]:
            high -= 1
        while high - low > 1 and values[low] == values[low + 1]:
            low += 1
        marks.append(zlib.crc32(",".join(map(str, values[low:high])).encode()))
    return marks


class Probe:
    """The record of one process. `begin` puts it around torch."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._optimizer: Any = None  # the first that steps: it counts
        self._step, self._rate = 0, 0.0
        self._loss: list[float] = []
        self._rows: list[int] = []
        self._depth, self._is_backward = 0, False

    def begin(self) -> None:
        """Wrap torch's backward, the call of modules, and the steps of optimizers."""
        import torch
        from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

        tensors: Any = torch.Tensor
        modules: Any = torch.nn.Module
        backward, call = tensors.backward, modules.__call__

        @functools.wraps(backward)
        def backward_and_note(tensor: Any, *args: Any, **kwargs: Any) -> Any:
            if tensor.numel() == 1 and not self._is_backward:
                self._loss.append(float(tensor.detach()))
            before, self._is_backward = self._is_backward, True
            try:
                return backward(tensor, *args, **kwargs)
            finally:
                self._is_backward = before

        @functools.wraps(call)
        def call_and_note(module: Any, *args: Any, **kwargs: Any) -> Any:
            if not self._depth and not self._is_backward and torch.is_grad_enabled():
                self._note_batch(module, (*args, *kwargs.values()))
            self._depth += 1
            try:
                return call(module, *args, **kwargs)
            finally:
                self._depth -= 1

        tensors.backward, modules.__call__ = backward_and_note, call_and_note
        register_optimizer_step_pre_hook(lambda optimizer, *_: self._note_rate(optimizer))
        register_optimizer_step_post_hook(lambda optimizer, *_: self._end_step(optimizer))

    def _note_batch(self, module: Any, inputs: tuple[Any, ...]) -> None:
        batch = _first_tensor(inputs)
        is_model = next(iter(module.parameters()), None) is not None  # a loss function has none
        # a wrapper may be left in evaluation, as Lightning leaves DDP
        if batch is not None and is_model and any(part.training for part in module.modules()):
            self._rows += row_marks(batch)

    def _note_rate(self, optimizer: Any) -> None:
        if is_state_made(optimizer):
            return
        self._optimizer = optimizer if self._optimizer is None else self._optimizer
        if optimizer is self._optimizer:
            self._rate = float(optimizer.param_groups[0]["lr"])

    def _end_step(self, optimizer: Any) -> None:
        if optimizer is not self._optimizer or is_state_made(optimizer):
            return
        self._step += 1
        loss = sum(self._loss) if self._loss else None
        line = {"step": self._step, "loss": loss, "rate": self._rate, "rows": self._rows, "at": time.time()}
        self._stream.write(json.dumps(line) + "\n")
        self._stream.flush()
        self._loss, self._rows = [], []


def _first_tensor(values: Any) -> Any:
    """Return the first tensor with a dimension of examples in nested arguments, or None."""
    for value in values.values() if hasattr(values, "values") else values:
        if hasattr(value, "detach") and hasattr(value, "dim"):
            if value.dim() > 0:
                return value
        elif isinstance(value, list | tuple) or hasattr(value, "values"):
            tensor = _first_tensor(value)
            if tensor is not None:
                return tensor
    return None


def install(folder: Path, rank: int) -> None:
    """Begin the record of this process, behind those of earlier runs in the same allocation."""
    Probe((folder / f"steps-{rank}.jsonl").open("a", encoding="utf-8")).begin()
