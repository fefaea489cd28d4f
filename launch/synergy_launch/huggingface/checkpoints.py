"""The checkpoints of Hugging Face's Trainer: `OUTPUT_DIR/checkpoint-N`, written by Trainer, sealed as Synergy's own are.

Rank 0 of Trainer writes weights, optimizer, schedule and generators one after the other, and trainer_state.json last,
but without fsync, in a folder that has its final name from the start. So one that has no seal (killed in between, or
written without Synergy) counts if that file can be read and speaks of step N; one that has, if its digests match.
Trainer itself would take the highest N. Nothing here knows of torch or transformers.
"""

from __future__ import annotations

import errno
import json
import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from synergy_launch.agent.checkpoint import (
    MARKER,
    Checkpoint,
    CheckpointError,
    Checkpoints,
    FoundCheckpoint,
    error_cause,
    first_good,
    seal,
    verify,
)

STATE = "trainer_state.json"
_UNFINISHED = "checkpoint-is-incomplete.txt"  # Trainer's own, while it saves on SIGTERM (enable_jit_checkpoint)
_NAME = re.compile(r"checkpoint-(\d+)\Z")
_WEIGHTS = ("*.safetensors", "*.bin", "pytorch_model_fsdp_*", "global_step*")


def latest_good(directory: Path, job: str = "") -> FoundCheckpoint:
    """Return the newest checkpoint that was finished; the note names newer ones that were not.

    `job`: only those sealed in this job count; "": all.
    """
    folders = sorted(
        (f for f in directory.iterdir() if _NAME.match(f.name) and f.is_dir()), key=_parse_step, reverse=True
    )
    folders = [folder for folder in folders if not job or _read_meta(folder).get("job") == job]
    newest = first_good(
        folders, lambda folder: verify(folder) if (folder / MARKER).exists() else _check_contents(folder)
    )
    if newest.checkpoint is None or newest.checkpoint.meta:
        return newest
    older = folders[folders.index(newest.checkpoint.path) :]
    meta = next((m for f in older if (m := _read_meta(f))), {})
    return replace(newest, checkpoint=replace(newest.checkpoint, meta=meta))


class TrainerCheckpoints(Checkpoints):
    """The checkpoints of one run; Trainer writes and prunes them itself. `output_dir` must be seen by all nodes."""

    sealed_step: int | None = None  # step of the newest sealed by this process
    job: str = ""  # only the checkpoints of this job count; "": all

    def find(self) -> FoundCheckpoint:
        """Find the newest checkpoint, as Checkpoints.find does.

        Unusable ones are renamed to `unusable-checkpoint-N`, which Trainer passes over.
        """

        def look() -> FoundCheckpoint:
            self.directory.mkdir(parents=True, exist_ok=True)
            newest = latest_good(self.directory, self.job)
            for folder in newest.bad:
                target = folder.with_name(f"unusable-{folder.name}")
                shutil.rmtree(target, ignore_errors=True)
                folder.rename(target)
            return newest

        newest: FoundCheckpoint = self._by_rank_0(look)
        return newest

    def save(self, step: int, write: Callable[[Path], Mapping[str, Any]]) -> None:
        """Seal what Trainer has written; `write` gives the metadata only. Raises CheckpointError on every rank."""
        folder = self.directory / f"checkpoint-{step}"
        self._meta = write(folder)
        self.reseal(step)

    def reseal(self, step: int) -> None:
        """Seal the checkpoint of `step` once more, which Trainer has written a second time."""
        folder, meta = self.directory / f"checkpoint-{step}", self._meta

        def close() -> None:
            if not (folder / STATE).exists():
                raise FileNotFoundError(errno.ENOENT, f"Trainer has not written checkpoint-{step}")
            seal(folder, step, meta)

        self.ranks.barrier()  # the others write their generators
        try:
            self._by_rank_0(close)
        except CheckpointError:
            raise
        except Exception as error:
            raise CheckpointError(f"checkpoint of step {step}", error_cause(error)) from error
        self.sealed_step = step


def _check_contents(folder: Path) -> tuple[Checkpoint | None, str]:
    step = _parse_step(folder)
    try:
        saved_step = json.loads((folder / STATE).read_text(encoding="utf-8"))["global_step"]
    except FileNotFoundError:
        return None, "it was not finished"
    except (OSError, ValueError, KeyError, TypeError):
        return None, f"its {STATE} can't be read"
    if saved_step != step or (folder / _UNFINISHED).exists():
        return None, "it was not finished"
    if not any(_has_content(path) for pattern in _WEIGHTS for path in folder.glob(pattern)):
        return None, "it has no weights"
    empty = [path.name for path in sorted(folder.iterdir()) if path.is_file() and not path.stat().st_size]
    return (None, f"{empty[0][:80]} is empty") if empty else (Checkpoint(folder, step, {}), "")


def _has_content(path: Path) -> bool:
    return any(path.iterdir()) if path.is_dir() else path.stat().st_size > 0


def _read_meta(folder: Path) -> Mapping[str, Any]:
    try:
        meta = json.loads((folder / MARKER).read_text(encoding="utf-8"))["meta"]
    except (OSError, ValueError, KeyError, TypeError):
        return {}
    return meta if isinstance(meta, dict) else {}


def _parse_step(folder: Path) -> int:
    match = _NAME.match(folder.name)
    return int(match[1]) if match else -1
