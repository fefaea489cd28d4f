"""Whom the link arbiter hears, and the process that it runs in."""

from __future__ import annotations

import errno
import math
import os
import resource
import socket
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from synergy_core.errors import UsageError
from synergy_core.job_report import Report
from synergy_core.records import Job, JobState, Plan, Shape

from synergyd.daemon.links.arbiter import Member, listen
from synergyd.daemon.links.process import LinkProcess, find_members, left_s, members_line, parse_members_line
from synergyd.daemon.links.sessions import ArbiterCounts
from synergyd.daemon.metrics import PrometheusMetrics
from tests.paths import python_path
from tests.unit.daemon.links.link_arbiter_world import (
    MEMBERS,
    line_of,
    member,
    until,
)

# -- whom it hears -----------------------------------------------------------------------------------------------------


def test_members_are_running_jobs_on_several_nodes() -> None:
    shape = Shape("a100", 2, 4)
    job = Job(7, "j", "u", 5, "gpu", JobState.RUNNING, "", 0.0, 0.0, None, 1, shape, shape, ("a", "b"))
    report = Report(7, 1, 10, step_s=2.0, plan=Plan(dp=8, global_batch=16), done=100.0, total=260.0)
    assert find_members([job], {7: report}) == {7: Member(5, 1, ("a", "b"), 8, 20.0)}
    assert left_s(job, replace(report, restarts=0)) == left_s(job, replace(report, total=None)) == math.inf
    assert left_s(job, None) == math.inf
    alone, waits = replace(job, node_names=("a",)), replace(job, state=JobState.PENDING)
    assert find_members([alone], {}) == find_members([waits], {}) == {}


# -- as a process ------------------------------------------------------------------------------------------------------


def test_members_go_to_the_process_as_they_are() -> None:
    members = {**MEMBERS, 9: member("n1", "n2", left=math.inf)}
    line = members_line(members)
    assert parse_members_line(line) == members and line.count(b"\n") == 1 and parse_members_line(members_line({})) == {}


def test_the_process_answers_ends_with_the_daemon_and_is_started_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("synergyd.daemon.links.process._RESTART_S", 0.2)
    process = LinkProcess("127.0.0.1", 0, "srsf-1", 0.3)
    process.follow(MEMBERS)
    try:
        for _ in range(2):
            with socket.create_connection(("127.0.0.1", process.port), timeout=60) as wire:
                wire.sendall(b"hello\n")
                assert line_of(wire).startswith(b"no munge: ")  # it is there, and knows a credential from none
            child = process.child
            child.kill()
            assert until(lambda child=child: process.child is not child)  # type: ignore[misc]
    finally:
        process.close()
    assert process.child.poll() is not None
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", process.port), timeout=30)


def test_the_process_tells_what_it_counted_and_starts_again_after_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its loop breaks by a line of jobs that is none of ours; the counts go on where they were. It may open many files."""
    monkeypatch.setattr("synergyd.daemon.links.process._RESTART_S", 0.1)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    started: list[float] = []
    start = LinkProcess._start

    def short_of_processes(self: LinkProcess) -> Any:
        started.append(time.monotonic())
        if len(started) == 2:
            raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")
        return start(self)

    monkeypatch.setattr(LinkProcess, "_start", short_of_processes)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 256), hard))
    try:
        process = LinkProcess("127.0.0.1", 0, "srsf-1", 0.3)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    try:
        for number in (1, 2):
            with socket.create_connection(("127.0.0.1", process.port), timeout=60) as wire:
                assert until(lambda: process.counts()[1] == 1)
                wire.sendall(b"hello\n")
                assert line_of(wire).startswith(b"no munge: ")
            assert until(lambda number=number: process.counts() == (ArbiterCounts(refused=number), 0))  # type: ignore[misc]
            child = process.child
            assert resource.prlimit(child.pid, resource.RLIMIT_NOFILE) == (hard, hard) or number == 2
            if number == 1:
                assert child.stdin is not None
                child.stdin.write(b'[[1, 5, 0, ["a"], "x", 0], [1]]\n')
                child.stdin.flush()
                assert until(lambda child=child: process.child is not child)  # type: ignore[misc]
        assert len(started) == 3
    finally:
        process.close()


def test_a_process_whose_loop_ends_by_a_fault_ends(tmp_path: Path) -> None:
    """It would be alive, and deaf."""
    script = tmp_path / "faulty.py"
    script.write_text(
        "import sys\n"
        "from synergyd.daemon.links import arbiter, process\n"
        "arbiter.LinkArbiter._accept = lambda self: 1 // 0\n"
        "sys.exit(process.main(sys.argv[1:]))\n"
    )
    with listen("127.0.0.1", 0) as listener:
        numbers = [listener.fileno(), os.memfd_create("counts")]
        command = [sys.executable, str(script), *map(str, numbers), "srsf-1", "0.3", "10gbe"]
        environment = {**os.environ, "PYTHONPATH": python_path()}
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stderr=subprocess.PIPE, pass_fds=numbers, env=environment
        ) as process:
            with socket.create_connection(listener.getsockname(), timeout=30):
                assert process.wait(60) == 1
            assert process.stderr is not None and b"ended by a fault" in process.stderr.read()
        os.close(numbers[1])


def test_counts_go_to_prometheus() -> None:
    metrics = PrometheusMetrics(0)
    metrics.set_link_counts(ArbiterCounts(10, 3, 1, 2), 4)
    metrics.set_link_counts(ArbiterCounts(15, 4, 1, 2), 3)
    said = {s.name: s.value for c in metrics._links.values() for m in c.collect() for s in m.samples}
    shown = {name: value for name, value in said.items() if name.endswith("_total")}
    assert shown == {
        "synergy_link_asks_total": 15,
        "synergy_link_at_once_total": 11,
        "synergy_link_waited_total": 4,
        "synergy_link_timed_out_total": 1,
        "synergy_link_refused_total": 2,
    }
    assert [s.value for m in metrics._connections.collect() for s in m.samples] == [3]


def test_a_process_without_a_daemon_ends() -> None:
    process = LinkProcess("127.0.0.1", 0, "srsf-1", 0.3)
    assert process.child.stdin is not None
    process.child.stdin.close()
    assert process.child.wait(60) == 0
    process.close()


def test_a_rule_that_is_none_is_one_line() -> None:
    with pytest.raises(UsageError, match="no discipline 'fifo'"):
        LinkProcess("127.0.0.1", 0, "fifo", 0.3)
