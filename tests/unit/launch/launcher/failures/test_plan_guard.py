"""A plan of Synergy's that fails: the launcher with real processes, and its rules one by one."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from synergy_core.errors import UnavailableError
from synergy_core.job_report import Fault, LossSpike, Report
from synergy_core.records import Plan, Shape
from synergy_core.wire import plan_file
from synergy_core.wire import report as wire_report
from synergy_core.wire.plan_file import PlanFile
from synergy_launch.launcher.failures import plan_guard, run_history
from synergy_launch.launcher.failures.plan_guard import PlanGuard, failure_kind, hold
from synergy_launch.launcher.failures.run_history import RunHistory
from synergy_launch.launcher.group.meeting import NO_MEETING
from synergy_launch.launcher.job.allocation import JobAllocation

PLAN, OTHER = Plan(dp=4, global_batch=8), Plan(tp=2, dp=2, global_batch=8)
ASKED = Shape("a100", 1, 4)
HERE = JobAllocation(job_id=9, restarts=0, nodes=("n1",), node_rank=0, gpus=4, in_step=True, leader=True)
SCRIPT = """
import json, os, signal, sys, time
from pathlib import Path
planned = "SYNERGY_PLAN_JSON" in os.environ
run, runs = Path(os.environ["SYNERGY_RUN_DIR"]), Path(sys.argv[1])
runs.write_text((runs.read_text() if runs.exists() else "") + ("planned " if planned else "own "))
def status(**what):
    (run / "new").write_text(json.dumps({"state": "training", **what})); (run / "new").replace(run / "status.json")
def trains(steps, **more):
    status(step=5, checkpoint_step=5)
    time.sleep(0.5)
    status(step=5 + steps, **{"checkpoint_step": 5, **more})
    time.sleep(0.5)
"""
WRONG_SYNTAX = "def f(:\n"


class Job:
    """One node of a job whose size is its user's own, and no daemon."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.checkpoints, self.runs = folder, folder / "checkpoints", folder / "runs"
        self.given = PlanFile(9, PLAN, checkpoint=str(self.checkpoints), asked=ASKED)

    def start(self, body: str, **more: str) -> subprocess.Popen[str]:
        script = self.folder / "train.py"
        script.write_text(SCRIPT + textwrap.dedent(body) if body != WRONG_SYNTAX else body)
        plan_file.write(self.given, self.folder)
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM_", "SYNERGY_"))}
        slurm = {"SLURM_JOB_ID": "9", "SLURM_JOB_NODELIST": "n1", "SLURM_STEP_ID": "0", "SLURM_PROCID": "0", "SLURM_NODEID": "0",
                 "SLURM_STEP_NUM_NODES": "1", "SLURM_STEP_NUM_TASKS": "1", "SLURM_GPUS_ON_NODE": "4"}  # fmt: skip
        environment = {**kept, **slurm, "SYNERGY_STATE_DIR": str(self.folder), "TMPDIR": str(self.folder), **more}
        argv = [
            sys.executable,
            "-m",
            "synergy_launch.launcher.command",
            "--runner",
            "python",
            str(script),
            str(self.runs),
        ]
        return subprocess.Popen(argv, env=environment, stderr=subprocess.PIPE, text=True)

    def run(self, body: str, **more: str) -> tuple[int, list[str], str]:
        """(exit code, what its runs were given, error output)."""
        child = self.start(body, **more)
        said = child.communicate(timeout=120)[1]
        return child.returncode, self.runs.read_text().split() if self.runs.exists() else [], said

    @property
    def history(self) -> RunHistory:
        return run_history.read_history(self.checkpoints, 9)


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(
    "failure",
    [
        "sys.exit(7)",
        "os.kill(os.getpid(), 9)",
        "status(step=5); sys.stderr.write('CUDA out of memory\\n'); sys.exit(1)",
        "trains(9); sys.exit(1)",
        "status(step=5); time.sleep(60)",
    ],
)
def test_a_plan_that_fails_at_once_is_replaced_by_the_users_own_arguments(job: Job, failure: str) -> None:
    code, runs, said = job.run(f"if planned: {failure}", SYNERGY_FIRST_STEP_S="8")
    assert (code, runs) == (0, ["planned", "own"]), said
    assert "started again with its own arguments" in said and (job.history.returns, job.history.failed) == (1, (PLAN,))


def test_a_script_that_fails_under_its_own_arguments_too_ends_with_its_code(job: Job) -> None:
    assert job.run("sys.exit(3 if planned else 5)")[:2] == (5, ["planned", "own"])


@pytest.mark.parametrize("trained", ["trains(10)", "trains(1, checkpoint_step=6)", "trains(0, checkpoint_requests=1)"])
def test_a_failure_after_the_first_steps_is_the_scripts_own(job: Job, trained: str) -> None:
    assert job.run(f"{trained}; sys.exit(3)", SYNERGY_CRASH_RESTARTS="0")[:2] == (3, ["planned"])
    assert job.history.failed == () and (job.history.ran, job.history.ran_restarts) == (PLAN, 0)


def test_a_job_that_is_cancelled_has_not_failed(job: Job) -> None:
    child = job.start("signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))\nstatus(step=5)\ntime.sleep(30)")
    end = time.monotonic() + 60
    while not job.runs.exists() and time.monotonic() < end:
        time.sleep(0.05)
    time.sleep(0.5)
    for pid in (child.pid, *_children(child.pid)):  # as Slurm does
        os.kill(pid, signal.SIGTERM)
    child.communicate(timeout=120)
    assert job.runs.read_text().split() == ["planned"] and job.history == RunHistory(9)


@pytest.mark.slow
def test_no_plan_is_blamed_where_the_nodes_could_not_meet() -> None:
    guard = PlanGuard(HERE, PlanFile(9, PLAN, "daemon:1", asked=ASKED), None)
    assert guard.conclude(NO_MEETING) is None and not guard.again and not guard.waits
    assert guard.conclude(1) is not None and guard.again


def test_no_more_than_two_returns_a_job(job: Job) -> None:
    run_history.write_history(job.checkpoints, RunHistory(9, returns=2))
    assert job.run("sys.exit(7)")[:2] == (7, ["planned"])
    run_history.write_history(job.checkpoints, RunHistory(8, returns=2))  # another job's
    assert job.run("sys.exit(7)")[1] == ["planned", "planned", "own"]


@pytest.mark.slow
def test_a_plan_that_failed_is_not_run_again_by_the_next_incarnation(job: Job) -> None:
    job.run("if planned: sys.exit(7)")
    assert job.run("", SLURM_RESTART_COUNT="1")[:2] == (0, ["planned", "own", "own"])


def _children(pid: int) -> list[int]:
    return [int(p) for p in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


# -- the rules -----------------------------------------------------------------------------------------------------


def guard(given: PlanFile, folder: Path | None = None, **where: Any) -> PlanGuard:
    return PlanGuard(JobAllocation(**{**vars(HERE), **where}), given, folder)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("body", "code"),
    [("import no_such_module", 1), ("open('/no/such/file')", 1), ("undefined", 1), (WRONG_SYNTAX, 1),
     ("import argparse; argparse.ArgumentParser().parse_args(['--nope'])", 2)],
)  # fmt: skip
def test_a_script_that_is_wrong_itself_ends_at_once_and_no_plan_is_blamed(job: Job, body: str, code: int) -> None:
    ran, runs, said = job.run(body)
    assert (ran, runs) == (code, [] if body == WRONG_SYNTAX else ["planned"]), said
    assert "the script itself is wrong" in said and "plan that Synergy chose" not in said
    assert run_history.read_history(job.checkpoints, 9) == RunHistory(9)


def test_what_another_number_of_processes_may_cause_is_tried_at_the_size_asked_for() -> None:
    tail = b"Traceback (most recent call last):\n  File \"t.py\", line 1\nFileNotFoundError: 'rank3.bin'\n"
    same, other = (
        guard(PlanFile(9, PLAN, "c:1", asked=ASKED)),
        guard(PlanFile(9, PLAN, "c:1", asked=Shape("a100", 1, 2))),
    )
    for made in (same, other):
        made.append_output(tail)
    assert same.conclude(1) is None and not same.waits
    failure = other.conclude(1)
    assert failure is not None and failure.plan == PLAN and other.waits


@pytest.mark.parametrize(
    ("tail", "plan"), [(b"ValueError: mine\n", None), (b"t.py: error: unrecognized arguments: --x\n", PLAN)]
)
def test_a_plan_that_is_the_script_s_own_is_not_blamed(tail: bytes, plan: Plan | None) -> None:
    """Unless it does not know the options that it was given beside."""
    made = PlanGuard(HERE, PlanFile(9, PLAN, "c:1", asked=ASKED), None, own=PLAN)
    made.append_output(tail)
    failure = made.conclude(1)
    assert failure is not None and failure.plan == plan and made.again is (plan is not None)


def test_the_last_plan_that_ran_comes_first_where_it_fits(tmp_path: Path) -> None:
    run_history.write_history(tmp_path, RunHistory(9, ran=OTHER, ran_restarts=0))
    made = guard(PlanFile(9, PLAN, asked=ASKED), tmp_path)
    failure = made.conclude(1)
    assert failure is not None and (failure.goes_on, failure.next_plan, made.plan) == (True, OTHER, OTHER)
    made.begin()
    failure = made.conclude(1)
    assert failure is not None and (failure.goes_on, failure.next_plan, failure.number) == (True, None, 2)
    assert made.plan is None
    made.begin()
    failure = made.conclude(4)
    assert failure is not None and (failure.plan, failure.code, made.again, made.waits) == (None, 4, False, False)


@pytest.mark.parametrize(
    ("given", "where", "again", "waits"),
    [
        (PlanFile(9, PLAN, "ctl:1", asked=Shape("a100", 1, 2)), {}, False, True),
        (PlanFile(9, PLAN, "", asked=Shape("a100", 1, 2)), {}, False, False),  # nobody to ask
        (PlanFile(9, PLAN, "ctl:1"), {}, False, True),
        (PlanFile(9, PLAN, "ctl:1", asked=Shape("a100", 2, 2)), {"nodes": ("n1", "n2"), "gpus": 2}, False, True),
        (PlanFile(9, None, "ctl:1", asked=ASKED), {}, False, False),
        (PlanFile(9, PLAN, "ctl:1", asked=ASKED), {"job_id": None}, False, False),
    ],
)
def test_who_is_started_again_in_place(given: PlanFile, where: dict[str, Any], again: bool, waits: bool) -> None:
    made = guard(given, **where)
    made.conclude(1)
    assert (made.again, made.waits) == (again, waits)


@pytest.mark.parametrize(
    ("fault", "kind", "again", "fails"),
    [
        (Fault(kind="oom"), "killed", True, True),
        (Fault(kind="disk", folder="/ckpt"), "exit", True, False),
        (Fault(kind="gpu", xid=94), "cuda", True, False),
        (Fault(kind="gpu", xid=79), "cuda", False, False),  # the daemon starts it elsewhere
    ],
)
def test_a_plan_is_kept_where_its_node_was_at_fault(
    tmp_path: Path, fault: Fault, kind: str, again: bool, fails: bool
) -> None:
    made = guard(PlanFile(9, PLAN, "ctl:1", asked=ASKED), tmp_path)
    made.fault = fault
    assert made.kind(1) == fault.kind
    failure = made.conclude(1)
    assert failure is not None and failure.kind == kind, "as releases before 0.3 know it"
    assert (made.again, made.waits) == (again, not again)
    kept = run_history.read_history(tmp_path, 9)
    assert (kept.returns, kept.failed) == (1, (PLAN,) if fails else ())


def test_a_loss_spike_is_no_failure_of_the_plan(tmp_path: Path) -> None:
    """It may last from the first step after a checkpoint on, and fast steps may be seen late."""
    made = guard(PlanFile(9, PLAN, "ctl:1", asked=ASKED), tmp_path)
    for step in (51, 60):
        made.look({"state": "training", "step": step, "checkpoint_step": 50})
    made.fault = Fault(kind="spike", spike=LossSpike(step=51, checkpoint_step=50, answer="skipped"))
    assert made.conclude(1) is None and not made.again
    assert made.is_past_first_steps, "else it would not be started again in place"
    assert run_history.read_history(tmp_path, 9).failed == ()


def test_another_nodes_word_on_the_first_steps_counts(tmp_path: Path) -> None:
    where: dict[str, Any] = {"nodes": ("n1", "n2"), "gpus": 2, "restarts": 3}
    first, second = (guard(PlanFile(9, PLAN, "ctl:1"), tmp_path, **where, node_rank=i) for i in (0, 1))
    for step in (0, 11):
        first.look({"state": "training", "step": step})
    assert second.conclude(1) is None and not second.waits


def test_only_the_node_that_has_a_status_judges_a_hang(tmp_path: Path) -> None:
    now, given = [0.0], PlanFile(9, PLAN, "ctl:1")
    for restarts in range(3):
        where = {**vars(HERE), "nodes": ("n1", "n2"), "gpus": 2, "restarts": restarts}
        first, second = (
            PlanGuard(JobAllocation(**{**where, "node_rank": i}), given, tmp_path, monotonic=lambda: now[0])
            for i in (0, 1)
        )
        silent = PlanGuard(JobAllocation(**where), given, tmp_path, monotonic=lambda: now[0])
        for step in (0, 11):
            first.look({"state": "training", "step": step})
        for _ in range(4):
            now[0] += plan_guard.FIRST_STEP_S
            assert not first.is_hanging() and not second.is_hanging()
        assert silent.is_hanging() == (restarts > 0), "its agent spoke in an earlier incarnation"
        assert first.conclude(1) is None and second.conclude(1) is None and not (second.waits or second.tells)


def test_a_run_that_was_ended_as_hanging_has_failed_early(tmp_path: Path) -> None:
    run_history.write_history(tmp_path, RunHistory(9, ran_restarts=0))
    now = [0.0]
    made = PlanGuard(HERE, PlanFile(9, PLAN, asked=ASKED), tmp_path, monotonic=lambda: now[0])
    now[0] = plan_guard.FIRST_STEP_S + 1
    assert made.is_hanging()
    failure = made.conclude(137)
    assert failure is not None and (failure.kind, made.again) == ("hang", True)


@pytest.mark.parametrize(("node_rank", "folder", "tells"), [(0, False, True), (1, False, False), (1, True, True)])
def test_a_node_that_can_not_know_the_steps_claims_no_failure(
    tmp_path: Path, node_rank: int, folder: bool, tells: bool
) -> None:
    where: dict[str, Any] = {"nodes": ("n1", "n2"), "gpus": 2, "node_rank": node_rank}
    made = guard(PlanFile(9, PLAN, "ctl:1"), tmp_path if folder else None, **where)
    assert (made.conclude(1) is not None) == tells
    assert (made.waits, made.tells, bool(made.format_outcome())) == (True, tells, tells)


def test_a_run_that_reports_no_steps_is_past_them_after_a_time() -> None:
    now = [0.0]
    made = PlanGuard(HERE, PlanFile(9, PLAN, asked=ASKED), None, first_step_s=10.0, monotonic=lambda: now[0])
    now[0] = plan_guard.UNREPORTED_S + 1
    assert not made.is_hanging(), "it may have no agent, and train all the same"
    assert made.conclude(1) is None


@pytest.mark.parametrize(
    ("code", "said", "kind"),
    [
        (1, b"torch.OutOfMemoryError: CUDA out of memory. Tried", "memory"),
        (1, b"RuntimeError: CUDA error: out of memory", "memory"),
        (137, b"", "killed"),
        (1, b"torch.distributed.DistBackendError: NCCL error in: x.cpp", "nccl"),
        (1, b"RuntimeError: CUDA error: an illegal memory access was encountered", "cuda"),
        (134, b"terminate called", "exit"),
    ],
)
def test_the_kind_of_a_failure(code: int, said: bytes, kind: str) -> None:
    assert failure_kind(code, said) == kind and kind in wire_report.FAILURES


def test_a_step_is_held_open_until_the_requeue_and_no_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[tuple[Report, str, int | None]] = []
    away = [True, False, False]

    def send(report: Report, address: str, by: int | None) -> None:
        if away.pop(0):
            raise UnavailableError("daemon", "away")
        sent.append((report, address, by))
        ending.set()

    ending = threading.Event()
    monkeypatch.setattr(wire_report, "send", send)
    monkeypatch.setattr(plan_guard, "_ASK_AGAIN_S", 0.1)
    failed = Report(9, 0, 0)
    assert hold(failed, lambda: ("ctl:1", 5), ending.is_set) and sent == [(failed, "ctl:1", 5)]
    monkeypatch.setattr(wire_report, "send", lambda *_: None)
    assert not hold(failed, lambda: ("ctl:1", 5), lambda: False, 0.3)
    monkeypatch.setattr(wire_report, "send", lambda *_: pytest.fail("another node tells it"))
    assert not hold(None, lambda: ("ctl:1", 5), lambda: False, 0.3)


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"job_id": 9, "returns": -1}', '{"job_id": 9, "failed": [{"tp": 0}]}']
)
def test_a_history_that_makes_no_sense_counts_as_none(tmp_path: Path, text: str) -> None:
    (tmp_path / run_history.FILE).write_text(text)
    assert run_history.read_history(tmp_path, 9) == RunHistory(9)
    (tmp_path / run_history.FILE).write_text(json.dumps({"job_id": 9, "returns": 1, "later": 1}))
    assert run_history.read_history(tmp_path, 9).returns == 1
