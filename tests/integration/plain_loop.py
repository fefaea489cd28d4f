"""A plain DDP loop as a user writes it, without a word of Synergy: it saves and loads its own checkpoint, and reads on where it was.

`plain_loop.py --out DIR --batch_size N [--resume]`: N examples for each GPU, which take DELAY seconds each.
Rank 0 writes [step, world, examples, loss] to DIR/log.jsonl.
"""

import argparse
import json
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--batch_size", type=int, default=4)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--resume", action="store_true")
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    data = torch.randn(96, 8)
    net = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
    optimizer, step = torch.optim.AdamW(net.parameters(), lr=0.01), 0
    args.out.mkdir(exist_ok=True)
    if args.resume:
        saved = torch.load(args.out / "model.pt")
        net.load_state_dict(saved["net"])
        step = saved["step"]
        optimizer.load_state_dict(torch.load(args.out / "optimizer.pt"))
    model = DistributedDataParallel(net)
    while step < args.steps:
        first = (step * world + rank) * args.batch_size
        rows = [i % len(data) for i in range(first, first + args.batch_size)]
        loss = model(data[rows]).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        whole, seen = loss.detach().clone() / world, [list[int]()] * world
        dist.all_reduce(whole)
        dist.all_gather_object(seen, rows)
        if rank == 0:
            with (args.out / "log.jsonl").open("a") as log:
                log.write(json.dumps([step, world, sorted(i for part in seen for i in part), float(whole)]) + "\n")
            if step % 5 == 0:  # two files, of which the second is as needed as the first
                torch.save({"net": net.state_dict(), "step": step}, args.out / "model.pt")
                torch.save(optimizer.state_dict(), args.out / "optimizer.pt")
        time.sleep(float(os.environ.get("DELAY", "0")) * args.batch_size)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
