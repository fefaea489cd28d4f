from __future__ import annotations

import errno
import math
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from urllib.parse import unquote

import pytest
from synergy_core.records import Directive, Shape
from synergy_core.wire import admin_comment, plan_file

from synergyd.control.resize.events import CarriedOut, Refused
from synergyd.control.resize.instructions import Park, Target, Update
from synergyd.control.resize.walltime import TimeGrant
from synergyd.slurm.client import SlurmError
from tests.unit.slurm.actuator_world import KNOWN, PLAN, TARGET, UPDATE, fields, make
from tests.unit.slurm.fake_slurm import FakeSlurm

# -- update --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("cpus_per_gpu", "cpus"), [(0, "16"), (2, "16"), (6, "24")])
def test_cpus_follow_the_gpus_of_each_node(tmp_path: Path, cpus_per_gpu: int, cpus: str) -> None:
    slurm, actuator = make(tmp_path, cpus_per_gpu=cpus_per_gpu)
    actuator.carry_out(UPDATE)
    assert fields(slurm)["NumCPUs"] == cpus


def test_update_sets_size_nodes_stamp_and_hand_over(tmp_path: Path) -> None:
    slurm, actuator = make(tmp_path)
    assert actuator.carry_out(UPDATE) == CarriedOut(UPDATE)
    first = slurm.calls[0]
    assert first[:3] == ["update", "1", "StartTime=now+900"], "parked before its size is touched"
    assert len(first) == 4 and "asked=a100,1,2" in first[3], "and stamped with its own size"
    comment = (
        "synergy:1 checkpoint=/scratch/a%20b | asked=a100,1,2 cpus=8 plan=tp:2,pp:1,dp:2,mb:1,gb:8,rc:none,sp:0,zs:1"
    )
    comment += f" batch=own report=ctl:7321 by={os.getuid()}"
    assert fields(slurm) == {
        "StartTime": "now+900",
        "NumTasks": "2",
        "NumNodes": "2-2",
        "NumCPUs": "16",
        "TresPerNode": "gres:gpu:2",
        "ReqNodeList": "n1,n2",
        "AdminComment": comment,
    }
    given = plan_file.read(plan_file.plan_path(tmp_path, 1), 1)
    assert given == plan_file.PlanFile(
        1, PLAN, "ctl:7321", "/scratch/a b", os.getuid(), asked=Shape("a100", 1, 2), own_batch=True
    )
    assert admin_comment.decode(slurm.comments[1]) == admin_comment.AdminCommentStamp(
        (("checkpoint", "/scratch/a b"),),
        own_batch=True,
        requested_shape=KNOWN.requested_shape,
        cpus_per_node=8,
        plan=PLAN,
        report="ctl:7321",
        daemon_uid=os.getuid(),
    )


@pytest.mark.parametrize(
    "before, after",
    [
        ("gres:gpu:1", "gres:gpu:2"),
        ("gres:gpu:a100:1", "gres:gpu:a100:2"),
        ("gpu:a100", "gres:gpu:a100:2"),
        ("gres:nic:1,gres:gpu:1", "gres:gpu:2,gres:nic:1"),  # what else it asks for is kept
    ],
)
def test_a_typed_request_stays_typed(tmp_path: Path, before: str, after: str) -> None:
    slurm, actuator = make(tmp_path, tres_per_node=before)
    assert actuator.carry_out(UPDATE) == CarriedOut(UPDATE)
    assert fields(slurm)["TresPerNode"] == after


def test_another_type_than_the_one_asked_for_by_name_is_refused(tmp_path: Path) -> None:
    slurm, actuator = make(tmp_path, tres_per_node="gres:gpu:v100:2")
    answer = actuator.carry_out(UPDATE)
    assert isinstance(answer, Refused) and not answer.transient and "can't have a100" in answer.error
    assert slurm.calls == []


def test_without_nodes_an_earlier_choice_is_cleared(tmp_path: Path) -> None:
    slurm, actuator = make(tmp_path)
    slurm.required[1] = "n7"
    free = Update(1, replace(TARGET, nodes=(), plan=None), 900)
    assert actuator.carry_out(free) == CarriedOut(free)
    assert slurm.required[1] == "" and "plan=" not in slurm.comments[1]


def test_without_nodes_of_ours_the_user_s_own_stand_again(tmp_path: Path) -> None:
    slurm, actuator = make(tmp_path, known=replace(KNOWN, nodelist=("n5", "n6")))
    ours = Update(1, replace(TARGET, nodes=("n4", "n5", "n6")), 900)
    assert actuator.carry_out(ours) == CarriedOut(ours)
    assert slurm.required[1] == "n4,n5,n6" and "nodes=n5,n6" in slurm.comments[1]
    free = Update(1, replace(TARGET, nodes=()), 900)
    assert actuator.carry_out(free) == CarriedOut(free)
    assert slurm.required[1] == "n5,n6"


@pytest.mark.parametrize(
    "changes, own_tasks",
    [({"num_tasks": 8}, 8), ({"requeue": False}, None), ({"tres_per_node": "", "tres_other": "gres:gpu:8"}, None)],
)
def test_a_job_that_keeps_its_size_keeps_its_tasks_too(
    tmp_path: Path, changes: dict[str, object], own_tasks: int | None
) -> None:
    slurm, actuator = make(tmp_path, known=replace(KNOWN, own_tasks=own_tasks), **changes)
    gpus = 0 if "tres_per_node" in changes else 2
    same = Update(1, Target(Shape("a100", 1, gpus), ("n1",)), 900)
    assert actuator.carry_out(same) == CarriedOut(same)
    assert set(fields(slurm)) == {"StartTime", "ReqNodeList", "AdminComment"}
    slurm.calls.clear()
    answer = actuator.carry_out(UPDATE)
    assert isinstance(answer, Refused) and not answer.transient and "may not be resized" in answer.error
    assert slurm.calls == []


def test_a_task_count_left_by_a_refused_update_is_mended(tmp_path: Path) -> None:
    slurm, actuator = make(tmp_path)
    slurm.refuse["NumNodes=2-2"] = ("no", False)
    assert isinstance(actuator.carry_out(UPDATE), Refused) and slurm.jobs[1].num_tasks == 2
    back = Update(1, Target(Shape("a100", 1, 2)), 900)
    assert actuator.carry_out(back) == CarriedOut(back) and slurm.jobs[1].num_tasks == 1


@pytest.mark.parametrize(("hides_jobs", "mode"), [(False, 0o644), (True, 0o600)])
def test_a_plan_that_cannot_be_shown_to_its_owner_alone_is_secret_where_slurm_hides_jobs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hides_jobs: bool, mode: int
) -> None:
    """A file system without ACLs, and a daemon that is not root. The owner's launcher then takes the plan from AdminComment."""

    def unsupported(*_: object) -> None:
        raise OSError(errno.ENOTSUP, "Operation not supported")

    def forbidden(*_: object) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    slurm, actuator = make(tmp_path)
    actuator.submissions[1] = replace(actuator.submissions[1], uid=5)
    monkeypatch.setattr(os, "setxattr", unsupported)
    monkeypatch.setattr(os, "fchown", forbidden)
    slurm.private = frozenset(("jobs",) if hides_jobs else ())
    assert actuator.carry_out(UPDATE) == CarriedOut(UPDATE)
    path = plan_file.plan_path(tmp_path, 1)
    assert path.stat().st_mode & 0o777 == mode and plan_file.read(path, 1).plan is not None


@pytest.mark.parametrize("transient", [False, True])
def test_a_refused_update_leaves_the_job_parked_and_the_old_plan(tmp_path: Path, transient: bool) -> None:
    slurm, actuator = make(tmp_path)
    plan_file.write(plan_file.PlanFile(1, None), tmp_path)
    slurm.refuse["TresPerNode"] = ("Requested node configuration is not available", transient)
    answer = actuator.carry_out(UPDATE)
    assert isinstance(answer, Refused) and answer.transient is transient and "node configuration" in answer.error
    assert slurm.jobs[1].eligible_s == slurm.now_s + 900
    assert plan_file.read(plan_file.plan_path(tmp_path, 1), 1).plan is None


@pytest.mark.parametrize(
    "ignored, said",
    [
        ("NumNodes", "read back 1 nodes x 2 GPUs, wanted 2 x 2"),
        ("TresPerNode", "read back 2 nodes x 1 GPUs, wanted 2 x 2"),
        ("ReqNodeList", "read back ReqNodeList empty, wanted n1,n2"),
    ],
)
def test_a_field_that_is_ignored_in_silence_is_noticed(tmp_path: Path, ignored: str, said: str) -> None:
    slurm, actuator = make(tmp_path, tres_per_node="gres:gpu:1")
    slurm.ignore = {ignored}
    assert actuator.carry_out(UPDATE) == Refused(UPDATE, said, False)
    assert not plan_file.plan_path(tmp_path, 1).exists(), "no plan for a size it does not have"


def test_a_job_that_starts_meanwhile_is_noticed(tmp_path: Path) -> None:
    slurm, actuator = make(tmp_path)

    class Starts(FakeSlurm):
        def update(self, job: int | str, fields: Mapping[str, str], *, within_s: float = math.inf) -> None:
            super().update(job, fields, within_s=within_s)
            if "NumNodes" in str(fields):
                self.set(int(job), state="RUNNING")

    answer = replace(actuator, slurm=Starts(jobs=slurm.jobs)).carry_out(UPDATE)
    assert answer == Refused(UPDATE, "it was no longer pending when it was read back", True)


def test_a_folder_that_cannot_be_written_is_refused_for_good(tmp_path: Path) -> None:
    """Called transient, it would park the job again and again."""
    (tmp_path / "plans").write_text("in the way")
    _, actuator = make(tmp_path)
    answer = actuator.carry_out(UPDATE)
    assert (
        isinstance(answer, Refused)
        and not answer.transient
        and str(tmp_path) in answer.error
        and "\n" not in answer.error
    )


# -- an operator's own AdminComment --------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["park", "update", "adopt"])
def test_what_an_operator_writes_into_admin_comment_is_kept(tmp_path: Path, how: str) -> None:
    slurm, actuator = make(tmp_path, state="RUNNING" if how == "adopt" else "PENDING")
    slurm.ignore = {"AdminComment"} if how == "adopt" else set()
    stamped: list[str] = []

    def write() -> None:
        if how == "adopt":
            slurm.set(1, state="PENDING")  # the fake takes an update of a pending job only
            slurm.ignore = set()
            actuator.adopt(1, PLAN)
        else:
            assert isinstance(actuator.carry_out(Park(1, 900) if how == "park" else UPDATE), CarriedOut)
        stamped.append(slurm.comments[1])

    slurm.comments[1] = "ticket 12: node swap = n1, see ops@site | ok"
    write()
    stamp = admin_comment.decode(stamped[-1])
    assert stamp is not None and stamp.requested_shape == KNOWN.requested_shape and not stamp.mistakes
    assert unquote(stamp.note) == "ticket 12: node swap = n1, see ops@site | ok"
    write()  # our own stamp is no new note
    assert stamped[-1] == stamped[0]
    slurm.comments[1] = "ticket 13"
    write()
    later = admin_comment.decode(stamped[-1])
    assert later is not None and unquote(later.note) == "ticket 13"
    slurm.comments[1] = "x" * 100_000
    write()
    assert len(stamped[-1]) < 2000


def test_an_admin_comment_that_can_not_be_read_is_not_written_over(tmp_path: Path) -> None:
    slurm, actuator = make(tmp_path)
    slurm.comments[1] = "ticket 12"

    def away(_: int) -> str:
        raise SlurmError("scontrol", "Unable to contact slurm controller", transient=True)

    slurm.admin_comment = away  # type: ignore[method-assign, assignment]
    answer = actuator.carry_out(Park(1, 900))
    assert isinstance(answer, Refused) and answer.transient and slurm.comments[1] == "ticket 12"


@pytest.mark.parametrize(
    ("now_s", "grant", "written"),
    [
        (600.0, TimeGrant(3600.0, 3600.0), "60"),  # it begins anew
        (3600.0, TimeGrant(3600.0, 3600.0), None),
        (3600.0, TimeGrant(600.0, 3600.0), "10"),
        (300.0, TimeGrant(600.0, 3600.0), None),  # somebody has lowered it further
    ],
)
def test_a_time_limit_is_raised_to_what_was_asked_for_alone(
    tmp_path: Path, now_s: float, grant: TimeGrant, written: str | None
) -> None:
    slurm, actuator = make(tmp_path, time_limit_s=now_s)
    assert isinstance(actuator.carry_out(Park(1, 900.0, grant)), CarriedOut)
    assert fields(slurm).get("TimeLimit") == written


@pytest.mark.parametrize(
    ("directive", "batches", "own"),
    [
        (Directive(), None, True),
        (Directive(), (8, 8), True),  # as it was reported: the script's own all the same
        (Directive(global_batch=(8, 8)), None, False),
        (Directive(global_batch=(4, 64)), None, False),
        (Directive(adapt=True), None, True),
        (Directive(adapt=True), (4, 16), False),
        (Directive(adapt=True), (16, 64), True),  # it was planned before the script's own was known
        (Directive(adapt=True, global_batch=(8, 8)), None, False),
    ],
)
def test_a_batch_that_nobody_chose_is_said_to_be_the_scripts_own(
    tmp_path: Path, directive: Directive, batches: tuple[int, int] | None, own: bool
) -> None:
    slurm, actuator = make(tmp_path)
    known = replace(actuator.submissions[1], directive=directive, batches=batches)
    actuator = replace(actuator, submissions={1: known})
    assert actuator.carry_out(UPDATE) == CarriedOut(UPDATE)
    assert plan_file.read(plan_file.plan_path(tmp_path, 1), 1).own_batch is own
    assert (" batch=own " in fields(slurm)["AdminComment"]) is own
    told = plan_file.from_admin_comment(fields(slurm)["AdminComment"], 1)
    assert told is not None and told.own_batch is own


# -- CPUs --------------------------------------------------------------------------------------------------------------


def test_least_cpus_of_a_node_are_asked_for_at_each_size(tmp_path: Path) -> None:
    """--mincpus: Slurm shows one CPU of such a job that is pending, and after an update of NumTasks it gets no more."""
    slurm, actuator = make(tmp_path, known=replace(KNOWN, cpus_per_node=1), num_cpus=1, min_cpus=8)
    assert actuator.carry_out(UPDATE) == CarriedOut(UPDATE)
    assert (fields(slurm)["NumCPUs"], fields(slurm)["CPUsPerTask"]) == ("16", "8")
    slurm.calls.clear()
    actuator.carry_out(UPDATE)
    assert (fields(slurm)["NumCPUs"], "CPUsPerTask" in fields(slurm)) == ("16", False)
