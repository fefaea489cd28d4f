"""Synergy in a loop of Hugging Face Accelerate: SynergyTask with what the accelerator has prepared.

    accelerator = Accelerator(mixed_precision="bf16")
    model, optimizer, scheduler = accelerator.prepare(model, optimizer, scheduler)
    with AcceleratedTask(accelerator, model, optimizer, scheduler=scheduler, global_batch=64, checkpoint="/shared/run1") as task:
        for batch in task.batches(dataset, steps=1000):
            task.step(model(**batch).loss)

`task.batches` stands for the prepared data loader, whose place depends on the number of processes; `task.step` for
accelerator.accumulate, accelerator.backward and the steps of optimizer and scheduler.
"""

from __future__ import annotations

from typing import Any

from synergy_core.errors import UsageError

from synergy_launch.agent.user_errors import exit_on_error
from synergy_launch.pytorch.device import on_device
from synergy_launch.pytorch.training import SynergyTask


class AcceleratedTask(SynergyTask):
    """A SynergyTask in a loop of Accelerate; the scaler is the accelerator's. Batches come on its device.

    DeepSpeed, Megatron-LM, XLA and the first FSDP end with one line and exit code 2: their gradients and checkpoints are
    not PyTorch's own.
    """

    def __init__(
        self, accelerator: Any, model: Any, optimizer: Any, *, scheduler: Any = None, **arguments: Any
    ) -> None:
        kind = str(getattr(accelerator.distributed_type, "value", accelerator.distributed_type))
        with exit_on_error():
            if kind in ("DEEPSPEED", "MEGATRON_LM", "XLA") or (kind == "FSDP" and not accelerator.is_fsdp2):
                raise UsageError(
                    "AcceleratedTask", f"can't take Accelerate with {kind}", "use DDP, FSDP2 or one process"
                )
        # Accelerate's own wrappers step by its count of micro-batches
        bare = getattr(optimizer, "optimizer", optimizer), getattr(scheduler, "scheduler", scheduler)
        super().__init__(model, bare[0], scheduler=bare[1], scaler=accelerator.scaler, **arguments)
        self._device = accelerator.device

    def _prepare_batch(self, batch: Any) -> Any:
        return super()._prepare_batch(on_device(self._device, batch))
