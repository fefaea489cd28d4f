from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from synergy_core.wire import plan_file
from synergy_core.wire.plan import plan_text

from synergyd.control.resize.events import CarriedOut, Refused
from synergyd.control.resize.instructions import (
    AskCheckpoint,
    Instruction,
    LowerShield,
    Park,
    Release,
    Requeue,
    Restart,
    RestoreNice,
    ReturnNodes,
)
from synergyd.slurm.actuator import Actuator, PlaceCheck
from synergyd.slurm.mail_types import with_restarts, without_restarts
from synergyd.slurm.parsed.snapshot import SubmittedJob
from tests.unit.slurm.actuator_world import KNOWN, PLAN, TARGET, UPDATE, fields, make
from tests.unit.slurm.fake_slurm import FakeSlurm

ALL: tuple[Instruction, ...] = (AskCheckpoint(1, 0), Requeue(1, 0), Park(1, 900), UPDATE, Release(1))


# -- whom it touches -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("instruction", ALL)
@pytest.mark.parametrize(
    "known", [None, replace(KNOWN, directive=None), replace(KNOWN, directive=None, error="line 3: no")]
)
@pytest.mark.parametrize("state", ["PENDING", "RUNNING"])
def test_jobs_without_a_sound_directive_are_never_written_to(
    tmp_path: Path, instruction: Instruction, known: SubmittedJob | None, state: str
) -> None:
    slurm, actuator = make(tmp_path, known=known, state=state)
    answer = actuator.carry_out(instruction)
    assert answer == Refused(instruction, "job 1 has no directive: it is not Synergy's", False)
    assert slurm.calls == [] and list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("instruction", ALL)
@pytest.mark.parametrize("part", ["array", "het"])
@pytest.mark.parametrize("state", ["PENDING", "RUNNING"])
def test_an_id_that_names_several_jobs_is_never_written_to(
    tmp_path: Path, instruction: Instruction, part: str, state: str
) -> None:
    slurm, actuator = make(tmp_path, state=state, **dict[str, Any]({part: True}))
    answer = actuator.carry_out(instruction)
    assert isinstance(answer, Refused) and not answer.transient and "several jobs" in answer.error
    assert slurm.calls == []


@pytest.mark.parametrize("instruction", ALL)
def test_a_job_that_has_left_is_not_written_to(tmp_path: Path, instruction: Instruction) -> None:
    slurm, actuator = make(tmp_path)
    slurm.jobs.clear()
    assert actuator.carry_out(instruction) == Refused(instruction, "it has left the queue", True)
    assert slurm.calls == []


@pytest.mark.parametrize("instruction", ALL)
def test_a_slurmctld_that_is_away_is_a_transient_refusal(tmp_path: Path, instruction: Instruction) -> None:
    slurm, actuator = make(tmp_path)
    slurm.away = True
    answer = actuator.carry_out(instruction)
    assert isinstance(answer, Refused) and answer.transient and "Unable to contact" in answer.error


# -- each instruction ----------------------------------------------------------------------------------------------


def test_asking_for_a_checkpoint_is_a_signal(tmp_path: Path) -> None:
    slurm, actuator = make(tmp_path, state="RUNNING")
    assert actuator.carry_out(AskCheckpoint(1, 0)) == CarriedOut(AskCheckpoint(1, 0))
    assert slurm.calls == [["signal", "1", "USR2"]]


@pytest.mark.parametrize(
    "changes",
    [{"state": "PENDING"}, {"state": "COMPLETING"}, {"state": "SUSPENDED"}, {"state": "RUNNING", "restarts": 1}],
)
def test_only_the_incarnation_meant_is_asked(tmp_path: Path, changes: dict[str, Any]) -> None:
    slurm, actuator = make(tmp_path, **changes)
    answer = actuator.carry_out(AskCheckpoint(1, 0))
    assert isinstance(answer, Refused) and answer.transient and slurm.calls == []


def test_requeue_ends_the_incarnation_meant(tmp_path: Path) -> None:
    slurm, actuator = make(tmp_path, state="RUNNING", restarts=3)
    assert actuator.carry_out(Requeue(1, 3)) == CarriedOut(Requeue(1, 3))
    assert slurm.calls == [["requeue", "1"]] and slurm.requeued == [(1, 3)]
    actuator.carry_out(Requeue(1, 3))  # it is on its way
    slurm.pass_time(200)
    assert slurm.jobs[1].state == "RUNNING" and slurm.jobs[1].restarts == 4
    assert actuator.carry_out(Requeue(1, 3)) == CarriedOut(Requeue(1, 3))
    assert slurm.calls == [["requeue", "1"]], "the one that runs now was not meant"


@pytest.mark.parametrize("state", ["PENDING", "COMPLETING", "COMPLETED", "TELEPORTING"])
def test_what_does_not_run_is_not_requeued(tmp_path: Path, state: str) -> None:
    slurm, actuator = make(tmp_path, state=state)
    requeue = Requeue(1, 0, failed=True)
    assert actuator.carry_out(requeue) == CarriedOut(requeue)
    assert slurm.calls == []


def test_one_that_has_failed_is_requeued_only_where_that_is_said(tmp_path: Path) -> None:
    slurm, actuator = make(tmp_path, state="FAILED", restarts=3)
    assert isinstance(actuator.carry_out(Requeue(1, 3)), Refused)
    actuator.carry_out(Requeue(1, 2, failed=True))
    assert slurm.calls == []
    actuator.carry_out(Requeue(1, 3, failed=True))
    assert (slurm.jobs[1].state, slurm.jobs[1].restarts) == ("PENDING", 4)


# -- a job's place -------------------------------------------------------------------------------------------------

KEPT = Requeue(1, 0, shield=("n1", "n2"), may_stay=True, target=TARGET)


class Check(PlaceCheck):
    """Says what it is told to say, and hears why a shield was not possible."""

    def __init__(self, conflict: str = "", obstacle: str = "") -> None:
        self.answers, self.heard = (conflict, obstacle), list[str]()

    def conflict(self, requeue: Requeue) -> str:
        return self.answers[0]

    def obstacle(self, requeue: Requeue, row: object, unshielded: str) -> str:
        self.heard.append(unshielded)
        return self.answers[1]


def test_nodes_are_kept_from_the_requeue_to_the_release(tmp_path: Path) -> None:
    slurm, actuator = make(tmp_path, state="RUNNING", nice=7)
    assert actuator.carry_out(KEPT) == CarriedOut(KEPT)
    assert "ReservationName=synergy-1 " in slurm.reserved and "Nodes=n1,n2 " in slurm.reserved
    assert slurm.requeued == [(1, 0)]
    slurm.pass_time(5)
    actuator.carry_out(UPDATE)
    assert "synergy-1" in slurm.reserved
    release = Release(1, first=True)
    assert actuator.carry_out(release) == CarriedOut(release)
    assert slurm.reserved == "" and slurm.jobs[1].priority > 2_000_000_000 and slurm.jobs[1].nice < 0
    actuator.carry_out(RestoreNice(1, 7))
    assert (slurm.jobs[1].nice, slurm.jobs[1].priority) == (7, 100)


@pytest.mark.parametrize("priority", [3, 1_000_000, 4_294_901_760])
def test_a_released_job_comes_first_whatever_gives_priorities(tmp_path: Path, priority: int) -> None:
    slurm, actuator = make(tmp_path, priority=priority, nice=5)
    actuator.carry_out(Release(1, first=True))
    assert 2_147_000_000 < slurm.jobs[1].priority < 2**32 and priority < slurm.jobs[1].priority
    assert slurm.jobs[1].nice > -2_147_483_645, "Slurm takes no less"
    first = slurm.jobs[1].nice
    actuator.carry_out(Release(1, first=True))
    assert first - 60_000 <= slurm.jobs[1].nice, "a release that is sent again"


def test_a_job_that_would_not_start_again_is_not_requeued(tmp_path: Path) -> None:
    slurm, actuator = make(tmp_path, state="RUNNING")
    check = Check(obstacle="its partition main is DRAIN")
    answer = replace(actuator, check=check).carry_out(KEPT)
    assert answer == Refused(KEPT, "its place: its partition main is DRAIN", False, final=True)
    assert (slurm.requeued, slurm.reserved, check.heard) == ([], "", [""])
    must = replace(KEPT, may_stay=False)
    assert replace(actuator, check=check).carry_out(must) == CarriedOut(must) and "synergy-1" in slurm.reserved


def test_a_job_waits_for_another_that_restarts_there(tmp_path: Path) -> None:
    slurm, actuator = make(tmp_path, state="RUNNING")
    answer = replace(actuator, check=Check(conflict="n1 kept for job 2")).carry_out(KEPT)
    assert answer == Refused(KEPT, "its place: n1 kept for job 2", True)
    assert (slurm.requeued, slurm.reserved) == ([], "")


def test_where_nodes_can_not_be_kept_the_check_is_told(tmp_path: Path) -> None:
    slurm, actuator = make(tmp_path, state="RUNNING")
    slurm.refuse = {"reserve": ("Access/permission denied", False)}
    check = Check()
    assert replace(actuator, check=check).carry_out(KEPT) == CarriedOut(KEPT)
    assert check.heard == ["Access/permission denied"] and slurm.requeued == [(1, 0)]


def test_a_job_that_has_left_leaves_no_reservation(tmp_path: Path) -> None:
    slurm, actuator = make(tmp_path, known=None)
    actuator.shields.put_up(1, ["n1"])
    slurm.away = True
    assert isinstance(actuator.carry_out(LowerShield(1)), Refused)
    slurm.away = False
    slurm.jobs.clear()
    assert actuator.carry_out(LowerShield(1)) == CarriedOut(LowerShield(1)) and slurm.reserved == ""


def test_only_reservations_of_our_own_are_deleted(tmp_path: Path) -> None:
    slurm, actuator = make(tmp_path, state="RUNNING")
    theirs = "ReservationName=synergy-1 StartTime=1000 EndTime=90000 Nodes=n1 Users=root Flags=MAINT\n"
    slurm.reserved = theirs
    for instruction in (LowerShield(1), Release(1, first=True)):
        assert actuator.carry_out(instruction) == CarriedOut(instruction)
    actuator.shields.take_down_all(set())
    assert slurm.reserved == theirs
    slurm.reserved = ""
    assert actuator.shields.put_up(1, ["n1"]) == actuator.shields.put_up(2, ["n2"]) == ""
    actuator.shields.take_down_all({2})
    assert "synergy-1" not in slurm.reserved and "synergy-2" in slurm.reserved
    slurm.reserved = slurm.reserved.replace("Users=", "Users=not")
    actuator.carry_out(LowerShield(1))
    actuator.shields.take_down_all(set())
    assert "synergy-2" in slurm.reserved


def test_a_suspended_job_is_not_said_to_be_requeued(tmp_path: Path) -> None:
    slurm, actuator = make(tmp_path, state="SUSPENDED")
    assert actuator.carry_out(Requeue(1, 0)) == Refused(Requeue(1, 0), "it is suspended", True)
    assert slurm.calls == []


def test_park_and_release_are_start_times(tmp_path: Path) -> None:
    slurm, actuator = make(tmp_path)
    assert isinstance(actuator.carry_out(Park(1, 900.7)), CarriedOut)
    assert fields(slurm)["StartTime"] == "now+900" and slurm.jobs[1].eligible_s == slurm.now_s + 900
    slurm.calls.clear()
    assert isinstance(actuator.carry_out(Release(1)), CarriedOut)
    assert slurm.calls == [["update", "1", "StartTime=now"]]


def test_no_job_is_released_to_nodes_that_have_not_registered_since_a_takeover(tmp_path: Path) -> None:
    """Slurm 22.05.8 would start it without GPUs."""
    slurm, actuator = make(tmp_path, req_nodes=("n1", "n2"))
    slurm.silent = {"n2", "n3"}
    answer = actuator.carry_out(Release(1))
    assert isinstance(answer, Refused) and answer.transient and "waits for n2 to register" in answer.error
    assert slurm.calls == []
    slurm.silent = {"n3"}
    assert isinstance(actuator.carry_out(Release(1)), CarriedOut)


@pytest.mark.parametrize("state", ["RUNNING", "COMPLETING", "SUSPENDED"])
def test_a_job_that_is_not_pending_is_not_updated(tmp_path: Path, state: str) -> None:
    slurm, actuator = make(tmp_path, state=state)
    for instruction in (Park(1, 900), UPDATE):
        answer = actuator.carry_out(instruction)
        assert isinstance(answer, Refused) and answer.transient and answer.error == f"it is {state}"
    assert isinstance(actuator.carry_out(Release(1)), CarriedOut)
    assert slurm.calls == [] and list(tmp_path.iterdir()) == []


# -- mails -----------------------------------------------------------------------------------------------------------

MAILS = "BEGIN,END,FAIL,REQUEUE,TIME_LIMIT_90"


def test_a_requeue_mails_nothing_and_the_next_run_has_its_mails_again(tmp_path: Path) -> None:
    slurm, actuator = make(tmp_path, state="RUNNING")
    slurm.mail_types[1], slurm.comments[1] = MAILS, actuator._stamp(KNOWN, PLAN)
    assert actuator.carry_out(Requeue(1, 0)) == CarriedOut(Requeue(1, 0))
    assert slurm.calls[-1] == ["requeue", "1"] and slurm.mail_types[1] == "END,FAIL,TIME_LIMIT_90"
    assert f" mail={MAILS}" in slurm.comments[1] and f" plan={plan_text(PLAN)}" in slurm.comments[1]
    slurm.set(1, state="PENDING")
    actuator.carry_out(UPDATE)
    assert f" mail={MAILS}" in slurm.comments[1], "a daemon that starts now knows it"
    slurm.set(1, state="RUNNING")
    slurm.mail_types[1] = "END,FAIL"  # Slurm has mailed of the time limit
    actuator.restore_mail(1)
    assert slurm.mail_types[1] == "END,FAIL,BEGIN,REQUEUE" and "mail=" not in slurm.comments[1]
    calls = len(slurm.calls)
    actuator.restore_mail(1)
    assert len(slurm.calls) == calls


def test_a_job_that_wants_no_mail_of_a_restart_is_only_requeued(tmp_path: Path) -> None:
    for types in ("", "END,FAIL", "NONE"):
        slurm, actuator = make(tmp_path, state="RUNNING")
        slurm.mail_types[1] = types
        actuator.carry_out(Requeue(1, 0))
        assert slurm.calls == [["requeue", "1"]]


def test_a_requeue_whose_mails_can_not_be_changed_is_done(tmp_path: Path) -> None:
    slurm, actuator = make(tmp_path, state="RUNNING")
    slurm.mail_types[1], slurm.refuse = "ALL,BEGIN", {"MailType": ("Slurm says no", False)}
    assert actuator.carry_out(Requeue(1, 0)) == CarriedOut(Requeue(1, 0))
    assert slurm.requeued == [(1, 0)]


@pytest.mark.parametrize(
    ("own", "hushed", "now", "restored"),
    [
        ("BEGIN", "INVALID_DEPEND", "INVALID_DEPEND", "BEGIN"),
        ("ARRAY_TASKS,BEGIN,END", "ARRAY_TASKS,END", "ARRAY_TASKS,END", "ARRAY_TASKS,END,BEGIN"),
        ("END,REQUEUE", "END", "END,FAIL", "END,FAIL"),  # its user has asked for something else meanwhile
        ("BEGIN,END", "END", "", ""),
        ("BEGIN,END,TIME_LIMIT", "END,TIME_LIMIT", "END", "END,BEGIN"),
    ],
)
def test_types_of_mail(own: str, hushed: str, now: str, restored: str) -> None:
    assert without_restarts(own) == hushed
    assert with_restarts(now, own) == restored


# -- nodes that leave a running job ------------------------------------------------------------------------------------

LEAVE = Restart(1, 0, 1, PLAN, ("n1", "n2"))


def running_on_four(folder: Path) -> tuple[FakeSlurm, Actuator]:
    slurm, actuator = make(folder, state="RUNNING", num_nodes=4, node_names=("n1", "n2", "n3", "n4"))
    slurm.script = "#!/bin/bash\nsrun synergy-launch train.py\n"
    return slurm, actuator


def test_a_running_jobs_nodes_are_given_back_once(tmp_path: Path) -> None:
    slurm, actuator = running_on_four(tmp_path)
    assert actuator.carry_out(LEAVE) == CarriedOut(LEAVE)
    given_back = ReturnNodes(1, 0, ("n1", "n2"))
    for _ in range(2):
        assert actuator.carry_out(given_back) == CarriedOut(given_back)
    assert [call for call in slurm.calls if call[0] == "keep"] == [["keep", "1", "n1,n2"]]
    assert slurm.jobs[1].node_names == ("n1", "n2")


def test_the_launchers_do_not_wait_for_the_stamp_of_a_new_plan(tmp_path: Path) -> None:
    """Without slurmdbd Slurm refuses it for a minute after nodes have left the job, and scontrol tries for 5 s."""
    slurm, actuator = running_on_four(tmp_path)
    slurm.refuse["AdminComment"] = ("Job update not available right now, the DB index is being set", True)
    assert actuator.carry_out(LEAVE) == CarriedOut(LEAVE)
    assert not [call for call in slurm.calls if call[0] == "update"]
    actuator.stamp_running_jobs(1000.0)
    del slurm.refuse["AdminComment"]
    actuator.stamp_running_jobs(1001.0)
    assert slurm.comments == {}, "the refusal lasts"
    actuator.stamp_running_jobs(1060.0)
    told = plan_file.from_admin_comment(slurm.comments[1], 1)
    assert told is not None and told.plan == PLAN
    writes = len(slurm.calls)
    actuator.stamp_running_jobs(2000.0)
    assert len(slurm.calls) == writes


def test_a_later_incarnation_keeps_its_stamp(tmp_path: Path) -> None:
    slurm, actuator = running_on_four(tmp_path)
    assert actuator.carry_out(LEAVE) == CarriedOut(LEAVE)
    slurm.set(1, restarts=1)
    actuator.stamp_running_jobs(1000.0)
    assert slurm.comments == {}


def test_a_refused_return_is_tried_again(tmp_path: Path) -> None:
    slurm, actuator = running_on_four(tmp_path)
    slurm.refuse["keep"] = ("Job/step DB index is being set, try again in a bit", True)
    answer = actuator.carry_out(ReturnNodes(1, 0, ("n1", "n2")))
    assert isinstance(answer, Refused) and answer.transient


@pytest.mark.parametrize(
    ("wait_s", "script", "words"),
    [
        (60.0, None, "slurm.conf has WaitTime=60"),
        (0.0, "#!/bin/bash\nsrun synergy-launch a.py\nsrun b.py\n", "line 3 of its script"),
        (0.0, "#!/bin/bash\nbash start.sh\n", "no synergy-launch line"),
    ],
)
def test_what_would_not_survive_the_loss_of_nodes_is_not_ordered_to_leave(
    tmp_path: Path, wait_s: float, script: str | None, words: str
) -> None:
    slurm, actuator = running_on_four(tmp_path)
    slurm.wait_s, slurm.script = wait_s, script or slurm.script
    answer = actuator.carry_out(LEAVE)
    assert isinstance(answer, Refused) and answer.final and words in answer.error
    assert slurm.comments == {}, "nothing was written"
    same_nodes = replace(LEAVE, nodes=())
    assert actuator.carry_out(same_nodes) == CarriedOut(same_nodes)


@pytest.mark.parametrize("instruction", [LEAVE, ReturnNodes(1, 0, ("n1",))])
def test_nodes_of_another_incarnation_are_left_alone(tmp_path: Path, instruction: Instruction) -> None:
    slurm, actuator = running_on_four(tmp_path)
    slurm.set(1, restarts=1)
    answer = actuator.carry_out(instruction)
    assert isinstance(answer, Refused) and answer.transient and len(slurm.jobs[1].node_names) == 4


def test_a_requeue_without_an_answer_may_have_been_carried_out(tmp_path: Path) -> None:
    slurm, actuator = make(tmp_path, state="RUNNING", node_names=("n1",))
    slurm.refuse["requeue"] = ("Connection reset by peer", True)
    answer = actuator.carry_out(Requeue(1, 0))
    assert isinstance(answer, Refused) and answer.transient and answer.unsure
    slurm.refuse["requeue"] = ("Access denied", False)
    answer = actuator.carry_out(Requeue(1, 0))
    assert isinstance(answer, Refused) and not answer.unsure
