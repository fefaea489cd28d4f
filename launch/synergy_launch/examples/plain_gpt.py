"""A small byte-level GPT in plain PyTorch: a stage of its blocks, cut over tp, its sequences over cp, shared out over dp and cp."""

from __future__ import annotations

import torch
from synergy_core.records import ModelSpec
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

from synergy_launch import data_mesh
from synergy_launch.pytorch.context_parallel import causal_attention, positions
from synergy_launch.pytorch.mesh import CP, dimension_rank, dimension_size


class Attention(nn.Module):
    """Causal attention with rotary positions: (batch, seq / cp, hidden) -> the same; under tp each rank has some of the heads."""

    def __init__(self, hidden: int, heads: int, mesh: DeviceMesh | None) -> None:
        super().__init__()
        self.width, self.mesh = hidden // heads, mesh
        self.query, self.key, self.value, self.output = (nn.Linear(hidden, hidden, bias=False) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        query, key, value = (self._heads(part(x)) for part in (self.query, self.key, self.value))
        cp = dimension_size(self.mesh, CP)
        own = positions(cp * query.shape[-2], cp, dimension_rank(self.mesh, CP)).to(x.device)
        mixed = causal_attention(_rotate(query, own), _rotate(key, own), value, self.mesh)
        result: torch.Tensor = self.output(mixed.transpose(1, 2).flatten(2))
        return result

    def _heads(self, x: torch.Tensor) -> torch.Tensor:
        return x.reshape(*x.shape[:2], -1, self.width).transpose(1, 2)


def _rotate(x: torch.Tensor, own: torch.Tensor) -> torch.Tensor:
    """Apply rotary positions (Su et al.

    2021, section 3.2): (batch, heads, seq, width) -> the same, of tokens that stand at `own` (seq,).
    """
    half = x.shape[-1] // 2
    rates = 10000.0 ** (-torch.arange(half, device=x.device) / half)
    angles = own[:, None] * rates
    first, second = x[..., :half], x[..., half:]
    cosine, sine = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    return torch.cat((first * cosine - second * sine, first * sine + second * cosine), dim=-1)


class Mlp(nn.Module):
    """A SwiGLU MLP."""

    def __init__(self, hidden: int, ffn: int) -> None:
        super().__init__()
        self.gate, self.up = nn.Linear(hidden, ffn, bias=False), nn.Linear(hidden, ffn, bias=False)
        self.down = nn.Linear(ffn, hidden, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.down(nn.functional.silu(self.gate(x)) * self.up(x))
        return result


class Block(nn.Module):
    """A transformer layer with norms before attention and MLP."""

    def __init__(self, hidden: int, heads: int, ffn: int, mesh: DeviceMesh | None) -> None:
        super().__init__()
        self.attention_norm, self.mlp_norm = nn.RMSNorm(hidden), nn.RMSNorm(hidden)
        self.attention, self.mlp = Attention(hidden, heads, mesh), Mlp(hidden, ffn)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.attention_norm(x))
        result: torch.Tensor = x + self.mlp(self.mlp_norm(x))
        return result


class Gpt(nn.Module):
    """Tokens (batch, seq / cp) -> logits (batch, seq / cp, vocab).

    A `stage` of a pipeline (None: all blocks) has some of the blocks, by the names that they have in the whole model:
    all but the first take hidden states, all but the last give them.
    """

    def __init__(self, spec: ModelSpec, mesh: DeviceMesh | None = None, stage: range | None = None) -> None:
        super().__init__()
        self.embedding: nn.Module | None = nn.Embedding(spec.vocab, spec.hidden)
        blocks = [Block(spec.hidden, spec.heads, spec.ffn, mesh) for _ in range(spec.layers)]
        self.norm: nn.Module | None = nn.RMSNorm(spec.hidden)
        self.output: nn.Module | None = nn.Linear(spec.hidden, spec.vocab, bias=False)
        # the others are dropped only now: all stages draw the same random numbers
        stage = range(spec.layers) if stage is None else stage
        self.blocks = nn.ModuleDict({str(number): blocks[number] for number in stage})
        if stage.start > 0:
            self.embedding = None
        if stage.stop < spec.layers:
            self.norm = self.output = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.embedding is not None:
            x = self.embedding(x)
        for block in self.blocks.values():
            x = block(x)
        if self.norm is not None and self.output is not None:
            x = self.output(self.norm(x))
        return x


def parallelize(model: Gpt, mesh: DeviceMesh) -> None:
    """Cut the model, or its stage, over tp, with sequence parallelism between its blocks, then shard it over dp and cp.

    The shards may also be over groups of these ranks. Norms are put on the mesh too: the gradient's norm wants all parameters on one
    mesh.
    """
    tp = mesh["tp"]
    whole = {
        "embedding": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
        "norm": SequenceParallel(),
        "output": ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate()),
    }
    gathered = PrepareModuleInput(input_layouts=Shard(1), desired_input_layouts=Replicate())
    parallelize_module(model, tp, {name: part for name, part in whole.items() if getattr(model, name) is not None})
    for block in model.blocks.values():
        parts = {
            "attention_norm": SequenceParallel(), "mlp_norm": SequenceParallel(), "attention": gathered, "mlp": gathered,
            **{f"attention.{name}": ColwiseParallel() for name in ("query", "key", "value")},
            "attention.output": RowwiseParallel(output_layouts=Shard(1)),
            "mlp.gate": ColwiseParallel(), "mlp.up": ColwiseParallel(),
            "mlp.down": RowwiseParallel(output_layouts=Shard(1)),
        }  # fmt: skip
        parallelize_module(block, tp, parts)
        fully_shard(block, mesh=data_mesh(mesh))
    fully_shard(model, mesh=data_mesh(mesh))
