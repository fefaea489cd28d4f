"""The job's output, kept over a requeue. Slurm truncates it at each start, unless sbatch or slurm.conf say that it appends.

The first node's launcher hears of a requeue by Slurm's SIGTERM. Its last act is to copy the output to a file beside it; the launcher of
the next incarnation puts that before what its own incarnation has written. `--open-mode` of the user's, of either kind, is
left as it is.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import re
import stat
import threading
from collections.abc import Callable, Mapping
from pathlib import Path

import click

from synergy_launch.launcher.job.allocation import JobAllocation, slurm_name
from synergy_launch.launcher.job.preemption import ask_slurm, read_value

CLOSE_S = 25.0  # Slurm's KillWait is 30 s by default
MOST_BYTES = 0x7FFFF000  # the most that one write() takes: what others write meanwhile must not get into it
_LOOK_S = 0.2
_PIECE = 1 << 24
_RESTARTS = re.compile(r"^   Requeue=\d+ Restarts=(\d+) ", re.MULTILINE)
_OUTPUT = re.compile(r"^   Std(?:Out|Err)=(/.*)$", re.MULTILINE)


class OutputKeeper:
    """The keeping of one incarnation's output: puts back what the incarnation before left, and keeps its own on a requeue.

    `ending` says whether SIGTERM came. `is_synergys` says whether the job is one of Synergy's: output of other requeued jobs is left to
    Slurm. There is nothing to do for a job outside Slurm, for one with --open-mode, and on all nodes but the first.
    """

    def __init__(
        self,
        allocation: JobAllocation,
        ending: Callable[[], bool],
        is_synergys: Callable[[], bool],
        environment: Mapping[str, str],
    ) -> None:
        self._ending, self._is_synergys, self._closed = ending, is_synergys, threading.Event()
        self._job_id, self._restarts = allocation.job_id, allocation.restarts
        self._thread: threading.Thread | None = None
        # sbatch sets it where the user has chosen
        if allocation.job_id is not None and allocation.node_rank == 0 and not environment.get("SLURM_OPEN_MODE"):
            leader = environment.get("SLURM_JOB_ID_HET_GROUP_0", "")
            name = f"{leader}+0" if leader.isdecimal() else slurm_name(allocation.job_id, environment)
            self._thread = threading.Thread(target=self._run, args=(name,), name="output", daemon=True)

    def start(self) -> None:
        """Start keeping the output, in a thread beside the training."""
        if self._thread is not None:
            self._thread.start()

    def close(self) -> None:
        """Wait until the output is kept, if the job is being requeued; this is the launcher's last act."""
        self._closed.set()
        if self._thread is not None and self._thread.is_alive():
            self._thread.join(CLOSE_S)

    def _run(self, name: str) -> None:
        if self._restarts > 0:
            self._put_back(name)
        while not self._ending():
            if self._closed.wait(_LOOK_S):
                break
        if self._ending() and self._is_synergys():
            self._keep(name)

    def _put_back(self, name: str) -> None:
        for path in output_files(ask_slurm("scontrol", "show", "job", name) or ""):
            # the latest first: the earlier copy is put before it
            for restarts in range(self._restarts - 1, -1, -1):
                copy = self._copy_path(path, restarts)
                try:
                    if copy.exists():
                        prepend(path, copy)
                except OSError as error:
                    remark = f"{path}: the output before this start is in {copy} ({error.strerror})"
                    click.echo(f"synergy-launch: {remark}", err=True)

    def _keep(self, name: str) -> None:
        job_text = ask_slurm("scontrol", "show", "job", name)
        restarts = _RESTARTS.findall(job_text or "")
        # Slurm counts a requeue before it signals; else the job ends for good
        if job_text is None or (restarts and int(restarts[-1]) <= self._restarts):
            return
        if read_value(ask_slurm("scontrol", "show", "config") or "", "JobFileAppend") == "1":
            return
        paths = output_files(job_text)
        for path in paths:
            self._copy(path)
        # copy once more when the training has ended, for its last output
        self._closed.wait()
        for path in paths:
            self._copy(path)

    def _copy(self, path: Path) -> None:
        try:
            add_new(path, self._copy_path(path, self._restarts))
        except OSError as error:
            click.echo(f"synergy-launch: {path}: the next start truncates it ({error.strerror})", err=True)

    def _copy_path(self, path: Path, restarts: int) -> Path:
        return path.with_name(f".{path.name}.synergy-{self._job_id}-{restarts}")


def output_files(job_text: str) -> list[Path]:
    """Return the job's existing regular output files, each once, as `scontrol show job` names them."""
    files: dict[tuple[int, int], Path] = {}
    for text in _OUTPUT.findall(job_text):
        with contextlib.suppress(OSError):
            file_status = Path(text).stat()
            if stat.S_ISREG(file_status.st_mode):
                files.setdefault((file_status.st_dev, file_status.st_ino), Path(text))
    return list(files.values())


def add_new(path: Path, copy: Path) -> None:
    """Append to `copy` the part of `path` that lies beyond the size of `copy`. Raises OSError."""
    source = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        size = os.fstat(source).st_size
        if size > MOST_BYTES:
            raise OSError(0, f"it is larger than {MOST_BYTES >> 30} GiB; --open-mode=append keeps it")
        target = os.open(copy, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            done = os.lseek(target, 0, os.SEEK_END)
            while done < size and (piece_bytes := os.sendfile(target, source, done, min(_PIECE, size - done))):
                done += piece_bytes
        finally:
            os.close(target)
    finally:
        os.close(source)


def prepend(path: Path, copy: Path) -> None:
    """Put the content of `copy` before that of `path`, to which others append meanwhile, and remove `copy`.

    Does nothing where `path` already begins with it, since nobody has truncated it. Raises OSError.
    """
    source = os.open(copy, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        file_status = os.fstat(source)
        if not stat.S_ISREG(file_status.st_mode) or file_status.st_uid != os.geteuid():
            raise OSError(0, "it is no file of this user's")
        if file_status.st_size:
            with mmap.mmap(source, file_status.st_size, prot=mmap.PROT_READ) as old:
                _prepend(path, old)
    finally:
        os.close(source)
    copy.unlink()


def _prepend(path: Path, old: mmap.mmap) -> None:
    size = len(old)
    plain = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        if _has_prefix(plain, old):
            return
        appending = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
        try:
            # one write: whatever others append comes before it or behind it
            if os.write(appending, old) < size:
                raise OSError(28, os.strerror(28))
            fresh_bytes = os.lseek(appending, 0, os.SEEK_CUR) - size
        finally:
            os.close(appending)
        # nobody writes into these first bytes any more: the output of this start changes places with the earlier output
        fresh = _read(plain, fresh_bytes)
        if fresh:
            for at in range(0, size, _PIECE):
                _write(plain, old[at : at + _PIECE], at)
            _write(plain, fresh, size)
    finally:
        os.close(plain)


def _has_prefix(descriptor: int, old: mmap.mmap) -> bool:
    if os.fstat(descriptor).st_size < len(old):
        return False
    return all(
        os.pread(descriptor, len(piece), at) == piece
        for at in range(0, len(old), _PIECE)
        if (piece := old[at : at + _PIECE])
    )


def _read(descriptor: int, size: int) -> bytes:
    pieces, done = [], 0
    while done < size and (piece := os.pread(descriptor, size - done, done)):
        pieces.append(piece)
        done += len(piece)
    return b"".join(pieces)


def _write(descriptor: int, content: bytes, at: int) -> None:
    while content:
        done = os.pwrite(descriptor, content, at)
        content, at = content[done:], at + done
