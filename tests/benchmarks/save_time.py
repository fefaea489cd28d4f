"""How long does a periodic checkpoint hold training up: waited for, and written while training goes on?

    python -m tests.benchmarks.save_time [--hidden 768] [--layers 8] [--ranks 1] [--saves 5]

A plain PyTorch model (DDP where there are several ranks, AdamW, DCP checkpoints) on this machine's CPU and disk, the same
steps in both ways. `held up`: the time in which the training thread does nothing else, median over the saves; `slower
steps`: what the other steps of the interval take longer than in a run without checkpoints; `good after`: from
the step boundary to the seal, fsync and digests included. `disk`: the rate of one file of the state's size, written
as `dd bs=16M conv=fsync` writes it, after each way; the share of it is that of state over `good after`.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.integration import training_ranks

EVERY = 6
BLOCK_BYTES = 16 << 20
STATE_BYTES = 12  # of a parameter: itself and AdamW's two moments, in fp32


def disk_rate(folder: Path, size_bytes: int) -> float:
    """Return the bytes a second at which one file of that size is written, fsync included."""
    block, written, began = os.urandom(BLOCK_BYTES), 0, time.perf_counter()
    with tempfile.TemporaryFile(dir=folder, buffering=0) as stream:
        while written < size_bytes:
            written += stream.write(block)
        os.fsync(stream.fileno())
        return written / (time.perf_counter() - began)


def train(folder: Path, hidden: int, layers: int, saves: int) -> dict[str, Any]:
    """One rank; times of rank 0 in seconds."""
    import torch
    import torch.distributed as dist
    from synergy_launch import SynergyTask
    from synergy_launch.examples.ddp import ByteModel
    from synergy_launch.examples.text import TextWindows
    from torch.nn.parallel import DistributedDataParallel

    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model: torch.nn.Module = ByteModel(hidden, layers)
    if dist.get_world_size() > 1:
        model = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    held: list[float] = []
    good: list[float] = []
    steps: list[float] = []
    every = EVERY if saves else 0
    batch = 4 * dist.get_world_size()
    with SynergyTask(
        model, optimizer, global_batch=batch, checkpoint=folder / "saved" if saves else None, checkpoint_interval=every
    ) as task:
        checkpointer = task.agent.checkpointer
        checkpoint, saved = checkpointer.checkpoint, checkpointer.end_save

        def timed(step: int, planned: bool = True) -> bool:
            began = time.perf_counter()
            try:
                return checkpoint(step, planned)
            finally:
                held.append(time.perf_counter() - began)

        def noted(step: int, held_s: float | None = None) -> None:
            saved(step, held_s)
            good.append(checkpointer.schedule.save_s)

        checkpointer.checkpoint, checkpointer.end_save = timed, noted  # type: ignore[method-assign]
        mark = time.perf_counter()
        last = EVERY * max(saves, 3) + EVERY - 1
        collate = lambda items: torch.tensor([list(item) for item in items])  # noqa: E731
        for rows in task.batches(TextWindows(16), last, collate=collate):
            logits = model(rows[:, :-1])
            before = len(held)
            task.step(torch.nn.functional.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten()))
            now = time.perf_counter()
            if len(held) == before and task.step_count > 3:
                steps.append(now - mark)
            mark = now
        parameters = sum(p.numel() for p in model.parameters())
    # the first pays for imports, the last one is of the run's end, which is always waited for
    return {"parameters": parameters, "held": held[1:-1], "good": good[1:-1], "step": statistics.fmean(steps)}


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hidden", type=int, default=768)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--saves", type=int, default=5)
    args = parser.parse_args(argv)
    found: dict[str, dict[str, Any]] = {}
    rates: list[float] = []
    for name in ("none", "waiting", "background"):
        environment = {"SYNERGY_BACKGROUND_SAVES": str(int(name == "background"))}
        with tempfile.TemporaryDirectory(dir=os.environ.get("SAVE_TIME_DIR")) as folder:
            saves = 0 if name == "none" else args.saves
            call = training_ranks.Call(
                "tests.benchmarks.save_time:train", Path(folder), args.hidden, args.layers, saves
            )
            found[name], _ = training_ranks.run(
                Path(folder) / "ranks", args.ranks, call, environment=environment, timeout_s=600
            )
            rates.append(disk_rate(Path(folder), STATE_BYTES * found[name]["parameters"]))
    plain = found["none"]["step"]
    millions = found["none"]["parameters"] / 1e6
    disk = statistics.median(rates)
    print(f"{millions:.1f} million parameters, state {millions * STATE_BYTES:.0f} MB, {args.ranks} ranks, "
          f"step {plain:.3f} s, a save each {EVERY} steps; disk {disk / 1e6:.0f} MB/s "
          f"({min(rates) / 1e6:.0f} to {max(rates) / 1e6:.0f})")  # fmt: skip
    for name in ("waiting", "background"):
        one = found[name]
        held, good = statistics.median(one["held"]), statistics.median(one["good"])
        slower = (one["step"] - plain) * (EVERY - 1)
        print(f"{name:<11} held up {held:.3f} s ({min(one['held']):.3f} to {max(one['held']):.3f}); "
              f"slower steps {slower:.3f} s an interval; good after {good:.3f} s, "
              f"{100 * STATE_BYTES * found['none']['parameters'] / good / disk:.0f} % of the disk's rate")  # fmt: skip
    return 0


if __name__ == "__main__":
    sys.exit(main())
