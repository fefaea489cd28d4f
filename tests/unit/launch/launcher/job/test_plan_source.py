"""Where the launcher finds the plan: the daemon's file first, then AdminComment."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from synergy_core.errors import UsageError
from synergy_core.records import Plan
from synergy_core.wire import plan_file
from synergy_core.wire.plan_file import PlanFile
from synergy_launch.launcher.job.plan_source import find_plan_file

PLAN = Plan(tp=2, pp=2, dp=2, micro_batch=4, global_batch=16)
COMMENT = "synergy:1 checkpoint=/a%20b%C3%A9 | plan=tp:1,pp:1,dp:2,mb:1,gb:4 report=ctl:7321"


def scontrol(folder: Path, monkeypatch: pytest.MonkeyPatch, body: str) -> None:
    program = folder / "bin" / "scontrol"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\n{body}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")


def test_the_daemons_file_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scontrol(tmp_path, monkeypatch, f"echo '   AdminComment={COMMENT}'")
    written = PlanFile(9, PLAN, "ctl:1", "/ckpt", 64030)
    path = plan_file.write(written, tmp_path)
    assert find_plan_file(9, {"SYNERGY_STATE_DIR": str(tmp_path)}) == (written, "")
    assert find_plan_file(9, {"SYNERGY_PLAN": str(path), "SYNERGY_STATE_DIR": "/nowhere"}) == (written, "")


def test_admin_comment_where_there_is_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scontrol(
        tmp_path,
        monkeypatch,
        "echo 'JobId=9 JobName=x'; echo ' AdminComment=synergy:1 | report=evil:1'\n"
        f"echo '   AdminComment={COMMENT}'; echo '   Comment=x'",
    )
    found, remark = find_plan_file(9, {"SYNERGY_STATE_DIR": str(tmp_path)})
    assert found == PlanFile(9, Plan(dp=2, global_batch=4), "ctl:7321", "/a bé") and remark == ""


@pytest.mark.parametrize(
    ("job_id", "task", "named"), [(9, "3", "9_3"), (12, "3", "12"), (9, "3; x", "9"), (9, "", "9")]
)
def test_an_arrays_last_task_asks_for_itself(
    job_id: int, task: str, named: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = COMMENT.replace("ctl:7321", "other:1")
    scontrol(tmp_path, monkeypatch, f"[ $3 = {named} ] && echo 'AdminComment={COMMENT}' || echo 'AdminComment={other}'")
    environment = {"SYNERGY_STATE_DIR": str(tmp_path), "SLURM_ARRAY_JOB_ID": "9", "SLURM_ARRAY_TASK_ID": task}
    found, _ = find_plan_file(job_id, environment)
    assert found is not None and found.report == "ctl:7321"


@pytest.mark.parametrize(
    "content", ["", "{", "[]", '{"format": 1, "job_id": 8}', '{"format": 1, "job_id": 9, "plan": {"tp": 0}}']
)
def test_an_unusable_file_is_told_of_and_admin_comment_taken(
    content: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scontrol(tmp_path, monkeypatch, f"echo 'AdminComment={COMMENT}'")
    path = plan_file.plan_path(tmp_path, 9)
    path.parent.mkdir()
    path.write_text(content)
    found, remark = find_plan_file(9, {"SYNERGY_STATE_DIR": str(tmp_path)})
    assert found is not None and found.report == "ctl:7321" and str(path) in remark


@pytest.mark.parametrize(
    "body",
    ["exit 1", "echo 'AdminComment=(null)'", "echo 'AdminComment=other 1'", "echo 'AdminComment=synergy:1 tp=2'"],
)
def test_no_plan_anywhere(body: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scontrol(tmp_path, monkeypatch, body)
    assert find_plan_file(9, {"SYNERGY_STATE_DIR": str(tmp_path)}) == (None, "")


def test_a_wrong_stamp_and_a_path_that_can_not_be_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scontrol(tmp_path, monkeypatch, "echo 'AdminComment=synergy:1 | plan=tp:x'")
    found, remark = find_plan_file(9, {"SYNERGY_STATE_DIR": str(tmp_path)})
    assert found is None and "AdminComment of job 9" in remark
    found, remark = find_plan_file(9, {"SYNERGY_PLAN": "x" * 5000})
    assert found is None and remark


def test_outside_slurm_only_a_named_plan(tmp_path: Path) -> None:
    assert find_plan_file(None, {"SYNERGY_STATE_DIR": str(tmp_path)}) == (None, "")
    path = plan_file.write(PlanFile(0, PLAN), tmp_path)
    assert find_plan_file(None, {"SYNERGY_PLAN": str(path)})[0] == PlanFile(0, PLAN)
    with pytest.raises(UsageError, match="missing"):
        find_plan_file(None, {"SYNERGY_PLAN": str(tmp_path / "missing")})
