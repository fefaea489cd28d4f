"""Steps as long as on GPUs: training processes sleep GPU_STEP_S / WORLD_SIZE seconds after each optimizer step.

So twice the processes are twice as fast, whatever the CPU does. `install(folder, stand_in)` writes a sitecustomize.py that does it.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

VARIABLE = "GPU_STEP_S"
_SITE = """import runpy
if {stand_in!r}:
    runpy.run_path({stand_in!r})
from tests.throwaway import slow_steps
slow_steps.begin()
"""


def write_site(folder: Path, stand_in: Path | None) -> None:
    """Write FOLDER/sitecustomize.py: what `stand_in`, a folder with another one, does, and `begin`."""
    folder.mkdir()
    other = str(stand_in / "sitecustomize.py") if stand_in is not None else ""
    (folder / "sitecustomize.py").write_text(_SITE.format(stand_in=other))


def begin() -> None:
    """Put the sleep into torch's optimizers, in processes that train or that ranks are forked from."""
    trains = "RANK" in os.environ or any("warm_start" in word for word in sys.orig_argv)
    if not os.environ.get(VARIABLE) or not trains:
        return
    from torch.optim.optimizer import register_optimizer_step_post_hook

    register_optimizer_step_post_hook(lambda *_: _sleep())


def _sleep() -> None:
    time.sleep(float(os.environ[VARIABLE]) / max(1, int(os.environ.get("WORLD_SIZE", "1"))))
