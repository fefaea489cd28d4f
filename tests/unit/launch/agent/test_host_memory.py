"""What memory is left: of the machine, and of each control group above this process."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from synergy_launch.agent.host_memory import read_free_bytes, read_oom_kills
from synergy_launch.pytorch import training_state

GIB = 2**30


def lay(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def test_the_tightest_group_above_decides(tmp_path: Path) -> None:
    assert read_free_bytes(tmp_path) is None
    root = lay(tmp_path, {"proc/meminfo": f"MemTotal: 9 kB\nMemAvailable:  {64 * 2**20} kB\n"})
    assert read_free_bytes(root) == 64 * GIB
    lay(root, {"proc/self/cgroup": "0::/system.slice/job_7/step_0\n"})
    assert read_free_bytes(root) == 64 * GIB  # its files are not there
    own, job = "sys/fs/cgroup/system.slice/job_7/step_0", "sys/fs/cgroup/system.slice/job_7"
    lay(root, {f"{own}/memory.max": "max\n", f"{own}/memory.current": "5\n"})
    lay(root, {f"{job}/memory.max": f"{16 * GIB}\n", f"{job}/memory.current": f"{10 * GIB}\n"})
    assert read_free_bytes(root) == 6 * GIB
    lay(root, {f"{job}/memory.stat": f"anon 1\ninactive_file {2 * GIB}\n"})
    assert read_free_bytes(root) == 8 * GIB


def test_the_first_control_groups_and_nonsense(tmp_path: Path) -> None:
    root = lay(tmp_path, {"proc/meminfo": "MemAvailable: much\n", "proc/self/cgroup": "nonsense\n"})
    assert read_free_bytes(root) is None
    folder = "sys/fs/cgroup/memory/slurm/job_7"
    lay(root, {"proc/self/cgroup": "5:memory:/slurm/job_7\n4:cpuset:/slurm\n"})
    lay(root, {f"{folder}/memory.limit_in_bytes": f"{2 * GIB}\n", f"{folder}/memory.usage_in_bytes": f"{3 * GIB}\n"})
    lay(root, {"sys/fs/cgroup/memory/memory.limit_in_bytes": f"{2**63 - 4096}\n"})
    assert read_free_bytes(root) == 0


def test_kills_for_want_of_memory_are_those_of_the_own_group(tmp_path: Path) -> None:
    assert read_oom_kills(tmp_path) is None
    root = lay(tmp_path, {"proc/self/cgroup": "0::/job_7/step_0/task_0\n"})
    assert read_oom_kills(root) is None
    lay(root, {"sys/fs/cgroup/job_7/memory.events": "low 0\noom 9\noom_kill 5\noom_group_kill 0\n"})
    assert read_oom_kills(root) == 5, "nothing nearer is to be seen"
    lay(root, {"sys/fs/cgroup/job_7/step_0/task_0/memory.events": "oom 1\noom_kill 0\n"})
    assert read_oom_kills(root) == 0, "those were of another step"


def test_kills_in_the_first_control_groups(tmp_path: Path) -> None:
    root = lay(tmp_path, {"proc/self/cgroup": "4:memory:/slurm/job_7\n0::/\n"})
    folder = "sys/fs/cgroup/memory/slurm/job_7"
    lay(root, {f"{folder}/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n"})
    assert read_oom_kills(root) == 3
    lay(root, {f"{folder}/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\n"})
    assert read_oom_kills(root) is None, "before Linux 4.13 nothing is counted"


def test_a_copy_that_would_take_the_hosts_memory_is_not_made(monkeypatch: pytest.MonkeyPatch) -> None:
    state = {"model": {"w": torch.zeros(2**18)}, "optimizer": [{"m": torch.zeros(2**18)}, 3, "text"]}  # 2 MiB
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "8")
    monkeypatch.setattr(training_state, "read_free_bytes", lambda: 32 * 2**20)
    assert training_state.HostCopy().obstacle(state) == ""
    monkeypatch.setattr(training_state, "read_free_bytes", lambda: 31 * 2**20)
    assert training_state.HostCopy().obstacle(state).startswith("a copy beside training needs 0.0 GiB")
    monkeypatch.setattr(training_state, "read_free_bytes", lambda: None)
    assert training_state.HostCopy().obstacle(state) == ""
