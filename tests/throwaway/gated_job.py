"""One rank of a job that trains on gloo under torchrun: compute that sleeps, then DDP's all-reduce. Phases start when a file says so.

    torchrun ... -m tests.throwaway.gated_job FOLDER NAME PHASE=COMPUTE_S,MEGABYTES,GATED ...

Rank 0 writes [begin, end] of each step (seconds since 1970) to FOLDER/NAME.PHASE.json. A phase begins at the first time in
FOLDER/PHASE.go and lasts until the second; NAME.PHASE.ready says that this job waits for it (and that the arbiter answers, if GATED).
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from synergy_launch.links.hooks import gate_ddp
from synergy_launch.links.link_gate import GateCounts
from torch import nn
from torch.nn.parallel import DistributedDataParallel

_PIECE = 1 << 18  # numbers a parameter: a megabyte


class Weights(nn.Module):
    """`megabytes` of parameters, and a forward pass that takes `compute_s` without a processor."""

    def __init__(self, megabytes: int, compute_s: float) -> None:
        super().__init__()
        self.pieces = nn.ParameterList(nn.Parameter(torch.ones(_PIECE)) for _ in range(megabytes))
        self._compute_s = compute_s

    def forward(self, scale: torch.Tensor) -> torch.Tensor:
        time.sleep(self._compute_s)
        return torch.stack([(piece * scale).sum() for piece in self.pieces]).sum()


def main(argv: list[str]) -> int:
    folder, name = Path(argv[0]), argv[1]
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    load, gate = "", None
    model: Any = None
    for text in argv[2:]:
        phase, _, load_and_gated = text.partition("=")
        wanted, _, gated = load_and_gated.rpartition(",")
        if wanted != load:
            if gate is not None:
                gate.close()
            load = wanted
            compute_s, megabytes = wanted.split(",")
            model = DistributedDataParallel(Weights(int(megabytes), float(compute_s)))
            gate = gate_ddp(model)
            for _ in range(3):  # buckets are laid out anew after the first: jobs that start together would not stay so
                model(torch.ones(1)).backward()
                model.zero_grad()
        if gate is not None and gated == "1" and not gate.wait_for_connection(100):
            print(f"the arbiter does not answer: {gate.counts}", flush=True)
            return 1
        before = gate.counts if gate is not None else GateCounts()
        steps = run(model, folder, name, phase)
        if dist.get_rank() == 0:
            after = gate.counts if gate is not None else before
            counts = [after.asked - before.asked, after.waited - before.waited, after.waited_s - before.waited_s]
            draft = folder / f"{name}.{phase}.tmp"
            draft.write_text(json.dumps({"steps": steps, "counts": counts}))
            draft.replace(folder / f"{name}.{phase}.json")
    dist.barrier()
    dist.destroy_process_group()
    return 0


def run(model: Any, folder: Path, name: str, phase: str) -> list[list[float]]:
    """One phase: [begin, end] of each step."""
    window = torch.zeros(2, dtype=torch.float64)
    if dist.get_rank() == 0:
        (folder / f"{name}.{phase}.ready").touch()
        go = folder / f"{phase}.go"
        while not go.exists():
            time.sleep(0.01)
        window = torch.tensor(json.loads(go.read_text()), dtype=torch.float64)
    dist.broadcast(window, 0)
    begin_s, end_s = window.tolist()
    time.sleep(max(0.0, begin_s - time.time()))
    times = []
    go_on = torch.ones(1)
    while go_on.item():
        began = time.time()
        model(torch.full((1,), float(dist.get_rank() + 1))).backward()
        gradient = model.module.pieces[0].grad
        assert float(gradient[0]) == (dist.get_world_size() + 1) / 2, "not the mean over the ranks"
        model.zero_grad()
        go_on[0] = float(time.time() < end_s)
        dist.broadcast(go_on, 0)
        times.append([began, time.time()])
    return times


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
