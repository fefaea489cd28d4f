"""A training process that notes when it has imported, has its GPU, is built, has loaded and made a step: `-m tests.gpu.restarted`."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

BEGAN = time.time()


def main(folder: Path, kind: str) -> None:
    from tests.gpu.sizes import FULL, TINY

    moments = {"python": BEGAN}
    import torch
    from synergy_launch import SynergyTask

    from tests.gpu import device, gpt

    spec = (TINY if kind == "tiny" else FULL).model
    moments["imports"] = time.time()
    torch.zeros(1, device=device.DEVICE)
    device.settle()
    moments["device"] = time.time()
    data, model = gpt.RandomTokens(spec), gpt.make(spec)
    optimizer = gpt.adamw(model)
    device.settle()
    moments["build"] = time.time()
    with SynergyTask(model, optimizer, global_batch=1, checkpoint=folder, checkpoint_interval=0) as task:
        device.settle()
        moments["load"] = time.time()
        first = task.step_count
        for rows in task.batches(data, 1 << 30):
            task.step(model(rows.to(device.DEVICE)))
            if task.step_count == first + 1:
                device.settle()
                moments["step"] = time.time()
                (folder / "moments.tmp").write_text(json.dumps({"first": first, **moments}))
                (folder / "moments.tmp").replace(folder / "moments.json")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
