"""Synergy in training scripts that do not know of it: `import synergy_launch.auto` at the top of a script, or by the launcher.

Importing it puts hooks where a training library is imported later: Hugging Face's Trainer gets SynergyCallback, its batch and its
checkpoint (trainer_hook.py), and so does Lightning's (lightning_hook.py). A loop of the script's own gets what `loop=` of its directive
says (own_loop.py). A fault in a hook is one line, and the script runs on.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

from synergy_launch.agent.settings import LOOP, TRY
from synergy_launch.agent.user_errors import exit_on_error
from synergy_launch.auto import probe
from synergy_launch.auto.lightning_hook import hook_lightning
from synergy_launch.links.gated_script import ImportWatch, say

_installed = False


def install() -> None:
    """Put the hooks in, once."""
    global _installed
    if _installed:
        return
    _installed = True
    if os.environ.get(TRY):
        probe.install(Path(os.environ[TRY]), int(os.environ.get("RANK", "0") or 0))
    if os.environ.get(LOOP):
        from synergy_launch.auto import own_loop

        with exit_on_error(int(os.environ.get("RANK", "0") or 0)):
            own_loop.install()
    _watch("transformers.trainer", _hook_trainer)
    for name in ("lightning.pytorch", "pytorch_lightning"):
        _watch(f"{name}.trainer.trainer", hook_lightning)


def _watch(name: str, then: Callable[[ModuleType], None]) -> None:
    if name in sys.modules:
        _complaining(then)(sys.modules[name])
    else:
        sys.meta_path.insert(0, ImportWatch(name, then, _complain))


def _complaining(then: Callable[[ModuleType], None]) -> Callable[[ModuleType], None]:
    def call(module: ModuleType) -> None:
        try:
            then(module)
        except Exception as error:  # this release may differ inside from the known ones
            _complain(error)

    return call


def _complain(error: Exception) -> None:
    say("the script runs without Synergy's hook", error)


def _hook_trainer(module: ModuleType) -> None:
    from synergy_launch.auto.trainer_hook import hook_trainer

    hook_trainer(module)


def steps_done() -> int:
    """Return the optimizer steps that this job had done when its script saved the checkpoint it goes on from; 0 at the first start."""
    from synergy_launch.auto.own_loop import read_note

    note = read_note(Path(os.environ.get("SYNERGY_CHECKPOINT_DIR", "") or "."))
    return note["step"] if note and note.get("job") == os.environ.get("SLURM_JOB_ID", "") else 0


if os.environ.get("RANK") is not None and sys.argv[:1] != [
    "-m"
]:  # training, and not under __main__, which installs them itself
    install()
