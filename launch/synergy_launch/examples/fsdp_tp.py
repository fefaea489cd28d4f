"""A small byte-level GPT in plain PyTorch: tensor parallel (parallelize_module) inside FSDP2 (fully_shard), with SynergyTask.

    torchrun --nproc-per-node 4 -m synergy_launch.examples.fsdp_tp --steps 20 --checkpoint /tmp/fsdp_tp

dp and tp come from Synergy's plan; without one tp is 1. Both may change from one start to the next: checkpoints are
torch.distributed.checkpoint's, which reshards, and losses go on as if they had not.
"""

from __future__ import annotations

import argparse
import os
import sys
import time

import torch
import torch.distributed as dist
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

from synergy_launch import SynergyTask, data_mesh, plan_mesh
from synergy_launch.examples.arguments import common_arguments
from synergy_launch.examples.text import TextWindows
from synergyd.records import ModelSpec


class Attention(nn.Module):
    """Causal, with rotary positions. (batch, seq, hidden) -> the same; under tp each rank has some of the heads."""

    def __init__(self, hidden: int, heads: int) -> None:
        super().__init__()
        self.width = hidden // heads
        self.query, self.key, self.value, self.output = (nn.Linear(hidden, hidden, bias=False) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        query, key, value = (self._heads(part(x)) for part in (self.query, self.key, self.value))
        mixed = nn.functional.scaled_dot_product_attention(_turned(query), _turned(key), value, is_causal=True)
        result: torch.Tensor = self.output(mixed.transpose(1, 2).flatten(2))
        return result

    def _heads(self, x: torch.Tensor) -> torch.Tensor:
        return x.reshape(*x.shape[:2], -1, self.width).transpose(1, 2)


def _turned(x: torch.Tensor) -> torch.Tensor:
    """Rotary positions (Su et al. 2021, section 3.2): (batch, heads, seq, width) -> the same."""
    half = x.shape[-1] // 2
    rates = 10000.0 ** (-torch.arange(half, device=x.device) / half)
    angles = torch.arange(x.shape[-2], device=x.device)[:, None] * rates
    first, second = x[..., :half], x[..., half:]
    cosine, sine = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    return torch.cat((first * cosine - second * sine, first * sine + second * cosine), dim=-1)


class Mlp(nn.Module):
    """SwiGLU."""

    def __init__(self, hidden: int, ffn: int) -> None:
        super().__init__()
        self.gate, self.up = nn.Linear(hidden, ffn, bias=False), nn.Linear(hidden, ffn, bias=False)
        self.down = nn.Linear(ffn, hidden, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.down(nn.functional.silu(self.gate(x)) * self.up(x))
        return result


class Block(nn.Module):
    """A transformer layer with norms before attention and MLP."""

    def __init__(self, hidden: int, heads: int, ffn: int) -> None:
        super().__init__()
        self.attention_norm, self.mlp_norm = nn.RMSNorm(hidden), nn.RMSNorm(hidden)
        self.attention, self.mlp = Attention(hidden, heads), Mlp(hidden, ffn)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.attention_norm(x))
        result: torch.Tensor = x + self.mlp(self.mlp_norm(x))
        return result


class Gpt(nn.Module):
    """Tokens (batch, seq) -> logits (batch, seq, vocab)."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self.embedding = nn.Embedding(spec.vocab, spec.hidden)
        self.blocks = nn.ModuleList(Block(spec.hidden, spec.heads, spec.ffn) for _ in range(spec.layers))
        self.norm, self.output = nn.RMSNorm(spec.hidden), nn.Linear(spec.hidden, spec.vocab, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        logits: torch.Tensor = self.output(self.norm(x))
        return logits


def parallelize(model: Gpt, mesh: DeviceMesh) -> None:
    """Cuts the model over tp, with sequence parallelism between its blocks, then shards it over dp, or over groups of its ranks.

    Norms are put on the mesh too: the gradient's norm wants all parameters on one mesh.
    """
    tp = mesh["tp"]
    whole = {
        "embedding": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
        "norm": SequenceParallel(),
        "output": ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate()),
    }
    gathered = PrepareModuleInput(input_layouts=Shard(1), desired_input_layouts=Replicate())
    parallelize_module(model, tp, whole)
    for block in model.blocks:
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


def main(argv: list[str] | None = None) -> int:
    parser = common_arguments(__doc__, global_batch=8, lr_rule="", count="")
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--micro-batch", type=int, help="without a plan (default: the global batch over the processes)")
    parser.add_argument(
        "--shard", type=int, default=0, help="ranks that share the parameters out among themselves (default: all)"
    )
    args: argparse.Namespace = parser.parse_args(argv)
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0"))) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if cuda else "gloo")
    mesh = plan_mesh(device.type, args.shard)
    spec = ModelSpec(
        "byte-gpt", layers=args.layers, hidden=args.hidden, heads=args.heads, kv_heads=args.heads, ffn=4 * args.hidden,
        vocab=256, seq=args.seq, gated=True, tied_embeddings=False,
    )  # fmt: skip
    torch.manual_seed(args.seed)  # the same weights on all ranks, of which each keeps its part
    model = Gpt(spec).to(device)
    parallelize(model, mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    text = TextWindows(args.seq)
    with SynergyTask(
        model,
        optimizer,
        global_batch=args.global_batch,
        micro_batch=args.micro_batch,
        seed=args.seed,
        checkpoint=args.checkpoint,
        checkpoint_interval=args.checkpoint_interval,
        tokens_per_sample=args.seq,
        clip=1.0,
        lr_rule=args.lr_rule,
        count=args.count,
        mesh=mesh,
        model_spec=spec,
    ) as task:
        for rows in task.batches(text, args.steps, collate=lambda samples: torch.tensor([list(s) for s in samples])):
            window = rows.to(device)
            logits = model(window[:, :-1])
            task.step(nn.functional.cross_entropy(logits.flatten(0, 1), window[:, 1:].flatten()))
            if args.step_delay:
                time.sleep(args.step_delay / task.plan.micro_batches)
    return 0


if __name__ == "__main__":
    sys.exit(main())
