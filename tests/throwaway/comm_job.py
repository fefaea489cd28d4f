"""One rank of the runs of tests/benchmarks/comm_options.py, under torchrun: each seed with each way to exchange, one after another.

Rank 0 prints a line of JSON for each run: its exchange, seed, and for each evaluation the step, the seconds of training until then and
the loss on held-out text. Evaluations stop the clock. All lie at steps at which the replicas agree.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from typing import Any

import torch
import torch.distributed as dist
from synergy_launch import SynergyTask
from synergy_launch.communication import communication
from synergy_launch.examples.ddp import ByteModel
from synergy_launch.examples.text import TextWindows, reference_text
from torch.nn.parallel import DistributedDataParallel

HIDDEN, LAYERS, SEQ, BATCH, RATE = 192, 4, 64, 16, 2e-3
EVERY = 8  # steps between evaluations, a multiple of the local periods
WARM_UP = 24  # exact first steps, of a run far shorter than those that communication.WARM_UP_STEPS is for
HELD_OUT = 0.1  # of the text, its end


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--options", required=True)
    parser.add_argument("--seeds", type=int, required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--longest", type=int, required=True)
    args = parser.parse_args(argv)
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    communication.WARM_UP_STEPS = WARM_UP
    for seed in range(args.seeds):
        target = None
        for option in args.options.split(","):  # exact comes first
            found = run(option, seed, args.steps if option == "exact" else args.longest, target)
            if option == "exact":
                target = found["evaluations"][-1][2]
            if dist.get_rank() == 0:
                print("RUN " + json.dumps({"option": option, "seed": seed, "target": target, **found}), flush=True)
    dist.barrier()
    return 0


def run(option: str, seed: int, steps: int, target: float | None) -> dict[str, Any]:
    """One run until its steps are done or an evaluation is at or below `target`."""
    text = reference_text()
    cut = int(len(text) * (1 - HELD_OUT))
    training, held_out = TextWindows(SEQ, text=text[:cut]), TextWindows(SEQ, text=text[cut:])
    torch.manual_seed(seed)
    net = ByteModel(HIDDEN, LAYERS)
    model = DistributedDataParallel(net)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE)
    rows_out = torch.tensor([list(held_out[i]) for i in range(0, len(held_out), max(1, len(held_out) // 64))])
    evaluations: list[tuple[int, float, float]] = []
    efficiency: list[float | None] = []
    spent_s = 0.0
    with SynergyTask(model, optimizer, global_batch=BATCH, seed=seed, comm=option) as task:
        dist.barrier()
        since = time.perf_counter()
        for rows in task.batches(training, steps, collate=lambda some: torch.tensor([list(one) for one in some])):
            before = task.step_count
            task.step(loss_of(model, rows))
            if task.step_count == before or task.step_count % EVERY:
                continue
            spent_s += time.perf_counter() - since
            with torch.no_grad():
                loss = float(loss_of(net, rows_out))
            evaluations.append((task.step_count, spent_s, loss))
            efficiency.append(task.agent.status["comm_efficiency"])
            # rank 0's clock and loss count
            if task.ranks.broadcast(target is not None and loss <= target):
                break
            dist.barrier()
            since = time.perf_counter()
    return {"evaluations": evaluations, "efficiency": efficiency}


def loss_of(model: Any, rows: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.cross_entropy(model(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
