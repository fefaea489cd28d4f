"""A small byte-level convolutional model in plain PyTorch with DistributedDataParallel and SynergyTask.

    torchrun --nproc-per-node 2 -m synergy_launch.examples.ddp --steps 50 --checkpoint /tmp/ddp

The number of processes may change from one start to the next; losses go on as if it had not.
"""

from __future__ import annotations

import argparse
import os
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from synergy_launch import SynergyTask
from synergy_launch.examples.arguments import common_arguments
from synergy_launch.examples.text import TextWindows


class ByteModel(nn.Module):
    """Logits of the next byte at each position, from the 2 * layers + 1 bytes up to it.

    Tokens (batch, seq) -> logits (batch, seq, 256).
    """

    def __init__(self, hidden: int, layers: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(256, hidden)
        self.convolutions = nn.ModuleList(nn.Conv1d(hidden, hidden, kernel_size=3) for _ in range(layers))
        self.output = nn.Linear(hidden, 256)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens).transpose(1, 2)
        for convolution in self.convolutions:
            # Padded on the left only: no position sees what comes after it.
            x = x + torch.relu(convolution(nn.functional.pad(x, (2, 0))))
        logits: torch.Tensor = self.output(x.transpose(1, 2))
        return logits


def arguments(argv: list[str] | None = None) -> argparse.Namespace:
    parser = common_arguments(__doc__, global_batch=16, lr_rule="", count="")
    parser.add_argument("--micro-batch", type=int, help="without a plan (default: the global batch over the processes)")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    args = arguments(argv)
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0"))) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    if "RANK" in os.environ:
        dist.init_process_group("nccl" if cuda else "gloo")
    torch.manual_seed(args.seed)
    model: nn.Module = ByteModel(args.hidden, args.layers).to(device)
    if dist.is_initialized():
        model = DistributedDataParallel(model)
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
        lr_rule=args.lr_rule,
        count=args.count,
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
