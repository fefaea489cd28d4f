"""Checkpoints in Megatron-LM's older format (`--ckpt-format torch`), one part for each tp and pp.

They load with the degrees and the optimizer that wrote them alone (core_v0.16.1). Where a part is missing, Megatron-LM ends with code 0
before its first iteration, and the job would count as done.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from synergy_launch.megatron_lm import tracker
from synergy_launch.megatron_lm.options import option_values

_PART = "mp_rank_"
REMARK = (
    "its checkpoint is in Megatron-LM's older format, which other degrees do not load: the script's own arguments are used. With "
    "--ckpt-format torch_dist the next one is in the newer format"
)


def is_resumed_from_older_format(arguments: Sequence[str], folder: Path | None) -> bool:
    """Return whether a run resumes from such a checkpoint: from `folder` where one lies there, else from --load in the user's `arguments`.

    What can't be read counts as no checkpoint.
    """
    saved = tracker.resume_source(folder, option_values(arguments, "--load"))
    return saved is not None and _has_parts(saved)


def _has_parts(folder: Path) -> bool:
    try:
        return any(entry.name.startswith(_PART) for entry in folder.iterdir())
    except OSError:
        return False
