"""A node's run from start to end: signals, checkpoint requests, exit codes, reports."""

from __future__ import annotations

import os
import signal
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import accumulate, islice, pairwise
from pathlib import Path

import pytest
from synergy_core.errors import UnavailableError
from synergy_core.job_report import Fault, Report
from synergy_core.wire import plan_file
from synergy_core.wire.plan_file import PlanFile
from synergy_launch.launcher import node_run, status_reports
from synergy_launch.launcher.commands.start import NodeCommand
from synergy_launch.launcher.failures.plan_guard import PlanGuard
from synergy_launch.launcher.job import plan_source
from synergy_launch.launcher.job.allocation import JobAllocation
from synergy_launch.launcher.node_run import run_node

CHILD = """
import json, os, signal, sys, time
from pathlib import Path
run = Path(os.environ["SYNERGY_RUN_DIR"])
signal.signal(signal.SIGUSR2, lambda *_: None)
def status(**what):
    (run / "new").write_text(json.dumps(what)); (run / "new").replace(run / "status.json")
def until(true):
    end = time.monotonic() + 60
    while not true():
        if time.monotonic() > end: sys.exit(99)
        time.sleep(0.01)
"""


class Bench:
    """Runs `run_node` here, with signals sent to this very process, as Slurm does."""

    def __init__(self, folder: Path) -> None:
        self.run_dir = folder / "run"
        self.run_dir.mkdir()
        self.where = JobAllocation(
            job_id=None, restarts=0, nodes=("here",), node_rank=0, gpus=0, in_step=True, leader=True
        )

    def run(
        self,
        body: str,
        given: PlanFile | None = None,
        then: Callable[[], None] | None = None,
        guard: PlanGuard | None = None,
    ) -> int:
        made = NodeCommand(
            (sys.executable, "-c", CHILD + textwrap.dedent(body)), {"SYNERGY_RUN_DIR": str(self.run_dir)}
        )
        thread = threading.Thread(target=then or (lambda: None))
        thread.start()
        try:
            return run_node(made, self.where, given, self.run_dir, guard=guard)
        finally:
            thread.join()

    def when(self, file: str, *numbers: int) -> Callable[[], None]:
        def wait() -> None:
            end = time.monotonic() + 60
            while not (self.run_dir / file).exists() and time.monotonic() < end:
                time.sleep(0.01)
            for number in numbers:
                os.kill(os.getpid(), number)
                time.sleep(0.05)

        return wait


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    monkeypatch.setattr(node_run, "POLL_S", 0.01)
    kept = {n: signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR2)}
    for number in (signal.SIGTERM, signal.SIGUSR2):
        signal.signal(number, lambda *_: None)  # one that comes after the run's end would end pytest
    yield Bench(tmp_path)
    for number, handler in kept.items():
        signal.signal(number, handler)


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ("", 0),
        ("sys.exit(7)", 7),
        ("os.kill(os.getpid(), 9)", 137),
        ("status(state='done'); sys.exit(3)", 3),  # what fails after the last step has failed all the same
        ("status(state='done')", 0),
        ("status(state='failed', failed=True); sys.exit(1)", 1),
    ],
)
def test_exit_codes_and_no_folder_left(bench: Bench, body: str, code: int) -> None:
    assert bench.run(body) == code
    assert not bench.run_dir.exists()
    assert signal.getsignal(signal.SIGUSR2) is signal.SIG_IGN, "a late request would fail the job"


def test_usr2_becomes_a_request_with_its_number(bench: Bench) -> None:
    body = """
    status(state="training")
    until(lambda: (run / "checkpoint-request").exists())
    until(lambda: (run / "checkpoint-request").read_text() == "2\\n")
    """

    def twice() -> None:
        bench.when("status.json", signal.SIGUSR2)()
        bench.when("checkpoint-request", signal.SIGUSR2)()  # the first has been heard: two at once are one

    assert bench.run(body, then=twice) == 0


def test_a_folder_that_is_cleaned_away_ends_no_training(bench: Bench, capfd: pytest.CaptureFixture[str]) -> None:
    def clean_and_ask() -> None:
        bench.when("status.json")()
        for path in bench.run_dir.iterdir():
            path.unlink()
        bench.run_dir.rmdir()
        os.kill(os.getpid(), signal.SIGUSR2)

    assert bench.run("status(state='training'); time.sleep(2.5); sys.exit(5)", then=clean_and_ask) == 5
    assert "checkpoint can't be asked for" in capfd.readouterr().err


ENDS = """
def end(*_):
    global over
    over = True
over = False
signal.signal(signal.SIGTERM, end)
status(state="training")
until(lambda: over)
"""


@pytest.mark.parametrize(("last", "code"), [("status(state='done'); sys.exit(1)", 0), ("sys.exit(1)", 1),
                                            ("status(state='done', failed=True); sys.exit(1)", 1)])  # fmt: skip
def test_sigterm_reaches_the_child_and_a_clean_end_is_one(bench: Bench, last: str, code: int) -> None:
    assert bench.run(ENDS + last, then=bench.when("status.json", signal.SIGTERM)) == code
    assert not bench.run_dir.exists()


def test_in_a_job_slurm_itself_signals_the_child(bench: Bench) -> None:
    bench.where = replace(bench.where, job_id=9, node_rank=1)
    body = (
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(50))\nstatus(state='training'); time.sleep(0.5); sys.exit(4)"
    )
    assert bench.run(body, then=bench.when("status.json", signal.SIGTERM)) == 4


class Sent:
    """Stands for `report.send`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, fails: int = 0) -> None:
        self.reports: list[tuple[Report, str]] = []
        self.fails = fails
        monkeypatch.setattr("synergy_core.wire.report.send", self)

    def __call__(self, report: Report, address: str, by: int | None, line: object = None) -> None:
        if self.fails:
            self.fails -= 1
            raise UnavailableError("daemon", "away")
        self.reports.append((report, address))


TRAINS = """
status(state="training", step=1, step_s=0.5, checkpoint_requests=0)
time.sleep(0.5)
status(state="training", step=2, step_s=0.5, checkpoint_requests=1)
time.sleep(0.5)
status(state="done", step=3, step_s=0.5, checkpoint_requests=1, loss=float("1.5"), note="bye\\x1b[31m")
"""


def test_the_first_node_of_a_job_reports(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    sent = Sent(monkeypatch)
    bench.where = replace(bench.where, job_id=9, restarts=2)
    assert bench.run(TRAINS, PlanFile(9, None, "ctl:1")) == 0
    assert {a for _, a in sent.reports} == {"ctl:1"} and {(r.job_id, r.restarts) for r, _ in sent.reports} == {(9, 2)}
    assert any(r.checkpoint_requests == 1 and r.step == 2 for r, _ in sent.reports)  # an acknowledgement goes at once
    last = sent.reports[-1][0]
    assert (last.step, last.loss, last.note) == (3, 1.5, "bye\\x1b[31m")


def test_what_ended_a_run_is_in_its_last_report_and_in_those_of_the_next(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    sent = Sent(monkeypatch)
    bench.where = replace(bench.where, job_id=9)
    guard = PlanGuard(bench.where, None, None)
    assert (
        bench.run('(run / "full-disk").write_text("/proc"); sys.exit(1)', PlanFile(9, None, "ctl:1"), guard=guard) == 1
    )
    full = Fault(kind="disk", node="here", folder="/proc", free_bytes=0)
    assert (sent.reports[-1][0].ended, sent.reports[-1][0].fault) == (True, full)
    assert "synergy-launch: disk full: /proc (0.0 GiB free) on here" in capfd.readouterr().err
    bench.run_dir.mkdir()
    sent.reports.clear()
    assert bench.run(TRAINS, PlanFile(9, None, "ctl:1"), guard=guard) == 0
    assert {report.fault for report, _ in sent.reports} == {full} and guard.fault is None


@pytest.mark.parametrize("where", [{"job_id": 9, "node_rank": 1}, {"job_id": None}])
def test_nobody_else_does(bench: Bench, monkeypatch: pytest.MonkeyPatch, where: dict[str, int | None]) -> None:
    sent = Sent(monkeypatch)
    bench.where = replace(bench.where, **where)  # type: ignore[arg-type]
    assert bench.run(TRAINS, PlanFile(9, None, "ctl:1")) == 0 and sent.reports == []


def test_a_daemon_that_comes_is_found_within_half_of_the_time_that_the_run_has_lasted() -> None:
    asked_s = list(accumulate(islice(status_reports.pauses_s(), 40)))
    for before_s, at_s in pairwise(asked_s):
        assert at_s - before_s <= min(300, max(22.5, 0.5 * before_s + 15))
    assert sum(at_s <= 3600 for at_s in asked_s) <= 20


def test_a_daemon_that_comes_later_is_reported_to(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = Sent(monkeypatch)
    monkeypatch.setattr(status_reports, "ASK_AGAIN_S", 0.05)
    monkeypatch.setenv("SYNERGY_STATE_DIR", str(tmp_path))
    monkeypatch.setattr(plan_source, "_admin_comment", lambda job_id: "")
    bench.where = replace(bench.where, job_id=9)

    def daemon_comes() -> None:
        bench.when("status.json")()
        plan_file.write(PlanFile(9, None, "late:1"), tmp_path)

    assert bench.run("status(state='training', step=5); time.sleep(2)", then=daemon_comes) == 0
    assert {(r.step, a) for r, a in sent.reports} == {(5, "late:1")}
