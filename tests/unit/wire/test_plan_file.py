from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from synergy_core.errors import UsageError
from synergy_core.records import Plan
from synergy_core.wire.codec import decode
from synergy_core.wire.plan import PLAN_CHECKS, plan_from_text, plan_text
from synergy_core.wire.plan_file import PlanFile, from_admin_comment, plan_path, read, write

from tests.unit.wire.test_admin_comment import plans

PLAN = Plan(tp=2, dp=4, micro_batch=2, global_batch=32, recompute="selective")
GOOD: dict[str, Any] = {"format": 1, "job_id": 7, "plan": None, "report": "", "checkpoint": ""}


@pytest.mark.parametrize("handover", [PlanFile(7), PlanFile(7, PLAN, "ctl:7321", "/scratch/a b/'q'\nü", 64030, "c:2")])
def test_what_is_written_is_read(tmp_path: Path, handover: PlanFile) -> None:
    path = write(handover, tmp_path / "not yet")
    assert path == plan_path(tmp_path / "not yet", 7)
    assert read(path, 7) == handover


def test_it_is_its_writers_alone_but_for_whom_it_is_shown_to(tmp_path: Path) -> None:
    old = os.umask(0o007)
    try:
        path = write(PlanFile(7, PLAN), tmp_path)
        assert path.stat().st_mode & 0o777 == 0o600
        write(PlanFile(7, PLAN), tmp_path, lambda file: os.fchmod(file, 0o640))
    finally:
        os.umask(old)
    assert path.stat().st_mode & 0o777 == 0o640
    assert path.parent.stat().st_mode & 0o777 == 0o711


def test_it_is_replaced_whole_and_nothing_is_left(tmp_path: Path) -> None:
    write(PlanFile(7, PLAN), tmp_path)
    write(PlanFile(7), tmp_path)
    assert [p.name for p in (tmp_path / "plans").iterdir()] == ["7.json"]
    assert read(plan_path(tmp_path, 7), 7).plan is None


def test_a_folder_that_cannot_be_written_is_an_os_error(tmp_path: Path) -> None:
    (tmp_path / "plans").write_text("a file is in the way")
    with pytest.raises(OSError):
        write(PlanFile(7), tmp_path)


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "null", "7", '"x"', json.dumps({**GOOD, "format": 2}), json.dumps({**GOOD, "job_id": 8}), "[" * 100_000,
     json.dumps({**GOOD, "plan": [1]}), json.dumps({**GOOD, "plan": {"tp": 0}}), json.dumps({**GOOD, "plan": "tp:2"})],
)  # fmt: skip
def test_a_wrong_file_is_one_clear_line(tmp_path: Path, text: str) -> None:
    path = tmp_path / "7.json"
    path.write_text(text)
    with pytest.raises(UsageError) as error:
        read(path, 7)
    assert str(path) in str(error.value) and "\n" not in str(error.value)


def test_a_missing_file_and_binary_rubbish(tmp_path: Path) -> None:
    path = tmp_path / "7.json"
    with pytest.raises(UsageError, match="can't be read as a plan"):
        read(path, 7)
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UsageError, match="can't be read as a plan"):
        read(path, 7)


@pytest.mark.parametrize(
    "field, value, part",
    [
        ("tp", 0, "tp is 0"), ("tp", -1, "tp"), ("tp", "2", "tp is '2'"), ("tp", 2.0, "tp"), ("tp", True, "tp is True"), ("dp", None, "dp"),
        ("global_batch", 10**400, "global_batch is 1000"), ("micro_batch", [1], "micro_batch"),
        ("recompute", "some", "recompute is 'some'"),
        ("recompute", 1, "recompute"), ("sequence_parallel", 1, "sequence_parallel"),
        ("sequence_parallel", "yes", "expected true or false"),
        ("global_batch", 3, "no multiple of dp 2 x micro_batch 1"),
    ],
)  # fmt: skip
def test_a_wrong_plan_names_its_field(field: str, value: object, part: str) -> None:
    with pytest.raises(UsageError) as error:
        decode(Plan, {"dp": 2, "global_batch": 4, field: value}, "x", PLAN_CHECKS)
    assert part in str(error.value) and len(str(error.value)) < 200


@settings(max_examples=80, deadline=None)
@given(plans)
def test_plan_text_round_trip(plan: Plan) -> None:
    assert plan_from_text(plan_text(plan)) == plan


@settings(max_examples=150, deadline=None)
@given(st.text(alphabet="tpdmgbrcso:,01²x-none", max_size=24))
def test_no_text_does_worse_than_a_usage_error(text: str) -> None:
    try:
        plan = plan_from_text(text)
    except UsageError as error:
        assert "\n" not in str(error)
    else:
        assert plan.tp >= 1 and plan.global_batch % (plan.dp * plan.micro_batch) == 0


@pytest.mark.parametrize("address", ["no port", "a b:1", "host:1;rm", "host:", ":7", "host:123456", "$(x):1"])
def test_a_report_address_that_is_none_is_dropped(address: str) -> None:
    found = from_admin_comment(f"synergy:1 | plan=tp:1 report={address}", 7)
    assert found is not None and found.report == ""


def test_a_wrong_plan_in_admin_comment_names_the_job() -> None:
    with pytest.raises(UsageError, match="AdminComment of job 7"):
        from_admin_comment("synergy:1 | plan=tp:0", 7)
    assert from_admin_comment("synergy:1 min_gpus=2 | asked=a,1,1", 7) is None
