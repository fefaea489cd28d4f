"""The launchers' folders for memory checkpoints, after their ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from synergy_launch.launcher.memory import folders as memory_folders
from synergy_launch.launcher.memory.folders import LauncherFolder

# a launcher that says its folder's name and waits
LAUNCHER = """
import sys, time
from pathlib import Path
from synergy_launch.launcher.memory.folders import LauncherFolder
folder = LauncherFolder("9-0-1", Path(sys.argv[1]))
(folder.path / "part").write_text("x")
print(folder.path, flush=True)
time.sleep(600)
"""


def until_gone(path: Path) -> None:
    end = time.monotonic() + 60
    while path.exists():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_a_folder_is_its_owners_alone_and_goes_with_the_launcher(tmp_path: Path) -> None:
    folder = LauncherFolder("9-0-0", tmp_path)
    assert folder.path.stat().st_mode & 0o777 == 0o700 and folder.path.parent == tmp_path
    (folder.path / "run-0" / "own").mkdir(parents=True)
    folder.close()
    assert list(tmp_path.iterdir()) == []


def test_the_folder_of_a_killed_launcher_is_removed(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", LAUNCHER, str(tmp_path)], stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        path = Path(child.stdout.readline().strip())
        assert (path / "part").exists()
        child.kill()
        until_gone(path)


def test_the_end_of_the_job_removes_it_before_the_launcher_has_ended(tmp_path: Path) -> None:
    folder = LauncherFolder("9-0-0", tmp_path)
    remover = folder._remover.pid
    processes = [remover]
    end = time.monotonic() + 60
    while len(processes) < 2:  # the shell and what it waits for
        assert time.monotonic() < end
        children = subprocess.run(["pgrep", "-P", str(remover)], capture_output=True, text=True, check=False)
        processes = [remover, *map(int, children.stdout.split())]
    for pid in processes:
        os.kill(pid, signal.SIGUSR2)  # a request for a checkpoint
    assert folder._remover.poll() is None and folder.path.exists()
    for pid in processes:
        os.kill(pid, signal.SIGTERM)  # as Slurm does with all processes of a step
    until_gone(folder.path)
    folder.close()


def test_the_next_launcher_removes_what_dead_ones_have_left(tmp_path: Path) -> None:
    alive = LauncherFolder("9-0-0", tmp_path)
    prefix = f"synergy-memory-{os.getuid()}-"
    dead, new, other, elsewhere = (
        tmp_path / name for name in (f"{prefix}8-0-0-x", f"{prefix}8-0-1-y", "other", "away")
    )
    for path in (dead, new, other, elsewhere):
        path.mkdir()
        (path / "part").write_text("x")
    (dead / "lock").touch()
    link = tmp_path / f"{prefix}8-0-2-z"
    link.symlink_to(elsewhere)
    memory_folders.remove_leftovers(tmp_path)
    assert not dead.exists() and alive.path.exists()
    assert new.exists(), "its launcher has not locked it yet"
    assert other.exists() and (elsewhere / "part").exists()
    os.utime(new, (1, 1))
    memory_folders.remove_leftovers(tmp_path)
    assert not new.exists()
    alive.close()
