"""Slurm's commands as child processes: argv lists, bounded in time, fixed-width tables."""

from __future__ import annotations

import math
import os
import re
import subprocess
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import accumulate
from time import perf_counter

from synergyd.slurm import child
from synergyd.slurm.client import SlurmError
from synergyd.slurm.pace import TokenBucket, count_requests

# variables by which an outer job or a user's habits would change formats, filters or the cluster
_FOREIGN = ("SQUEUE_", "SINFO_", "SCONTROL_", "SCANCEL_", "SLURM_")
_OURS = ("SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_JWT")
# A row of squeue takes up to 100 KB; 100,000 usual ones 150 MB. An answer to an update is a line a job.
MOST_READ_BYTES, MOST_WRITTEN_BYTES = 1 << 30, 1 << 20
_SAYS_LITTLE = frozenset({"update", "release", "requeue", "token"})
TOOK = 10_000  # calls whose times wait to be told
TRANSIENT = re.compile(
    r"timed out|Unable to contact|connection refused|Zero Bytes|Transport endpoint|"
    r"authentication|temporarily|Job is in the process of|being set|try again|busy|Unexpected message|not responding|"
    r"completing|backup|Rate limit exceeded",
    re.IGNORECASE,
)
# errors after which Slurm still ends with exit code 0 (22.05)
_BAD_FORMAT = re.compile(r"Invalid \w+ format|job script retrieval failed|--uid=\S+ invalid", re.IGNORECASE)


class Commands:
    """A runner of Slurm's commands. `environment` is added to the daemon's own. Calls are counted in `calls`."""

    def __init__(self, environment: Mapping[str, str] | None = None, timeout_s: float = 30.0) -> None:
        outer = {k: v for k, v in os.environ.items() if k in _OURS or not k.startswith(_FOREIGN)}
        # seconds since 1970 in every time field, and messages in the language that TRANSIENT knows
        own = {"SLURM_TIME_FORMAT": "%s", "LC_ALL": "C.UTF-8", "SQUEUE_ARRAY_UNIQUE": "1"}  # the last for `array_rows`
        self._environment = {**outer, **(environment or {}), **own}
        self._timeout_s = timeout_s
        self.calls = 0
        self.pace: TokenBucket | None = None  # where Slurm limits the requests of this user
        self.took: deque[tuple[str, float]] = deque(maxlen=TOOK)  # (command, seconds) of the latest calls

    def paced_s(self) -> float:
        """Return for how many seconds in all calls have waited for their turn, if Slurm limits the requests of this user."""
        return self.pace.waited_s if self.pace is not None else 0.0

    def table(
        self, program: str, fields: Sequence[tuple[str, int]], *options: str
    ) -> list[tuple[dict[str, str], frozenset[str]]]:
        """Return the rows of a fixed-width format, cut by byte offsets: (text by column, columns filled to the last byte).

        Raises SlurmError when a row has another length.
        """
        if fields[0][0].startswith("%"):  # the short format: %12A is column A, 12 wide
            format = ("-o", "".join(f"%{width}{name[1:]}" for name, width in fields))
        else:
            format = ("-O", ",".join(f"{name}:{width}" for name, width in fields))
        out = self.run(program, "-h", *options, *format)
        length = sum(width for _, width in fields) + 1
        if len(out) % length or any(out[i] != 10 for i in range(length - 1, len(out), length)):
            raise SlurmError(program, f"{len(out)} bytes are not rows of {length} bytes", transient=False)
        ends = list(accumulate(width for _, width in fields))
        places = [(name, end - width, end) for (name, width), end in zip(fields, ends, strict=True)]
        rows = []
        for start in range(0, len(out), length):
            line = out[start : start + length]
            full = frozenset(name for name, _, end in places if line[end - 1] != 32)
            if line.isascii():  # the usual one: cut as text, in half the time
                text = line.decode("ascii")
                row = {name: text[begin:end].rstrip(" ") for name, begin, end in places}
            else:
                row = {name: line[begin:end].decode(errors="replace").rstrip(" ") for name, begin, end in places}
            rows.append((row, full))
        return rows

    def run(
        self,
        *argv: str,
        timeout_s: float = math.inf,
        fine: re.Pattern[str] | None = None,
        start: Callable[[], AbstractContextManager[None]] = nullcontext,
        token: str = "",
        folder: str | None = None,
    ) -> bytes:
        """Run a command in `folder` (None: the daemon's own) and return its standard output.

        Raises SlurmError with what it said, except for the lines that are `fine`. `token`: run as the user whose
        token it is, for Slurm alone.
        """
        self.calls += 1
        if self.pace is not None:
            self.pace.take(count_requests(argv))
        timeout_s = min(timeout_s, self._timeout_s)
        began_s = perf_counter()
        try:
            answer = self._answer(argv, timeout_s, start, token, folder)
        except subprocess.TimeoutExpired:
            raise SlurmError(
                argv[0], f"no answer within {timeout_s:g} s (are slurmctld and munged up?)", transient=True
            ) from None
        except OSError as error:
            raise SlurmError(argv[0], f"can't be run: {error.strerror}", transient=False) from None
        finally:
            self.took.append((argv[0], perf_counter() - began_s))
        text = answer.stderr.decode(errors="replace").strip()
        if text and fine:
            text = "\n".join(line for line in text.splitlines() if line and not fine.search(line))
            if not text:
                return answer.stdout
        # a warning about slurm.conf is an "error:" too, but ends well; a column that is not known ends well, without it
        if answer.returncode or _BAD_FORMAT.search(text):
            raise SlurmError(
                " ".join(argv[:3]), text or f"exit {answer.returncode}", transient=bool(TRANSIENT.search(text))
            )
        return answer.stdout

    def _answer(
        self,
        argv: Sequence[str],
        timeout_s: float,
        start: Callable[[], AbstractContextManager[None]],
        token: str,
        folder: str | None,
    ) -> subprocess.CompletedProcess[bytes]:
        """Run `argv` and return what it printed. Raise TimeoutExpired, and SlurmError if it prints too much."""
        environment = self._environment | ({"SLURM_JWT": token} if token else {})
        short = argv[0] == "scancel" or not _SAYS_LITTLE.isdisjoint(argv[1:3])
        most_bytes = MOST_WRITTEN_BYTES if short else MOST_READ_BYTES
        try:
            return child.answer(argv, environment, timeout_s, most_bytes, start, folder)
        except child.TooLongError:
            raise SlurmError(argv[0], f"it printed more than {most_bytes // 2**20} MiB", transient=False) from None
