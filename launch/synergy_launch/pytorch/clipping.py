"""A bound on the norm of the whole model's gradient, of which a rank may have one stage's only."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor


def clip_gradients(model: torch.nn.Module, bound: float, stages: dist.ProcessGroup | None) -> None:
    """Scales the gradients so that their norm is at most `bound`. `stages`: the ranks that have the other stages of the model, None
    where there is one."""
    if stages is None:
        torch.nn.utils.clip_grad_norm_(model.parameters(), bound)
        return
    norm = torch.nn.utils.get_total_norm([p.grad for p in model.parameters() if p.grad is not None])
    square = (norm.full_tensor() if isinstance(norm, DTensor) else norm).square()
    # a stage without gradients has its norm on the CPU, where NCCL can't sum it
    square = square.to(next(model.parameters()).device)
    dist.all_reduce(square, group=stages)
    torch.nn.utils.clip_grads_with_norm_(model.parameters(), bound, square.sqrt())
