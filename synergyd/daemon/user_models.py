"""The model that a directive names: a preset, or a file of the job's user, which a daemon run as root opens with care."""

from __future__ import annotations

import errno
import grp
import json
import os
import pwd
import stat
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from synergy_core.errors import SynergyError, UsageError
from synergy_core.records import ModelSpec

from synergyd.jobmodel.model.spec import from_hf_config, presets

MAX_CONFIG_BYTES = 1024 * 1024
READ_S = 1.0  # for one file: a dead NFS server or a user's own file system may never answer
SLOW_AGAIN_S = 600.0  # a user whose file took longer is not read for that long
BUDGET_S = 0.2  # for the files of one user in an epoch: a file of the greatest size takes 0.05 s
_MOST_KEPT = 10_000
_MAX_PARTS = 64  # folders and links of a path
_slow_until_s: dict[int, float] = {}  # by uid, of time.monotonic


Identity = tuple[int, int, int, int]  # device, inode, time of the last change in ns, bytes


class UserModels:
    """Models by (name, uid), read with bounded effort: many jobs that name a bad file cost one look at it an epoch.

    A file that is no config is parsed again only when it has changed. Files of one user are read for BUDGET_S an epoch, and one more
    at the most; another user's are read all the same.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._models: dict[tuple[str, int], ModelSpec] = {}
        self._refused: dict[tuple[str, int], tuple[Identity, UsageError]] = {}
        self._looked: dict[tuple[str, int], UsageError] = {}  # in this epoch
        self._spent_s: dict[int, float] = {}  # in this epoch, by uid

    def begin(self) -> None:
        """Begin an epoch."""
        self._looked, self._spent_s = {}, {}

    def load_cached(self, name: str, uid: int) -> ModelSpec:
        """Return `load(name, uid)`. Raise UsageError as it does, or if the user's files have taken their time in this epoch."""
        key = name, uid
        if key in self._models:
            return self._models[key]
        if "/" not in name:
            return load(name, uid)
        if key in self._looked:
            raise _copy_error(self._looked[key])
        if self._spent_s.get(uid, 0.0) >= BUDGET_S:
            if key in self._refused:
                raise _copy_error(self._refused[key][1])
            raise UsageError(f"model {name}", "is not read yet: files of this user take too long", "it is read later")
        began_s = self._clock()
        try:
            model = self._models[key] = self._read(key)
            self._refused.pop(key, None)
            _forget_oldest(self._models)
            return model
        except UsageError as error:
            self._looked[key] = error
            raise
        finally:
            self._spent_s[uid] = self._spent_s.get(uid, 0.0) + self._clock() - began_s

    def _read(self, key: tuple[str, int]) -> ModelSpec:
        identity, error = self._refused.get(key, (None, None))
        data, now = _read_model_file(*key, identity)
        if data is None and error is not None:
            raise _copy_error(error)
        try:
            return parse_config(key[0], data or b"")
        except UsageError as refusal:
            self._refused[key] = now, refusal
            _forget_oldest(self._refused)
            raise


def _copy_error(error: UsageError) -> UsageError:
    """Return a kept error to be raised again, without the frames that it passed before: they would pile up."""
    return error.with_traceback(None)


def _forget_oldest(entries: dict[tuple[str, int], Any]) -> None:
    while len(entries) > _MOST_KEPT:
        del entries[next(iter(entries))]


def load(name: str, uid: int) -> ModelSpec:
    """Return the preset `name`, or the model of the config.json at that absolute path as user `uid` may read it.

    Raise UsageError, whatever is wrong. A file that the user may not read and a missing one have the same message: the
    daemon may see more than the user.
    """
    if "/" not in name:
        preset = presets().get(name.strip().lower())
        if preset is None:
            right = f"presets are {', '.join(presets())}; a file has an absolute path"
            raise UsageError(f"model {name}", "is no preset", right)
        return preset
    return parse_config(name, _read_model_file(name, uid)[0] or b"")


def _read_model_file(name: str, uid: int, known_identity: Identity | None = None) -> tuple[bytes | None, Identity]:
    """Return what the file holds (None if it is `known_identity`) and its identity. Raise UsageError."""
    try:
        return _in_time(name, uid, known_identity)
    except (OSError, KeyError):
        raise UsageError(
            f"model {name}",
            "can't be read as the job's user",
            f"name an absolute path of a config.json of 1 to {MAX_CONFIG_BYTES} bytes, not a link, that the user may read",
        ) from None


def parse_config(name: str, data: bytes) -> ModelSpec:
    """Return the model of the config.json `name` that holds `data`. Raise UsageError."""
    where = f"model {name}"
    try:
        config = json.loads(data)
    except (ValueError, RecursionError, MemoryError):
        raise UsageError(where, "is not JSON", "give a Hugging Face config.json") from None
    try:
        return from_hf_config(config, where, Path(name).parent.name or "model")
    except SynergyError:
        raise
    except Exception as error:  # numbers and types that no config.json has
        raise UsageError(
            where, f"can't be understood ({type(error).__name__})", "give a Hugging Face config.json"
        ) from None


def _in_time(name: str, uid: int, known_identity: Identity | None) -> tuple[bytes | None, Identity]:
    """Call _read in a thread that is not waited for longer than READ_S. Raises OSError."""
    now_s = time.monotonic()
    if now_s < _slow_until_s.get(uid, 0.0):
        raise OSError(errno.ETIMEDOUT, "a file of this user was slow")
    _slow_until_s.pop(uid, None)
    answer: list[tuple[bytes | None, Identity] | Exception] = []

    def read() -> None:
        try:
            answer.append(_read(name, uid, known_identity))
        except Exception as error:
            answer.append(error)

    reader = threading.Thread(target=read, name="user-model", daemon=True)
    try:
        reader.start()
    except RuntimeError:
        raise OSError(errno.EAGAIN, "no thread to be had") from None
    reader.join(READ_S)
    if not answer:
        _slow_until_s[uid] = now_s + SLOW_AGAIN_S
        raise OSError(errno.ETIMEDOUT, "too slow")
    if isinstance(answer[0], Exception):
        raise answer[0]
    return answer[0]


def _read(name: str, uid: int, known_identity: Identity | None) -> tuple[bytes | None, Identity]:
    """Return the bytes of an ordinary file that user `uid` may read, by the modes of all folders on the way, and its identity.

    The bytes are None if the identity is `known_identity`. Raise OSError.
    """
    if not name.startswith("/"):
        raise OSError(errno.ENOENT, "not absolute")
    descriptor = _open(name, uid)
    try:
        about = os.fstat(descriptor)
        if (
            not stat.S_ISREG(about.st_mode)
            or not 0 < about.st_size <= MAX_CONFIG_BYTES
            or not _has_permission(about, uid, 4)
        ):
            raise OSError(errno.EACCES, "no ordinary file of the user's")
        identity = about.st_dev, about.st_ino, about.st_mtime_ns, about.st_size
        return (None if identity == known_identity else os.read(descriptor, MAX_CONFIG_BYTES)), identity
    finally:
        os.close(descriptor)


def _open(name: str, uid: int) -> int:
    """Open the file step by step: the file that is opened is the one that was checked, even if it is renamed meanwhile. Raises OSError."""
    todo = [part for part in reversed(name.split("/")) if part not in ("", ".")]
    folder = os.open("/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for _ in range(_MAX_PARTS):
            if not _has_permission(os.fstat(folder), uid, 1):
                break
            part = todo.pop()
            if not todo:
                # not through a link, and never waiting for a pipe's other end
                flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
                about = os.stat(part, dir_fd=folder, follow_symlinks=False)
                if not stat.S_ISREG(about.st_mode):  # opening a device can do something
                    break
                return os.open(part, flags, dir_fd=folder)
            below = os.open(part, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
            mode = os.fstat(below).st_mode
            if stat.S_ISLNK(mode):
                os.close(below)
                target = os.readlink(part, dir_fd=folder)
                todo += [step for step in reversed(target.split("/")) if step not in ("", ".")]
                if not target.startswith("/"):
                    continue
                below = os.open("/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
            os.close(folder)
            folder = below
        raise OSError(errno.EACCES, "no way there")
    except IndexError:
        raise OSError(errno.EISDIR, "a folder") from None
    finally:
        os.close(folder)


def _has_permission(about: os.stat_result, uid: int, bit: int) -> bool:
    """Return whether user `uid` has `bit` (4 read, 1 search) of a file's mode, as the kernel decides without root's rights."""
    if about.st_uid == uid:
        return bool(about.st_mode >> 6 & bit)
    if bool(about.st_mode >> 3 & bit) == bool(about.st_mode & bit):
        return bool(about.st_mode & bit)  # whatever groups the user is in
    return bool(about.st_mode >> (3 if _in_group(uid, about.st_gid) else 0) & bit)


def _in_group(uid: int, gid: int) -> bool:
    try:
        user = pwd.getpwuid(uid)
        return user.pw_gid == gid or user.pw_name in grp.getgrgid(gid).gr_mem
    except KeyError:
        return False
