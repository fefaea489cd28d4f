"""A small byte-level GPT in plain PyTorch, with SynergyTask.

It is tensor parallel (parallelize_module) inside FSDP2 (fully_shard), context parallel (keys and values gathered) and
pipeline parallel (torch.distributed.pipelining).

    torchrun --nproc-per-node 4 -m synergy_launch.examples.fsdp_tp --steps 20 --checkpoint /tmp/fsdp_tp

dp, tp, cp and pp come from Synergy's plan; without one all but dp are 1. All may change from one start to the next: checkpoints are
torch.distributed.checkpoint's, which reshards, and losses go on as if they had not.
"""

from __future__ import annotations

import argparse
import os
import sys
import time

import torch
import torch.distributed as dist
from synergy_core.records import ModelSpec
from torch import nn

from synergy_launch import Pipeline, SynergyTask, plan_mesh, stage_blocks
from synergy_launch.examples.arguments import common_arguments
from synergy_launch.examples.plain_gpt import Gpt, parallelize
from synergy_launch.examples.text import TextWindows
from synergy_launch.pytorch.context_parallel import own_positions


def compute_loss(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Return the mean over the tokens of a micro-batch, as far as this rank has them."""
    return nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())


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
    mesh = plan_mesh(device.type, args.shard, pp=True, cp=True)
    spec = ModelSpec(
        "byte-gpt", layers=args.layers, hidden=args.hidden, heads=args.heads, kv_heads=args.heads, ffn=4 * args.hidden,
        vocab=256, seq=args.seq, gated=True, tied_embeddings=False,
    )  # fmt: skip
    torch.manual_seed(args.seed)  # the same weights on all ranks, of which each keeps its part
    model = Gpt(spec, mesh, stage_blocks(args.layers, mesh)).to(device)
    parallelize(model, mesh)
    pipeline = Pipeline(model, mesh, compute_loss)
    own = own_positions(args.seq, mesh)
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
        pipeline=pipeline,
        cp=True,
    ) as task:
        for rows in task.batches(text, args.steps, collate=lambda samples: torch.tensor([list(s) for s in samples])):
            before = task.step_count
            inputs, labels = rows[:, :-1][:, own].to(device), rows[:, 1:][:, own].to(device)
            task.step(pipeline(inputs, labels))
            if args.step_delay and task.step_count > before:
                time.sleep(args.step_delay)
    return 0


if __name__ == "__main__":
    sys.exit(main())
