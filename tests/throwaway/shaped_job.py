"""One rank of a job that trains a number of steps on gloo under torchrun, phase by phase; for tests/benchmarks/shaped_links.py.

    torchrun ... -m tests.throwaway.shaped_job FOLDER NAME COMPUTE_S,MEGABYTES,OVERLAP,STEPS GATED,GATED,..

A step's compute sleeps; the share OVERLAP of it in the backward pass, while the first half of the gradients is on its way.
GATED: 0 or 1 a phase. Rank 0 writes the ends of its steps, in seconds since the phase's begin, to FOLDER/NAME.PHASE.json; the
phase begins at the time in FOLDER/PHASE.go, and NAME.PHASE.ready says that the job waits for it.
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
from torch import nn
from torch.nn.parallel import DistributedDataParallel

_PIECE = 1 << 18  # numbers a parameter: a megabyte


class _Pause(torch.autograd.Function):
    """Sleeps in the backward pass."""

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor, seconds: float) -> torch.Tensor:
        ctx.seconds = seconds
        return value.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        time.sleep(ctx.seconds)
        return gradients[0], None


class Halves(nn.Module):
    """`megabytes` of parameters; the gradients of the last half are there before those of the first."""

    def __init__(self, megabytes: int, compute_s: float, overlap: float) -> None:
        super().__init__()
        self.pieces = nn.ParameterList(nn.Parameter(torch.ones(_PIECE)) for _ in range(megabytes))
        self._before_s, self._between_s = compute_s * (1 - overlap), compute_s * overlap

    def forward(self, scale: torch.Tensor) -> torch.Tensor:
        time.sleep(self._before_s)
        half = len(self.pieces) // 2
        first = torch.stack([(piece * scale).sum() for piece in self.pieces[:half] or self.pieces]).sum()
        if self._between_s:
            pause: Any = _Pause
            first = pause.apply(first, self._between_s)
        # made later, so that autograd comes to them first
        rest = [(piece * scale).sum() for piece in self.pieces[half:]] if half else []
        return torch.stack([first, *rest]).sum()


def main(argv: list[str]) -> int:
    folder, name, load, phases = Path(argv[0]), argv[1], argv[2].split(","), argv[3].split(",")
    compute_s, megabytes, overlap, steps = float(load[0]), int(load[1]), float(load[2]), int(load[3])
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    models: dict[str, Any] = {}
    for gated in sorted(set(phases)):
        models[gated] = DistributedDataParallel(
            Halves(megabytes, compute_s, overlap), bucket_cap_mb=max(1.0, megabytes / 4)
        )
    gate = gate_ddp(models["1"]) if "1" in models else None
    for model in models.values():  # buckets are laid out anew after the first
        for _ in range(3):
            model(torch.ones(1)).backward()
            model.zero_grad()
    if gate is not None and not gate.wait_for_connection(100):
        print(f"the arbiter does not answer: {gate.counts}", flush=True)
        return 1
    for phase, gated in enumerate(phases):
        ends = run(models[gated], folder, f"{name}.{phase}", folder / f"{phase}.go", steps)
        if dist.get_rank() == 0:
            counts = [gate.counts.asked, gate.counts.waited, gate.counts.waited_s] if gate is not None else [0, 0, 0.0]
            draft = folder / f"{name}.{phase}.tmp"
            draft.write_text(json.dumps({"ends": ends, "counts": counts}))
            draft.replace(folder / f"{name}.{phase}.json")
    dist.barrier()
    dist.destroy_process_group()
    return 0


def run(model: Any, folder: Path, name: str, go: Path, steps: int) -> list[float]:
    """One phase: the ends of its steps."""
    begin = torch.zeros(1, dtype=torch.float64)
    if dist.get_rank() == 0:
        (folder / f"{name}.ready").touch()
        while not go.exists():
            time.sleep(0.01)
        begin[0] = float(go.read_text())
    dist.broadcast(begin, 0)
    begin_s = float(begin)
    time.sleep(max(0.0, begin_s - time.time()))
    ends = []
    for _ in range(steps):
        model(torch.full((1,), float(dist.get_rank() + 1))).backward()
        gradient = model.module.pieces[0].grad
        assert float(gradient[0]) == (dist.get_world_size() + 1) / 2, "not the mean over the ranks"
        model.zero_grad()
        ends.append(time.time() - begin_s)
    return ends


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
