"""Causes of a run's end that its exit code does not show."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from synergy_core.job_report import Fault, LossSpike
from synergy_launch.agent import run_folder
from synergy_launch.agent.full_disk import is_full_disk, read_free_bytes, with_free_space
from synergy_launch.launcher.failures.faults import LINK_S, FaultFinder, folders_of_run
from synergy_launch.launcher.gpus.errors import GpuErrors, GpuErrorSource
from synergy_launch.node_check.adapters import read_links

KILLED = b"Signal 9 (SIGKILL) received by PID 7"
NO_SPACE = f"OSError: [Errno 28] {os.strerror(errno.ENOSPC)}: '/etc/$(reboot)'"


@pytest.mark.parametrize(
    ("counts", "code", "output", "is_found"),
    [
        ((3, 4), 137, b"", True),
        ((3, 4), 1, b"", True),  # torchrun's own code; what it says is not read
        ((3, 4), 1, KILLED, True),
        ((3, 4), 1, b"RuntimeError: DataLoader worker (pid 7) is killed by signal: Killed.", True),
        ((3, 4), 1, b"ValueError: wrong", False),  # a helper that the script did without
        ((3, 3), 137, b"", False),
        ((3, 4), 0, b"", False),
        ((3, 4), 143, b"", False),
        ((None, 4), 137, b"", False),
        ((3, None), 137, b"", False),
    ],
)
def test_a_kill_is_for_memory_where_the_kernel_counts_one(
    tmp_path: Path, counts: tuple[int | None, int | None], code: int, output: bytes, is_found: bool
) -> None:
    count = iter(counts)
    finder = FaultFinder("n1", 2, tmp_path, oom_kills=lambda: next(count))
    assert finder.find(code, output) == (Fault(kind="oom", run=2, node="n1") if is_found else None)


@pytest.fixture
def small_group() -> Iterator[Path]:
    """A control group of 128 MiB, to which the caller may add processes."""
    base, limit = Path("/sys/fs/cgroup"), "memory.max"
    if (base / "memory/memory.limit_in_bytes").exists():
        base, limit = base / "memory", "memory.limit_in_bytes"
    folder = base / f"synergy-test-{os.getpid()}"
    try:
        folder.mkdir()
    except OSError as error:
        pytest.skip(f"no control group can be made here ({error.strerror})")
    try:
        (folder / limit).write_text(str(128 * 2**20))
        yield folder
    except OSError as error:
        pytest.skip(f"memory can't be limited here ({error.strerror})")
    finally:
        folder.rmdir()


TAKES_MEMORY = """
import os, sys
if os.fork() == 0:
    kept = [b"x" * 2**20 for _ in range(1024)]
sys.exit(os.waitstatus_to_exitcode(os.wait()[1]) and 1)
"""


def test_a_process_that_the_kernel_really_kills_for_its_memory(small_group: Path, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(TAKES_MEMORY)
    launch = f"exec {sys.executable} -m synergy_launch.launcher.command --runner python {script}"
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM_", "SYNERGY_"))}
    argv = ["bash", "-c", f"echo $$ > {small_group}/cgroup.procs && {launch}"]
    run = subprocess.run(argv, env={**kept, "TMPDIR": str(tmp_path)}, stderr=subprocess.PIPE, text=True, timeout=120)
    assert run.returncode == 1, run.stderr
    assert "synergy-launch: out of host memory: the kernel killed a process of the run" in run.stderr


def test_a_full_disk_is_the_folder_that_a_training_process_names(tmp_path: Path) -> None:
    run_folder.note_full_disk(tmp_path, tmp_path / "ckpt")
    fault = FaultFinder("n1", 0, tmp_path, oom_kills=lambda: None).find(1, b"")
    assert fault is not None and (fault.kind, fault.folder) == ("disk", str(tmp_path / "ckpt"))
    assert fault.free_bytes == pytest.approx(read_free_bytes(tmp_path), rel=0.1)


def test_a_full_disk_that_only_the_output_shows_is_the_fullest_of_the_folders_that_are_known(tmp_path: Path) -> None:
    folders = (tmp_path / "ckpt", Path("/proc"))  # proc has no free bytes
    fault = FaultFinder("n1", 0, tmp_path, folders, oom_kills=lambda: None).find(1, NO_SPACE.encode())
    assert fault == Fault(kind="disk", node="n1", folder="/proc", free_bytes=0), "no path from the output"
    nowhere = FaultFinder("n1", 0, tmp_path, oom_kills=lambda: None).find(1, NO_SPACE.encode())
    assert nowhere == Fault(kind="disk", node="n1")
    assert FaultFinder("n1", 0, tmp_path, folders, oom_kills=lambda: None).find(1, b"ValueError") is None


def test_errors_that_say_that_a_disk_is_full(tmp_path: Path) -> None:
    assert is_full_disk(NO_SPACE) and is_full_disk(f"[Errno 122] {os.strerror(errno.EDQUOT)}")
    assert with_free_space("ValueError: wrong", tmp_path) == "ValueError: wrong"
    assert with_free_space(NO_SPACE, Path("/proc/none")) == f"{NO_SPACE}; /proc/none has 0.0 GiB free"


def test_the_folders_of_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TMPDIR", "/scratch")
    assert folders_of_run(Path("/ckpt")) == (Path("/ckpt"), tmp_path, Path("/scratch"))


def test_a_gpus_error_is_the_cause_before_what_the_program_made_of_it(tmp_path: Path) -> None:
    run_folder.note_full_disk(tmp_path, tmp_path)
    log = tmp_path / "kmsg"
    log.touch()
    gpus = GpuErrors({"CUDA_VISIBLE_DEVICES": "0"}, log=log, open_source=no_library)
    finder = FaultFinder("n1", 3, tmp_path, oom_kills=lambda: None, gpus=gpus)
    log.write_text("4,9,77,-;NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.\n")
    found = finder.find(1, b"CUDA error: unspecified launch failure")
    assert found == Fault(kind="gpu", run=3, node="n1", xid=79, pci_address="0000:3b:00")
    finder.close()


def adapter(classes: Path, name: str, state: str) -> None:
    folder = classes / "net" / name
    (folder / "device").mkdir(parents=True, exist_ok=True)
    (folder / "operstate").write_text(f"{state}\n")


def port(classes: Path, name: str, state: str) -> None:
    folder = classes / "infiniband" / name / "ports" / "1"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "state").write_text(f"{state}\n")


def test_an_adapter_that_lost_its_link_during_the_run_is_the_cause(tmp_path: Path) -> None:
    classes = tmp_path / "class"
    adapter(classes, "eth0", "up")
    adapter(classes, "eth1", "down")
    port(classes, "mlx5_0", "4: ACTIVE")
    (classes / "net" / "lo").mkdir()

    def find() -> Fault | None:
        return finder.find(1, b"NCCL error: unhandled system error")

    finder = FaultFinder("n1", 3, tmp_path, oom_kills=lambda: None, links=lambda: read_links(classes))
    adapter(classes, "eth1", "unknown")
    assert find() is None, "it had no link before"
    port(classes, "mlx5_0", "1: DOWN")
    assert find() == Fault(kind="network", run=3, node="n1", adapter="mlx5_0 port 1")
    shutil.rmtree(classes / "infiniband")
    assert find() == Fault(kind="network", run=3, node="n1", adapter="mlx5_0 port 1"), "gone from the bus"
    adapter(classes, "eth0", "down")
    port(classes, "mlx5_0", "4: ACTIVE")
    found = find()
    assert found is not None and found.describe() == "network adapter eth0 lost its link on n1"


def test_an_adapter_that_lost_its_link_long_before_is_not_the_cause(tmp_path: Path) -> None:
    adapter(tmp_path, "eth0", "up")
    times = iter((0.0, 60.0, LINK_S, LINK_S + 60.0, 2 * LINK_S))
    finder = FaultFinder(
        "n1", 3, tmp_path, oom_kills=lambda: None, links=lambda: read_links(tmp_path), monotonic=lambda: next(times)
    )
    adapter(tmp_path, "eth0", "down")

    def polls() -> bool:
        finder.poll()
        return finder.find(1, b"") is not None

    assert [polls() for _ in range(4)] == [True, True, True, False]


def test_a_run_that_ended_for_a_loss_spike_says_so(tmp_path: Path) -> None:
    spike = LossSpike(
        step=201, loss=9.0, usual=2.0, answer="skipped", checkpoint_step=80, first_example=1, last_example=9
    )
    run_folder.note_spike(tmp_path, spike)
    finder = FaultFinder("n1", 2, tmp_path, oom_kills=lambda: None)
    assert finder.find(1, b"") == Fault(kind="spike", run=2, node="n1", spike=spike)
    assert finder.find(143, b"") is None, "it was ended"
    (tmp_path / run_folder.SPIKE).write_text('{"step": -1}')
    assert finder.find(1, b"") is None


def no_library(_environ: object) -> GpuErrorSource:
    raise OSError("no library")
