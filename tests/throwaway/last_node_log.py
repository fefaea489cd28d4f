"""A job that only pretends to be Megatron-LM's: its last node alone prints a log, and it saves and leaves on SIGTERM to any node.

srun synergy-launch --runner python --checkpoint DIR tests/throwaway/last_node_log.py STEPS --num-layers 4 ... (ARGUMENTS)
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

from synergy_core.records import Plan

from tests.throwaway.light_job import BATCH, GPU_STEP_S

ARGUMENTS = (
    "--num-layers 4 --hidden-size 64 --num-attention-heads 4 --seq-length 64 --max-position-embeddings 64 --vocab-size 256 "
    f"--micro-batch-size 1 --global-batch-size {BATCH} --train-iters 100000 --log-interval 1 --lr 1e-3"
)
TRACKER = "latest_checkpointed_iteration.txt"


def main() -> int:
    folder, plan = Path(os.environ["SYNERGY_CHECKPOINT_DIR"]), Plan(**json.loads(os.environ["SYNERGY_PLAN_JSON"]))
    is_last = int(os.environ["SLURM_NODEID"]) == int(os.environ["SLURM_JOB_NUM_NODES"]) - 1
    tracker = folder / TRACKER
    first = step = int(tracker.read_text()) if tracker.exists() else 0
    leave = folder / f"leave-after-{first}"  # Megatron-LM's ranks agree on it by a collective
    signal.signal(signal.SIGTERM, lambda *_: leave.touch())
    folder.mkdir(parents=True, exist_ok=True)
    while is_last:
        time.sleep(GPU_STEP_S / plan.gpus)
        step += 1
        log = (
            f"consumed samples: {step * BATCH} | elapsed time per iteration (ms): {1000 * GPU_STEP_S / plan.gpus:.1f} |"
        )
        print(
            f" [] iteration {step:8}/  100000 | {log} global batch size: {BATCH} | lm loss: {1.0 / step:.6E} |",
            flush=True,
        )
        if leave.exists():
            fresh = folder / f".{TRACKER}"
            fresh.write_text(str(step))
            fresh.replace(tracker)
            return 0
    while not (tracker.exists() and int(tracker.read_text()) > first):
        time.sleep(0.05)
    return 0


if __name__ == "__main__":
    sys.exit(main())
