"""torchrun and its ranks, forked from a process that has imported torch: with gloo, as the launcher starts them."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from synergy_launch.launcher.commands import start
from synergy_launch.launcher.script import kind as script_kind
from synergy_launch.megatron_lm.supervisor import find_workers
from synergy_launch.warm_start.client import ForkedProcess
from synergy_launch.warm_start.starter import AFTER_S, Starter

pytestmark = pytest.mark.training
SCRIPT = """\
import os, sys, time
began = "torch" in sys.modules
import torch, torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
total = torch.tensor([rank + 1.0])
dist.all_reduce(total)
with open(f"{sys.argv[1]}-{rank}", "w") as out:
    out.write(f"{total.item():.0f} {began} {os.getppid()} {os.getpid()} {torch.rand(1).item()}")
if "fails" in sys.argv and rank:
    sys.exit(9)
dist.barrier()
while "waits" in sys.argv:
    time.sleep(0.1)
dist.destroy_process_group()
"""


@pytest.fixture(scope="module")
def starter() -> Iterator[Starter]:
    """A launcher's, whose waiting process is ready."""
    starter = Starter(script_kind.heavy_imports("plain.py"), lambda: AFTER_S)
    starter.prepare(environment())
    starter.await_ready(120)
    yield starter
    starter.close()


def environment() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1"}


def launch(starter: Starter, tmp_path: Path, *arguments: str, errors: bool = False) -> ForkedProcess:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    torchrun = (sys.executable, "-P", "-m", start.TORCHRUN, "--nnodes", "1", "--nproc-per-node", "2", "--standalone")
    child = starter.start(
        (*torchrun, str(script), str(tmp_path / "rank"), *arguments), environment(), output=False, errors=errors
    )
    assert isinstance(child, ForkedProcess), "it was not forked"
    return child


def ranks(tmp_path: Path) -> list[list[str]]:
    """What each rank has written."""
    until = time.monotonic() + 120
    paths = [tmp_path / f"rank-{rank}" for rank in range(2)]
    while not all(path.exists() and path.read_text() for path in paths):
        assert time.monotonic() < until, "no ranks"
        time.sleep(0.1)
    return [path.read_text().split() for path in paths]


def test_ranks_are_torchruns_own_children_and_have_torch_already(starter: Starter, tmp_path: Path) -> None:
    child = launch(starter, tmp_path, "waits")
    both = ranks(tmp_path)
    assert [line[:3] for line in both] == [["3", "True", str(child.pid)]] * 2
    assert both[0][4] == both[1][4], "torch's own seed is the same in each process, forked or not"
    assert find_workers(child.pid) == sorted(int(line[3]) for line in both), "and nobody else is"
    child.send_signal(signal.SIGTERM)
    assert child.wait(120) == 128 + signal.SIGTERM
    assert not any(Path("/proc", line[3]).exists() for line in both)


def test_a_run_that_ends_well_and_one_that_fails(starter: Starter, tmp_path: Path) -> None:
    child = launch(starter, tmp_path)
    assert child.wait(120) == 0
    child = launch(starter, tmp_path, "fails", errors=True)
    assert child.stderr is not None
    with child.stderr:
        said = child.stderr.read().decode()
    assert child.wait(120) == 9 and "rank 1 was the first to fail, with exit code 9" in said
