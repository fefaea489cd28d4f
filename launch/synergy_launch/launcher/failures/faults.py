"""The cause of a run's end that its exit code does not show, as the kernel and the training processes of this node know it."""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from synergy_core.job_report import Fault

from synergy_launch.agent import run_folder
from synergy_launch.agent.full_disk import is_full_disk, read_free_bytes
from synergy_launch.agent.host_memory import read_oom_kills
from synergy_launch.launcher.failures.lost_nodes import ENDED_AS_ASKED, KILLED_CODE
from synergy_launch.launcher.gpus.errors import GpuErrors
from synergy_launch.node_check.adapters import read_links

#: what torchrun and PyTorch's data loader say of a process that SIGKILL ended
_KILLED = re.compile(rb"Signal 9 \(SIGKILL\)|killed by signal: Killed")

#: a link that was lost longer ago, twice as long at the most, did not end the run: NCCL's watchdog waits 600 s for a collective
LINK_S = 900.0


class FaultFinder:
    """The search for the cause of one run's end on this node; made before the run starts. Call `poll` while it lasts.

    `run`: its number in this incarnation. `folders`: where the run writes, besides what its agent says.
    """

    def __init__(
        self,
        node: str,
        run: int,
        run_dir: Path,
        folders: tuple[Path, ...] = (),
        *,
        oom_kills: Callable[[], int | None] = read_oom_kills,
        gpus: GpuErrors | None = None,
        links: Callable[[], Mapping[str, bool]] = read_links,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._node, self._run, self._run_dir, self._folders = node, run, run_dir, folders
        self._oom_kills = oom_kills
        self._gpus = GpuErrors(os.environ) if gpus is None else gpus
        self._kills_before = oom_kills()
        self._links, self._monotonic = links, monotonic
        self._links_before = self._links_since = links()
        self._looked_s = monotonic()

    def poll(self) -> None:
        """Look at the network adapters now and then."""
        if (now_s := self._monotonic()) >= self._looked_s + LINK_S:
            self._links_before, self._links_since, self._looked_s = self._links_since, self._links(), now_s

    def find(self, code: int, error_output: bytes) -> Fault | None:
        """Return the cause of the run's end by itself with exit code `code`, or None if nothing is known.

        `error_output`: the end of its error output; empty where it is not read.
        """
        if code in ENDED_AS_ASKED:
            return None
        if (spike := run_folder.read_noted_spike(self._run_dir)) is not None:
            return Fault(kind="spike", run=self._run, node=self._node, spike=spike)
        if self._is_out_of_memory(code, error_output):
            return Fault(kind="oom", run=self._run, node=self._node)
        error = self._gpus.find()
        if error is None:
            return self._find_lost_link() or self._find_full_disk(error_output)
        return Fault(
            kind="gpu",
            run=self._run,
            node=self._node,
            xid=error.xid,
            pci_address=error.pci_address,
            ecc_errors=error.ecc_errors,
        )

    def close(self) -> None:
        """Let the kernel's log and the GPUs' library go."""
        self._gpus.close()

    def _is_out_of_memory(self, code: int, error_output: bytes) -> bool:
        # torchrun's own exit code is 1 where a rank was killed, and what it says may not be read
        killed = code == KILLED_CODE or not error_output or _KILLED.search(error_output) is not None
        kills = self._oom_kills() if killed else None
        return kills is not None and self._kills_before is not None and kills > self._kills_before

    def _find_lost_link(self) -> Fault | None:
        now = self._links()
        lost = [name for name, was_up in self._links_before.items() if was_up and not now.get(name)]
        return Fault(kind="network", run=self._run, node=self._node, adapter=lost[0]) if lost else None

    def _find_full_disk(self, error_output: bytes) -> Fault | None:
        folder = run_folder.read_full_disk(self._run_dir)
        if folder is None and is_full_disk(error_output.decode(errors="replace")):
            # a message may name any file: the fullest of the folders that are known
            free = {f: n for f in self._folders if (n := read_free_bytes(f)) is not None}
            folder = min(free, key=lambda f: free[f]) if free else Path()
        if folder is None:
            return None
        is_folder_known = folder != Path()
        return Fault(
            kind="disk",
            run=self._run,
            node=self._node,
            folder=str(folder) if is_folder_known else "",
            free_bytes=read_free_bytes(folder) if is_folder_known else None,
        )


def folders_of_run(checkpoints: Path | None) -> tuple[Path, ...]:
    """Return the folders that a run writes to, as far as the launcher knows them."""
    folders = [] if checkpoints is None else [checkpoints]
    with contextlib.suppress(OSError):  # the working folder may be gone
        folders.append(Path.cwd())
    return (*folders, Path(os.environ.get("TMPDIR") or "/tmp"))
