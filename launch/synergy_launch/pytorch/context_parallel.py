"""Context parallelism: the ranks of a mesh's dimension cp hold parts of the same sequences.

A sequence is cut into 2 cp equal chunks; rank i has chunks i and 2 cp - 1 - i (as Megatron-LM places them, get_batch_on_this_cp_rank in
megatron/core/utils.py), so that under a causal mask all have the same work. Attention gathers keys and values over cp, as Llama 3 does
(Dubey et al. 2024, section 3.3.2): it is exact, for any mask.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from synergy_core.errors import UsageError
from torch.distributed.device_mesh import DeviceMesh
from torch.nn.attention.bias import causal_lower_right
from torch.nn.functional import scaled_dot_product_attention

from synergy_launch.agent.user_errors import exit_on_error
from synergy_launch.pytorch.mesh import CP, dimension_rank, dimension_size

# torch 2.13 warns of the older names
_all_gather = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)
_reduce_scatter = getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)


def own_positions(seq: int, mesh: DeviceMesh | None) -> torch.Tensor:
    """Return where this rank's tokens stand in a sequence of `seq`: (seq / cp,), 0 to seq - 1 without cp.

    Ends with one line and code 2 where the sequence can't be cut into 2 * cp chunks.
    """
    cp = dimension_size(mesh, CP)
    with exit_on_error():
        if cp > 1 and seq % (2 * cp):
            raise UsageError("SYNERGY_PLAN_JSON", f"cp={cp} can't cut a sequence of {seq}", "a multiple of 2 * cp")
    return positions(seq, cp, dimension_rank(mesh, CP))


def positions(seq: int, cp: int, rank: int) -> torch.Tensor:
    """Return the positions of the tokens of cp rank `rank`; `seq` is a multiple of 2 * cp where cp is not 1."""
    if cp == 1:
        return torch.arange(seq)
    chunks = torch.arange(seq).view(2 * cp, -1)
    return torch.cat((chunks[rank], chunks[2 * cp - 1 - rank]))


def causal_attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mesh: DeviceMesh | None
) -> torch.Tensor:
    """Compute the attention of this rank's queries over the whole sequence.

    All are (batch, heads, seq / cp, width), of the tokens of `own_positions`.
    """
    cp = dimension_size(mesh, CP)
    if mesh is None or cp == 1:
        return scaled_dot_product_attention(query, key, value, is_causal=True)
    parts: torch.Tensor = _Gathered.apply(torch.stack((key, value)), mesh.get_group(CP))  # type: ignore[no-untyped-call]
    early, late = parts.chunk(2, dim=-2)
    key, value = torch.cat((*early, *late.flip(0)), dim=-2)  # in the order of the sequence
    length, rank = query.shape[-2] // 2, dimension_rank(mesh, CP)
    mixed = []
    for part, chunk in zip(query.chunk(2, dim=-2), (rank, 2 * cp - 1 - rank), strict=True):
        visible_length = (chunk + 1) * length
        mask = causal_lower_right(length, visible_length)
        mixed.append(
            scaled_dot_product_attention(
                part, key[..., :visible_length, :], value[..., :visible_length, :], attn_mask=mask
            )
        )
    return torch.cat(mixed, dim=-2)


class _Gathered(torch.autograd.Function):
    """Every rank's tensor, stacked in the order of ranks: (...) -> (ranks, ...). Backward adds up what the ranks have for each."""

    @staticmethod
    def forward(ctx: Any, part: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
        ctx.group = group
        whole = part.new_empty((dist.get_world_size(group), *part.shape))
        _all_gather(whole.view(-1), part.contiguous().view(-1), group=group)
        return whole

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        gradient = gradients[0].contiguous()
        own = torch.empty_like(gradient[0])
        _reduce_scatter(own.view(-1), gradient.view(-1), group=ctx.group)
        return own, None
