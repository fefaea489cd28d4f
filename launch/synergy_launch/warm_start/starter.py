"""The start of the training on this node: a fork where a process waits for it, else Python."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Mapping, Sequence

from synergy_launch.agent import host_memory
from synergy_launch.warm_start.client import Child, WaitingProcess

FORKED = "SYNERGY_FORKED"  # set for a command that was forked: it may fork its own processes
#: seconds after the start of a run that says nothing of its steps: its ranks import the same files, and come first
AFTER_S = 20.0
#: seconds for the imports, beyond which Python is started afresh
IMPORT_S = 60.0
#: free memory of the host: torch and megatron-core take 0.36 GB without CUDA's libraries (measured), about 1 GB with them
FREE_BYTES = 4 << 30


class Starter:
    """Starts of this node's command. `modules`: what its ranks import first; () for no waiting process.

    Call `poll` while the command runs, as long as another start of it may follow.
    """

    def __init__(self, modules: Sequence[str], monotonic: Callable[[], float] = time.monotonic) -> None:
        self._modules, self._monotonic = tuple(modules), monotonic
        self._waiting: WaitingProcess | None = None
        self._environment: Mapping[str, str] | None = None  # of the latest start
        self._started_s = 0.0

    def start(self, argv: Sequence[str], environment: Mapping[str, str], *, output: bool, errors: bool) -> Child:
        """Start the command. `output`, `errors`: through a pipe."""
        self._environment, self._started_s = environment, self._monotonic()
        if self._waiting is not None and self._waiting.is_ready(IMPORT_S):
            marked = {**environment, FORKED: "1"}
            child = self._waiting.start(argv, marked, output=output, errors=errors)
            if child is not None:
                return child
        out, err = (subprocess.PIPE if piped else None for piped in (output, errors))
        return subprocess.Popen(argv, env=environment, stdout=out, stderr=err)

    def poll(self, *, trains: bool = False) -> None:
        """Start the waiting process once the command `trains` or has run for a while, and the host has room for it."""
        if self._environment is None or not (trains or self._monotonic() >= self._started_s + AFTER_S):
            return
        self.prepare(self._environment)

    def prepare(self, environment: Mapping[str, str]) -> None:
        """Start the waiting process, once."""
        modules, self._modules = self._modules, ()
        free = host_memory.read_free_bytes()
        if modules and (free is None or free >= FREE_BYTES):
            self._waiting = WaitingProcess.launch(modules, environment)

    @property
    def is_importing(self) -> bool:
        """Return whether the waiting process makes its imports yet."""
        return self._waiting is not None and self._waiting.is_importing

    def await_ready(self, within_s: float) -> None:
        """Wait for the imports to be done."""
        if self._waiting is not None:
            self._waiting.is_ready(within_s)

    def close(self) -> None:
        """End the waiting process."""
        if self._waiting is not None:
            self._waiting.close()
