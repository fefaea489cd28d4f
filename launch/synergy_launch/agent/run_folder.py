"""The private folder that the launcher and its training processes share on one node."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any

from synergy_core.errors import UsageError
from synergy_core.job_report import LossSpike
from synergy_core.records import Plan
from synergy_core.wire import report as wire_report
from synergy_core.wire.codec import encode

STATUS = "status.json"
REQUEST = "checkpoint-request"
BATCH = "batch"
MENDING = "mending"
FULL_DISK = "full-disk"
SPIKE = "loss-spike"
INSIDE = "inside.json"  # the knowledge of a hook in a Megatron-LM script, beside its log


def folder_pattern(job_id: int | None, restarts: int, node_rank: int) -> Path:
    """Return where the folder of this node and incarnation would lie, with mktemp's X for the random part."""
    return Path(tempfile.gettempdir()) / f"{_prefix(job_id, restarts, node_rank)}XXXXXXXX"


def make(job_id: int | None, restarts: int, node_rank: int) -> Path:
    """Make a folder of this launcher's own (mode 0700, a random name). Raises UsageError."""
    try:
        return Path(tempfile.mkdtemp(prefix=_prefix(job_id, restarts, node_rank)))
    except OSError as error:
        right = "set TMPDIR to a writable folder"
        raise UsageError(tempfile.gettempdir(), f"can't take a run folder ({error.strerror})", right) from None


def _prefix(job_id: int | None, restarts: int, node_rank: int) -> str:
    # never the whole name: two clusters' nodes on one machine, or two steps of one job, would share the folder
    return f"synergy-{os.getuid()}-{job_id or os.getpid()}-{restarts}-{node_rank}-"


def read_status(folder: Path) -> dict[str, Any] | None:
    """Return the training process's status, None while there is none (or half of one)."""
    try:
        data = json.loads((folder / STATUS).read_text())
    except (OSError, ValueError):
        return None
    return data if isinstance(data, dict) else None


def write_hook_state(folder: Path, values: dict[str, Any]) -> None:
    """Replace what a script's hook says. Raises OSError."""
    _write(folder, INSIDE, json.dumps(values) + "\n")


def read_hook_state(folder: Path) -> dict[str, Any]:
    """Return what a script's hook said last, restricted to the fields that it may say."""
    try:
        data = json.loads((folder / INSIDE).read_text())
    except (OSError, ValueError):
        return {}
    names = ("noise_scale", "rebatching", "note", "base_batch")
    return {name: data[name] for name in names if name in data} if isinstance(data, dict) else {}


def request_checkpoint(folder: Path, number: int) -> None:
    """Ask the training processes for their `number`th checkpoint on request."""
    _write(folder, REQUEST, f"{number}\n")


def note_mending(folder: Path) -> None:
    """Note for torchrun that the launcher answers a failure by another run."""
    _write(folder, MENDING, "")


def is_mended(folder: Path) -> bool:
    """Return whether the launcher answers a failure by another run."""
    return (folder / MENDING).exists()


def note_full_disk(folder: Path, full: Path) -> None:
    """Note for the launcher that the run ends since `full` takes no more bytes. Raises OSError."""
    _write(folder, FULL_DISK, str(full))


def read_full_disk(folder: Path) -> Path | None:
    """Return the folder that took no more bytes, or None if no process has ended for that."""
    try:
        return Path((folder / FULL_DISK).read_text())
    except (OSError, ValueError):
        return None


def note_spike(folder: Path, spike: LossSpike) -> None:
    """Note for the launcher that the run ends to go on without the examples that led to `spike`. Raises OSError."""
    _write(folder, SPIKE, json.dumps(encode(spike)) + "\n")


def read_noted_spike(folder: Path) -> LossSpike | None:
    """Return the spike for which the run has ended, or None if it has not ended for one."""
    try:
        return wire_report.read_spike(json.loads((folder / SPIKE).read_bytes()))
    except (OSError, ValueError, RecursionError):
        return None


def propose_batch(folder: Path, plan: Plan) -> None:
    """Ask the training processes to go on with `plan`'s batch from their next step."""
    _write(folder, BATCH, json.dumps({"global_batch": plan.global_batch, "micro_batch": plan.micro_batch}) + "\n")


def read_proposed_batch(folder: Path) -> tuple[int, int] | None:
    """Return the (global batch, micro-batch) that was proposed last, None if none was."""
    try:
        data = json.loads((folder / BATCH).read_bytes())
        batch = data["global_batch"], data["micro_batch"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return batch if all(type(n) is int and 0 < n < 1 << 27 for n in batch) else None


def _write(folder: Path, name: str, text: str) -> None:
    fresh = folder / f".{name}"
    fresh.write_text(text)
    fresh.replace(folder / name)
