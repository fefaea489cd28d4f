"""When a node is checked, which checks a report says, and how they reach the first node."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from synergy_core.job_report import Fault
from synergy_core.node_check import NodeCheck
from synergy_core.wire.node_check import MAX_CHECKS
from synergy_launch.launcher import before_run
from synergy_launch.launcher.before_run import SHORT_JOB_S, NodeChecker
from synergy_launch.launcher.failures.plan_guard import PlanGuard
from synergy_launch.launcher.in_place import Restarts
from synergy_launch.launcher.job.allocation import JobAllocation
from synergy_launch.node_check.check_parts import PART_S, SAID_S, CheckParts
from synergy_launch.node_check.recent_check import HEALTHY_S, RecentCheck
from synergy_launch.warm_start.client import ForkedProcess
from synergy_launch.warm_start.starter import Starter

TWO = JobAllocation(job_id=7, restarts=0, nodes=("n1", "n2"), node_rank=0, gpus=1, in_step=True, leader=True)
CHECK = NodeCheck(node="n1", taken_s=1.0, gemm_flops=1e12)


class Launcher:
    """A node's launcher as far as checks go, whose child measures at once. `checks` counts them."""

    def __init__(
        self,
        monkeypatch: pytest.MonkeyPatch,
        allocation: JobAllocation = TWO,
        environment: Mapping[str, str] = {},
        **more: Any,
    ) -> None:
        self.checks, self.result = 0, more.get("result", CHECK)
        self.guard = PlanGuard(allocation, None, None)
        self.restarts = Restarts(allocation, None)
        monkeypatch.setattr(before_run, "check_node", self._check)
        enabled = more.get("enabled", True)
        self.checker = NodeChecker(allocation, environment, self.guard, self.restarts, Starter(()), enabled=enabled)

    def _check(self, *_: object, **__: object) -> NodeCheck | None:
        self.checks += 1
        return self.result  # type: ignore[no-any-return]

    def begin(self) -> int:
        self.checker.check_first()
        return self.checks


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr("synergy_launch.agent.host_memory.read_free_bytes", lambda: None)
    return tmp_path


def test_a_run_on_several_nodes_is_checked_and_reported_once_an_hour(monkeypatch: pytest.MonkeyPatch) -> None:
    first = Launcher(monkeypatch)
    assert first.begin() == 1 and first.restarts.node_checks == (CHECK,)
    assert Launcher(monkeypatch).begin() == 0  # the next job of this user


@pytest.mark.parametrize(
    ("allocation", "environment", "enabled"),
    [
        (replace(TWO, nodes=("n1",)), {}, True),
        (TWO, {"SYNERGY_TRY": "/x"}, True),
        (TWO, {"SLURM_JOB_START_TIME": "1000", "SLURM_JOB_END_TIME": str(1000 + int(SHORT_JOB_S) - 1)}, True),
        (TWO, {}, False),
    ],
)
def test_small_short_and_other_jobs_are_not_checked(
    monkeypatch: pytest.MonkeyPatch, allocation: JobAllocation, environment: dict[str, str], enabled: bool
) -> None:
    assert Launcher(monkeypatch, allocation, environment, enabled=enabled).begin() == 0


def test_a_node_that_joins_a_run_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    launcher = Launcher(monkeypatch, replace(TWO, nodes=("n1",)))
    launcher.checker.check_first(joins=True)
    assert launcher.checks == 1


def test_a_host_without_memory_to_spare_is_not_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("synergy_launch.agent.host_memory.read_free_bytes", lambda: 1 << 30)
    assert Launcher(monkeypatch).begin() == 0


def test_a_check_that_hung_is_said_and_made_again(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    hung = replace(CHECK, gemm_flops=None, hung_at="gemm_flops")
    launcher = Launcher(monkeypatch, result=hung)
    launcher.begin()
    assert launcher.restarts.node_checks == (hung,)
    assert capsys.readouterr().err == "synergy-launch: n1: measuring its matrix products did not end in time\n"
    assert Launcher(monkeypatch).begin() == 1


def test_only_a_failure_like_that_of_a_gpu_or_link_is_followed_by_a_check(monkeypatch: pytest.MonkeyPatch) -> None:
    launcher = Launcher(monkeypatch)
    launcher.begin()
    for code, output, checks in (
        (1, b"ValueError: no such file", 1),
        (137, b"", 1),
        (1, b"NCCL error: remote process exited", 2),
    ):
        launcher.guard.begin()
        launcher.guard.append_output(output)
        launcher.checker.check_after_failure(code)
        assert launcher.checks == checks
    launcher.guard.begin()
    launcher.guard.note_hang()
    launcher.checker.check_after_failure(137)
    assert launcher.checks == 3
    launcher.guard.begin()
    for node, checks in (("n2", 3), ("n1", 4)):
        launcher.guard.fault = Fault(kind="gpu", node=node, xid=79)
        launcher.checker.check_after_failure(1)
        assert launcher.checks == checks


def test_only_an_own_ordinary_file_of_the_last_hour_counts(folder: Path) -> None:
    recent, now_s = RecentCheck("n1", folder), time.time()
    assert not recent.is_recent(now_s)
    recent.note()
    assert recent.is_recent(time.time()) and not RecentCheck("n2", folder).is_recent(time.time())
    assert not recent.is_recent(time.time() + HEALTHY_S) and not recent.is_recent(
        now_s - HEALTHY_S
    )  # the clock was set back
    recent.forget()
    assert not recent.is_recent(time.time())
    path = folder / f"synergy-{os.getuid()}-checked-n1"
    (folder / "other").write_text("")
    path.symlink_to(folder / "other")
    recent.note()
    assert not recent.is_recent(time.time())
    path.unlink()
    os.mkfifo(path, 0o666)
    recent.note()  # does not wait for a reader
    assert not recent.is_recent(time.time())


def test_a_report_says_the_checks_a_part_at_a_time() -> None:
    parts, checks = CheckParts(), tuple(replace(CHECK, node=f"n{i}") for i in range(3 * MAX_CHECKS - 1))
    said = [parts.choose(checks, 100.0 + i * PART_S) for i in range(3)]
    assert tuple(check for part in said for check in part) == checks
    assert parts.choose(checks, 100.0 + 3 * PART_S) == said[0]
    assert parts.choose(checks, 100.0 + SAID_S) == ()
    assert parts.choose((CHECK,), 100.0 + SAID_S) == (CHECK,)  # news
    assert parts.choose((), 0.0) == ()


def test_the_check_is_a_fork_of_the_process_that_has_made_the_ranks_imports(monkeypatch: pytest.MonkeyPatch) -> None:
    restarts, started = Restarts(TWO, None), []
    starter = Starter(("json.tool",))
    start = starter.start

    def start_child(*arguments: Any, **options: Any) -> Any:
        started.append(start(*arguments, **options))
        return started[-1]

    monkeypatch.setattr(starter, "start", start_child)
    try:
        NodeChecker(TWO, os.environ, PlanGuard(TWO, None, None), restarts, starter, enabled=True).check_first()
        (child,) = started
        assert isinstance(child, ForkedProcess) and child.poll() in (0, -9)  # it is killed where it is not quick to end
        (check,) = restarts.node_checks
        assert check.node == "n1" and check.gemm_flops and check.host_bytes_per_s
    finally:
        starter.close()
