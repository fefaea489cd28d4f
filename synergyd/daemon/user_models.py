"""The model that a directive names: a preset, or a file of the job's user, which a daemon run as root opens with care."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

from synergyd.errors import UsageError
from synergyd.records import ModelSpec
from synergyd.task.model.spec import from_hf_config, load_model

MAX_CONFIG_BYTES = 1024 * 1024


def load(name: str, uid: int) -> ModelSpec:
    """The preset `name`, or the model of the config.json at that path as user `uid` may read it. Raises UsageError."""
    if "/" not in name:
        return load_model(name)
    where = f"model {name}"
    return from_hf_config(_read(Path(name), where, uid), where, Path(name).parent.name or "model")


def _read(path: Path, where: str, uid: int) -> object:
    try:
        # not through a link, and never waiting for a pipe's other end; what was opened is what is checked
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise UsageError(where, f"can't be read ({error.strerror})", "name a config.json, not a link") from None
    try:
        about = os.fstat(descriptor)
        if not stat.S_ISREG(about.st_mode) or about.st_size > MAX_CONFIG_BYTES:
            raise UsageError(where, "is no plain config.json", "name a file of at most 1 MiB")
        if about.st_uid != uid and not about.st_mode & stat.S_IROTH:
            raise UsageError(where, "belongs to another user and is not readable by all", "chmod o+r, or use your own")
        text = os.read(descriptor, MAX_CONFIG_BYTES)
    finally:
        os.close(descriptor)
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise UsageError(where, "is not JSON", "give a Hugging Face config.json") from None
