"""Restarts inside an allocation: the launcher with real processes, and its rules one by one."""

from __future__ import annotations

import time
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest
from synergy_core.job_report import Fault, InPlace
from synergy_core.records import Plan
from synergy_core.wire.plan_file import PlanFile
from synergy_core.wire.report import ReportAnswer
from synergy_launch.agent.loss_spike import MOST_RETURNS, WITHIN_S
from synergy_launch.launcher.failures import run_history
from synergy_launch.launcher.failures.plan_guard import PlanGuard
from synergy_launch.launcher.failures.run_history import Crash
from synergy_launch.launcher.in_place import CRASHES, WINDOW_S, Restarts, may_restart
from synergy_launch.launcher.status_reports import StatusReports

from tests.unit.launch.launcher.failures.test_plan_guard import HERE, Job
from tests.unit.launch.launcher.test_node_run import Sent

NOW_S = 100_000.0
STATUS = {"step": 120, "checkpoint_step": 110, "checkpoint_requests": 1}


@pytest.mark.parametrize(
    ("crashes", "step", "goes_on"),
    [
        ((), 0, True),
        ((Crash(120, NOW_S - 60),), 121, True),
        ((Crash(120, NOW_S - 60),), 120, False),  # it fails at the same step again
        ((Crash(120, NOW_S - WINDOW_S - 1),), 121, True),
        (tuple(Crash(n, NOW_S - 60) for n in range(3 * CRASHES)), 500, True),
    ],
)
def test_a_crash_is_mended_while_the_run_gets_further(crashes: tuple[Crash, ...], step: int, goes_on: bool) -> None:
    assert may_restart(crashes, Crash(step, NOW_S)) is goes_on
    assert not may_restart(crashes, Crash(step, NOW_S), 0), "the user wants none"


def test_only_a_crash_of_the_same_cause_is_at_the_same_step_again() -> None:
    known = (Crash(120, NOW_S - 60, "exit"),)
    assert not may_restart(known, Crash(115, NOW_S, "exit")) and may_restart(known, Crash(115, NOW_S, "memory"))
    assert not may_restart((Crash(120, NOW_S - 60),), Crash(115, NOW_S, "memory")), "its cause is not known"
    killed = tuple(Crash(120, NOW_S - 60 * n, "killed") for n in range(CRASHES))
    assert may_restart((Crash(120, NOW_S - 60, "network"),), Crash(120, NOW_S, "network")), (
        "it says nothing of the step"
    )
    assert may_restart(killed[1:], Crash(120, NOW_S, "killed")) and not may_restart(killed, Crash(120, NOW_S, "killed"))
    assert may_restart(killed, Crash(500, NOW_S, "killed")), "it has gained steps since"


def trained() -> PlanGuard:
    """The guard of a run that has got past its first steps."""
    guard = PlanGuard(HERE, None, None)
    for step in (1, 100):
        guard.look({"state": "training", "step": step, "checkpoint_step": None})
    return guard


def test_what_is_no_crash_ends_the_job(tmp_path: Path) -> None:
    restarts, guard = Restarts(HERE, tmp_path, clock=lambda: NOW_S), trained()
    assert not restarts.begin_next_run(7, guard), "it has no checkpoint"
    restarts.look(STATUS)
    assert [restarts.begin_next_run(code, guard) for code in (0, 2, 130, 143)] == [False] * 4
    assert not restarts.begin_next_run(7, PlanGuard(HERE, None, None)), "it has not trained"
    none = Restarts(HERE, tmp_path, crashes=0)
    none.look(STATUS)
    assert not none.begin_next_run(7, guard)
    assert restarts.begin_next_run(7, guard) and "exit code 7 at step 120" in restarts.message
    told = restarts.report_part
    assert (told.number, told.crashes, told.code, told.step, restarts.acknowledged_checkpoints) == (1, 1, 7, 120, 1)
    restarts.look(STATUS)
    assert not restarts.begin_next_run(7, guard), "no step further"
    # the next incarnation knows it too
    again = Restarts(HERE, tmp_path, clock=lambda: NOW_S)
    again.look(STATUS)
    assert not again.begin_next_run(7, guard)
    assert run_history.read_history(tmp_path, HERE.job_id or 0).crashes == (Crash(120, NOW_S, "exit"),)


def test_a_run_killed_at_one_step_is_started_as_often_as_allowed(tmp_path: Path) -> None:
    restarts, guard = Restarts(HERE, tmp_path, clock=count(NOW_S).__next__), trained()
    for _ in range(CRASHES):
        restarts.look(STATUS)
        assert restarts.begin_next_run(137, guard)
        restarts.report_part = InPlace(number=restarts.report_part.number)
    restarts.look(STATUS)
    assert not restarts.begin_next_run(137, guard)
    restarts.look(STATUS | {"step": 121})
    assert restarts.begin_next_run(137, guard), "it has come further since"


@pytest.mark.parametrize(("xid", "goes_on"), [(79, False), (94, True), (0, True)])
def test_a_run_is_not_started_again_on_a_gpu_that_needs_a_reset(tmp_path: Path, xid: int, goes_on: bool) -> None:
    restarts, guard = Restarts(HERE, tmp_path), trained()
    restarts.look(STATUS)
    guard.fault = Fault(kind="gpu", node="n1", xid=xid, pci_address="0000:3b:00", ecc_errors=1)
    assert restarts.cause(1, own=True, fault=guard.fault) == (1, "")
    assert restarts.begin_next_run(1, guard) is goes_on
    assert ("not started again on a GPU that needs a reset" in restarts.message) is not goes_on
    assert restarts.report_part.cause == ("gpu" if goes_on else "")


def test_an_order_is_followed_once() -> None:
    restarts, guard = Restarts(HERE, None), PlanGuard(HERE, PlanFile(9), None)
    restarts.hear(ReportAnswer(Plan(dp=4), 1))
    restarts.hear(ReportAnswer(Plan(dp=4), 1))
    assert restarts.is_decided and restarts.begin_next_run(143, guard) and not restarts.is_decided
    assert (guard.plan, restarts.report_part.order, restarts.report_part.number) == (Plan(dp=4), 1, 1)
    restarts.hear(ReportAnswer(Plan(dp=4), 1))
    assert not restarts.is_decided
    restarts.hear(ReportAnswer(Plan(), 2))
    assert not restarts.is_decided, "it is for another number of GPUs than the run has"
    restarts.hear(ReportAnswer(Plan(tp=2, dp=2), 2))
    assert restarts.is_decided


@pytest.mark.parametrize("order", [0, 1])
def test_a_run_that_an_order_began_is_told_before_its_first_word(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, order: int
) -> None:
    sent, restarts = Sent(monkeypatch), Restarts(HERE, None)
    restarts.report_part = InPlace(number=1, order=order)
    reports = StatusReports(HERE, PlanFile(9, None, "ctl:1"), tmp_path, None, None, restarts)
    for _ in range(3):
        reports.poll()
    reports.close()
    assert {(r.silent, r.in_place) for r, _ in sent.reports} == {(True, restarts.report_part)}
    assert sent.reports[-1][0].ended


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(tmp_path)


def test_a_crashed_run_goes_on_from_its_checkpoint(job: Job) -> None:
    body = """
        first = len(runs.read_text().split()) == 1
        status(step=5, checkpoint_step=5)
        time.sleep(0.5)
        status(step=30 if first else 60, checkpoint_step=20)
        time.sleep(0.5)
        sys.exit(7 if first else 0)
    """
    code, runs, said = job.run(body)
    assert (code, runs) == (0, ["planned", "planned"]), said
    assert "ended with exit code 7 at step 30: started again in place from its checkpoint of step 20" in said
    assert [c.step for c in job.history.crashes] == [30] and job.history.failed == ()


def test_a_run_that_ends_for_a_loss_spike_in_its_first_steps_goes_on_with_its_plan(job: Job) -> None:
    body = """
        first = len(runs.read_text().split()) == 1
        status(step=5, checkpoint_step=5)
        time.sleep(0.5)
        if first:
            (run / "loss-spike").write_text(json.dumps({"step": 6, "answer": "skipped", "checkpoint_step": 5}))
        sys.exit(first)
    """
    code, runs, said = job.run(body)
    assert (code, runs, job.history.failed) == (0, ["planned", "planned"], ()), said


@pytest.mark.parametrize("second", [10, 5])
def test_a_script_that_fails_at_the_same_step_again_ends_with_its_own_code(job: Job, second: int) -> None:
    """Its checkpoint may be so near that the second run has fewer steps than first ones: that is not its plan's fault."""
    code, runs, said = job.run(f"trains(10 if len(runs.read_text().split()) == 1 else {second}); sys.exit(3)")
    assert (code, runs, job.history.failed) == (3, ["planned", "planned"], ()), said
    before = time.time()
    assert all(abs(before - c.at_s) < 60 for c in job.history.crashes)


def test_a_run_that_ended_for_a_loss_spike_is_started_again_whatever_crashed_before() -> None:
    crashes = tuple(Crash(500, NOW_S - n, "exit") for n in range(9))
    assert may_restart(crashes, Crash(450, NOW_S, "spike"))
    spikes = tuple(Crash(100, NOW_S - 60 * n, "spike") for n in range(MOST_RETURNS))
    assert not may_restart(spikes, Crash(450, NOW_S, "spike")) and may_restart(spikes[1:], Crash(450, NOW_S, "spike"))
    assert may_restart(spikes, Crash(450, NOW_S + WITHIN_S, "spike"))
    ahead = tuple(replace(one, step=500) for one in spikes)
    assert may_restart(ahead, Crash(450, NOW_S, "exit")), "a run that went back by itself has not crashed"
