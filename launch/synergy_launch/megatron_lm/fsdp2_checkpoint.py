"""Checkpoints of a gated MLP under PyTorch's FSDP2 (`--use-torch-fsdp2 --swiglu`): they load on as many processes as wrote them alone.

Megatron-LM (core_v0.16.1, apply_swiglu_sharded_factory in transformer/mlp.py) takes the rows that a process has for one part of the gate
and one of what it gates. FSDP2 cuts the rows otherwise: on another number of processes they come back in another order, without a word.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from synergy_core.errors import UsageError

from synergy_launch.megatron_lm import tracker
from synergy_launch.megatron_lm.options import has_option, option_values

_GATED = ("--swiglu", "--quick-geglu")
_FILE = re.compile(r"__([0-9]{1,7})_[0-9]+\.distcp\Z")  # of torch.distributed.checkpoint, by rank
REMARK = (
    "with --use-torch-fsdp2 its gated MLP (--swiglu, --quick-geglu) loads on as many GPUs as have saved it alone: the job keeps "
    "the size asked for"
)


def is_bound_to_size(arguments: Sequence[str]) -> bool:
    """Return whether a run with these arguments can't go on with another number of processes."""
    return has_option(arguments, "--use-torch-fsdp2") and any(has_option(arguments, name) for name in _GATED)


def check(arguments: Sequence[str], folder: Path | None, world: int) -> None:
    """Raise UsageError where a run of `world` processes would resume from a checkpoint of another number.

    `arguments` are the user's own. What can't be read counts as no checkpoint.
    """
    saved = tracker.resume_source(folder, option_values(arguments, "--load")) if is_bound_to_size(arguments) else None
    wrote = _processes(saved) if saved is not None else 0
    if wrote not in (0, world):
        what = f"{saved} is of {wrote} processes, and would be mixed up on {world}: --use-torch-fsdp2 with a gated MLP"
        raise UsageError("--load", what, f"start it on {wrote} GPUs")


def _processes(folder: Path) -> int:
    try:
        return len({match[1] for entry in folder.iterdir() if (match := _FILE.match(entry.name))})
    except OSError:
        return 0
