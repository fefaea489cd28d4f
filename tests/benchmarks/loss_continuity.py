"""Loss continuity: a GPT resized (2,1,2) -> (1,2,1) -> (1,1,4) against the same run left alone.

    python -m tests.benchmarks.loss_continuity [--json] [--steps 30] [--distributed-optimizer]

Real megatron-core training of the Python language reference on the CPU, saved and resharded through torch_dist
checkpoints at each resize. Prints the largest difference of the loss over the steps after the first resize.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from synergy_core.records import Plan

from tests.integration import training_ranks

STAGES = ((2, 1, 2), (1, 2, 1), (1, 1, 4))


def measure(steps: int, distributed_optimizer: bool, folder: Path) -> dict[str, Any]:
    """Losses of both runs and their largest difference after the first resize."""
    batch = 8

    def train(name: str, degrees: tuple[int, int, int], until: int, checkpoint: Path | None) -> list[float]:
        tp, pp, dp = degrees
        plan = Plan(tp=tp, pp=pp, dp=dp, micro_batch=1, global_batch=batch)
        call = training_ranks.Call(
            "gpt",
            plan,
            until,
            checkpoint=checkpoint,
            save=checkpoint is not None,
            distributed_optimizer=distributed_optimizer,
        )
        result, _ = training_ranks.run(folder / name, plan.gpus, call, timeout_s=600)
        losses: list[float] = result["losses"]
        return losses

    began = time.monotonic()
    alone = train("alone", STAGES[0], steps, None)
    resized: list[float] = []
    stages = []
    for number, degrees in enumerate(STAGES):
        until = steps * (number + 1) // len(STAGES)
        part = train(f"stage{number}", degrees, until, folder / "checkpoints")
        difference = max(abs(a - b) for a, b in zip(part, alone[len(resized) : until], strict=True))
        stages.append({"plan": list(degrees), "steps": [len(resized) + 1, until], "largest_difference": difference})
        resized += part
    first = len(resized) // len(STAGES)
    after = [abs(a - b) for a, b in zip(resized[first:], alone[first:], strict=True)]
    return {
        "steps": steps,
        "optimizer": "distributed" if distributed_optimizer else "plain",
        "stages": stages,
        "largest_difference_after_resize": max(after),
        "first_loss": alone[0],
        "last_loss_alone": alone[-1],
        "last_loss_resized": resized[-1],
        "seconds": time.monotonic() - began,
    }


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="one JSON object on standard output")
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--distributed-optimizer", action="store_true")
    args = parser.parse_args(argv)
    if args.steps < 3:
        parser.error("--steps must be at least 3: one for each plan")
    with tempfile.TemporaryDirectory(prefix="synergy-continuity-") as folder:
        answer = measure(args.steps, args.distributed_optimizer, Path(folder))
    if args.json:
        print(json.dumps(answer))
        return 0
    for stage in answer["stages"]:
        tp, pp, dp = stage["plan"]
        print(
            f"steps {stage['steps'][0]:>3} to {stage['steps'][1]:>3} on tp={tp} pp={pp} dp={dp}: "
            f"largest difference {stage['largest_difference']:.2e}"
        )
    print(f"loss {answer['first_loss']:.6f} -> {answer['last_loss_resized']:.6f} ({answer['optimizer']} optimizer)")
    print(f"largest difference after the first resize: {answer['largest_difference_after_resize']:.2e}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
