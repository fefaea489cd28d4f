"""The end of a job by squeue, which knows it for MinJobAge, else by sacct. `run` is what talks to Slurm."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence

from synergy_core.errors import SynergyError
from synergy_core.job_end import JobEnd

from synergyd.slurm.parsed.rows import job_state

_ENDED = frozenset({
    "COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "PREEMPTED", "OUT_OF_MEMORY", "DEADLINE", "BOOT_FAIL", "REVOKED",
})  # fmt: skip
_EPOCH = ("env", "SLURM_TIME_FORMAT=%s")  # times as seconds since 1970
# no column that holds a stranger's text
_QUEUE = ("squeue", "-h", "-a", "-t", "all", "-O", "JobID:12,State:20,exit_code:12,StartTime:14,EndTime:14", "-j")
_ACCOUNTS = ("sacct", "-n", "-P", "-X", "-a", "--format=JobIDRaw,State,ExitCode,Start,End", "-j")


def read_job_end(run: Callable[[Sequence[str]], str], job_id: int) -> JobEnd | None:
    """Return how the job ended, or None if it has not ended, or nobody remembers. `run` may raise SynergyError, which counts as that."""
    for command in (_QUEUE, _ACCOUNTS):
        try:
            text = run((*_EPOCH, *command, str(int(job_id))))
        except SynergyError:  # it has left slurmctld's memory, or there are no accounts
            continue
        for words in _rows(text):
            if words[0] == str(job_id):
                return _end_of(*words[1:])
    return None


def _rows(text: str) -> Iterator[list[str]]:
    for line in text.splitlines():
        # "CANCELLED by 1000"
        words = [word.partition(" ")[0] for word in line.split("|")] if "|" in line else line.split()
        if len(words) == 5:
            yield words


def _end_of(state: str, code: str, start: str, end: str) -> JobEnd | None:
    state = job_state(state)
    if state not in _ENDED:
        return None
    exit_code, signal = _exit_of(code)
    return JobEnd(state=state, exit_code=exit_code, signal=signal, start_s=_second(start), end_s=_second(end))


def _exit_of(text: str) -> tuple[int, int]:
    """Return (exit code, signal) of `3:0`, or of a wait status such as 768, as squeue of some releases prints it."""
    code, colon, signal = text.partition(":")
    if not re.fullmatch(r"[0-9]{1,9}", code) or (colon and not re.fullmatch(r"[0-9]{1,9}", signal)):
        return 0, 0
    return (int(code), int(signal)) if colon else (int(code) >> 8, int(code) & 0x7F)


def _second(text: str) -> float | None:
    return float(text) if text.isdecimal() else None
