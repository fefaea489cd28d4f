"""Runs that hang or do nothing, and nodes that jobs find slow: what the controller makes of their reports."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from synergy_core.accepts import Accepts
from synergy_core.job_report import SPIKE_WINDOW, Fault, LossSpike, Report
from synergy_core.node_check import NodeCheck
from synergy_core.reasons import format_reasons, reason_codes
from synergy_core.records import Cluster, Directive, Job, JobState, Node, Plan, Profile, Shape, Snapshot

from synergyd.control.controller import Controller
from synergyd.control.notices import make_notice
from synergyd.control.resize.events import (
    ClockSet,
    HealthReviewed,
    JobObserved,
    NodesRead,
    Observed,
    ReportsReceived,
    SnapshotTaken,
)
from synergyd.control.resize.hangs import MAX_HANGS, Hangs, hung_s, is_common_stall, longest_healthy_pause_s
from synergyd.control.resize.instructions import AskCheckpoint, Requeue, Target
from synergyd.control.resize.lifecycle import ResizeState, ResizeTimes, make_resize_times
from synergyd.control.state.health import loss_reasons
from synergyd.control.state.node_health import DrainNode, RememberNodes
from synergyd.control.state.size_changes import SizeChanges
from synergyd.control.tracked import KeepReport, Output, Remember
from synergyd.settings import Settings

HAS, ASKED = Shape("a100", 1, 4), Shape("a100", 1, 2)
PLAN = Plan(tp=2, dp=2, global_batch=8)
JOB = Job(
    1, "gpt-7", "u", 1000, "", JobState.RUNNING, "", 0.0, 0.0, None, 0, HAS, ASKED, ("n1",), directive=Directive()
)
WIDE = replace(JOB, shape=Shape("a100", 2, 4), node_names=("n1", "n2"))
TIMES = ResizeTimes(hang_s=1800.0, idle_s=3600.0)
NODES = tuple(Node(f"n{i}", "a100", 4) for i in range(1, 4))


def running(*jobs: Job, at_s: float = 100.0) -> Controller:
    controller = Controller(TIMES, 60.0, size_changes=SizeChanges(assumed=True))
    see(controller, *jobs, at_s=at_s)
    return controller


def see(controller: Controller, *jobs: Job, at_s: float = 100.0) -> None:
    for job in jobs:
        controller.handle(JobObserved(job.job_id, 0.0, Observed(job.state.value, job.restarts)), at_s - 1)
    seen = tuple(controller.decidable_job(job, at_s) for job in jobs)
    controller.handle(SnapshotTaken(Snapshot(at_s, Cluster(NODES), seen), 60.0), at_s)


def tell(controller: Controller, at_s: float, step: int = 50, job_id: int = 1, **said: Any) -> list[Output]:
    restarts = controller.jobs[job_id].lifecycle.incarnation
    report = Report(job_id, restarts, step, plan=PLAN, **{"step_s": 1.0, **said})
    return controller.handle(ReportsReceived((report,), restarts), at_s)


def review(controller: Controller, at_s: float, drains: bool = False) -> list[Output]:
    return controller.handle(HealthReviewed(drains), at_s)


def told(outputs: list[Output]) -> str:
    return "\n".join(line for o in outputs if isinstance(o, Remember) for line in o.story)


# -- hangs -----------------------------------------------------------------------------------------------------------------


def test_a_run_that_hangs_is_requeued_and_decided_about_anew() -> None:
    controller = running(JOB)
    tell(controller, 100.0)
    tell(controller, 1300.0, stalled_s=1200.0)
    assert Requeue(1, 0) not in review(controller, 1900.0)  # it was not told of 1800 s
    tell(controller, 1900.0, stalled_s=1800.0)
    outputs = review(controller, 1900.0)
    assert Requeue(1, 0) in outputs and AskCheckpoint(1, 0) not in outputs
    assert "no step for 30 min: started again from its last checkpoint, on other nodes than n1" in told(outputs)
    life = controller.jobs[1].lifecycle
    assert (life.state, life.hangs.count, life.stopping) == (ResizeState.REQUEUING, 1, True)
    controller.handle(JobObserved(1, 0.0, Observed("PENDING", 1)), 1910.0)
    assert controller.jobs[1].lifecycle.state is ResizeState.QUEUED
    waits = replace(JOB, state=JobState.PENDING, restarts=1, node_names=())
    assert controller.decidable_job(waits, 1910.0).shun == ("n1",)
    assert controller.decidable_job(waits, 1910.0 + 3600.0).shun == ()


def test_no_run_is_started_again_by_default() -> None:
    controller = Controller(make_resize_times(Settings()), 60.0, size_changes=SizeChanges(assumed=True))
    see(controller, JOB)
    tell(controller, 100.0, stalled_s=1e6)
    assert Requeue(1, 0) not in review(controller, 200.0)


def test_a_long_evaluation_that_ended_is_no_hang_the_next_time() -> None:
    controller = running(JOB)
    tell(controller, 100.0)
    tell(controller, 1600.0, stalled_s=1500.0)
    tell(controller, 1700.0, step=51)  # it went on
    assert controller.jobs[1].lifecycle.hangs.pause_s == 1600.0
    tell(controller, 4000.0, step=51, stalled_s=3000.0)
    assert Requeue(1, 0) not in review(controller, 4100.0)  # within twice its longest pause
    tell(controller, 4300.0, step=51, stalled_s=3300.0)
    assert Requeue(1, 0) in review(controller, 4300.0)


def test_runs_of_one_program_share_the_longest_pause() -> None:
    controller = running(JOB, replace(JOB, job_id=2, name="gpt-8", node_names=("n2",)))
    tell(controller, 1600.0, stalled_s=1500.0)
    tell(controller, 1700.0, step=51)
    tell(controller, 4000.0, job_id=2, stalled_s=3000.0)
    assert Requeue(2, 0) not in review(controller, 4100.0)


def test_silence_is_no_hang() -> None:
    controller = running(JOB)
    tell(controller, 100.0, stalled_s=1700.0)
    assert Requeue(1, 0) not in review(controller, 100_000.0)


def test_bounds_of_a_hang() -> None:
    report = Report(1, 0, 5, plan=PLAN, step_s=200.0, stalled_s=2000.0)
    assert longest_healthy_pause_s(Hangs(), report, 1800.0) == 4000.0  # 20 steps
    assert (
        longest_healthy_pause_s(Hangs(), replace(report, step_s=None), 1800.0) == 3600.0
    )  # nothing is known of its steps
    assert hung_s(Hangs(), report, 1800.0) is None
    assert hung_s(Hangs(), replace(report, stalled_s=None), 1800.0) is None
    assert hung_s(Hangs(), replace(report, stalled_s=4000.0), 1800.0) == 4000.0
    assert hung_s(Hangs(), replace(report, stalled_s=9000.0), 0.0) is None  # never


def test_after_some_hangs_a_job_is_left_alone() -> None:
    controller = running(JOB)
    life = controller.jobs[1].lifecycle
    controller.jobs[1].lifecycle = replace(life, hangs=Hangs(count=MAX_HANGS))
    tell(controller, 100.0, stalled_s=2000.0)
    outputs = review(controller, 200.0)
    assert Requeue(1, 0) not in outputs and "not started again once more" in told(outputs)
    assert told(review(controller, 260.0)) == ""  # said once


def test_a_job_that_may_not_be_requeued_is_not() -> None:
    for job in (replace(JOB, fixed="it may not be requeued (--no-requeue)"), replace(JOB, paused=True)):
        controller = running(job)
        tell(controller, 100.0, stalled_s=2000.0)
        outputs = review(controller, 200.0)
        assert Requeue(1, 0) not in outputs and "it hangs, and is not started again" in told(outputs)


def test_hangs_of_two_users_mark_the_node_and_a_second_hang_elsewhere_clears_it() -> None:
    other = replace(JOB, job_id=2, uid=1001)
    controller = running(JOB, other)
    for job_id in (1, 2):
        tell(controller, 100.0, job_id=job_id, stalled_s=2000.0)
    kept = [o for o in review(controller, 200.0) if isinstance(o, RememberNodes)]
    assert {r.name for o in kept for r in o.records} == {"n1"}
    assert controller.faults.nodes.penalties(200.0)["n1"] > 0.9
    moved = replace(other, restarts=1, node_names=("n2",))
    see(controller, replace(JOB, state=JobState.PENDING, restarts=1, node_names=()), moved, at_s=300.0)
    controller.handle(JobObserved(2, 0.0, Observed("PENDING", 1)), 300.0)
    see(controller, moved, at_s=310.0)
    tell(controller, 310.0, job_id=2, stalled_s=2000.0)
    review(controller, 320.0)
    assert controller.faults.nodes.penalties(320.0) == {}


def again(controller: Controller, at_s: float, *nodes: str) -> None:
    """The job was requeued, and runs on these nodes."""
    restarts = controller.jobs[1].lifecycle.incarnation + 1
    controller.handle(JobObserved(1, 0.0, Observed("PENDING", restarts)), at_s)
    see(controller, replace(JOB, restarts=restarts, node_names=nodes), at_s=at_s + 10)


def test_a_stall_after_the_same_step_on_other_nodes_is_the_scripts_own() -> None:
    controller = running(JOB)
    tell(controller, 100.0, stalled_s=2000.0)
    assert Requeue(1, 0) in review(controller, 200.0)
    assert controller.jobs[1].lifecycle.hangs.step == 50
    again(controller, 300.0, "n2")
    tell(controller, 310.0, stalled_s=2000.0)
    outputs = review(controller, 320.0)
    assert Requeue(1, 1) not in outputs and "after step 50 as before: its own script's" in told(outputs)
    life = controller.jobs[1].lifecycle
    assert (life.state, life.hangs.count, life.hangs.pause_s) == (ResizeState.RUNNING, 1, 2000.0)
    assert controller.faults.nodes.records == {}  # its marks are taken back
    tell(controller, 330.0, step=51)
    tell(controller, 9000.0, step=51, stalled_s=4500.0)  # a hang at another step
    assert Requeue(1, 1) in review(controller, 9000.0)


def test_a_stall_after_the_same_step_on_the_same_nodes_is_the_scripts_own_once_it_has_moved() -> None:
    for first, restarts in ((40, False), (50, True)):
        controller = running(JOB)
        tell(controller, 100.0, stalled_s=2000.0)
        review(controller, 200.0)
        again(controller, 300.0, "n1")
        tell(controller, 310.0, step=first)
        tell(controller, 2400.0, stalled_s=2000.0)
        assert (Requeue(1, 1) in review(controller, 2400.0)) is restarts


def test_jobs_that_stall_at_once_are_told_only() -> None:
    jobs = [replace(JOB, job_id=i, name=f"run{i}", uid=1000 + i) for i in range(1, 13)]
    controller = running(*jobs)
    for job_id in range(1, 13):
        tell(controller, 100.0, job_id=job_id, stalled_s={1: 2000.0, 2: 60.0, 3: 60.0}.get(job_id))
    outputs = review(controller, 100.0)
    assert Requeue(1, 0) not in outputs and "other jobs stall too" in told(outputs)
    assert controller.faults.nodes.records == {}
    tell(controller, 110.0, step=51, job_id=2)  # two of them: no outage
    assert Requeue(1, 0) in review(controller, 120.0)


def test_how_many_stall_at_once() -> None:
    well, stalls = Report(1, 0, 5, plan=PLAN), Report(1, 0, 5, plan=PLAN, stalled_s=60.0)
    assert is_common_stall([stalls] * 3) and is_common_stall([stalls] * 3 + [well] * 9)
    assert not is_common_stall([stalls] * 2) and not is_common_stall([stalls] * 3 + [well] * 10)
    assert not is_common_stall([])


def test_a_job_that_was_suspended_is_given_its_time() -> None:
    controller = running(JOB)
    tell(controller, 100.0)
    see(controller, replace(JOB, state=JobState.SUSPENDED), at_s=5000.0)
    review(controller, 5000.0)
    controller.handle(ClockSet(100.0), 5100.0)
    see(controller, JOB, at_s=5110.0)
    tell(controller, 5110.0, stalled_s=5000.0)
    assert Requeue(1, 0) not in review(controller, 6890.0)
    see(controller, JOB, at_s=6910.0)
    assert Requeue(1, 0) not in review(controller, 5100.0 + TIMES.idle_s - 1)
    assert Requeue(1, 0) in review(controller, 5100.0 + TIMES.idle_s)


def test_a_job_left_to_slurm_or_fixed_by_its_reservation_is_told_only() -> None:
    for left, job in (
        ("Resources", JOB),
        ("", replace(JOB, reservation="night", fixed="it is in the reservation night")),
    ):
        controller = running(JOB)
        see(controller, job)
        controller.jobs[1].form = ""
        controller.jobs[1].lifecycle = replace(controller.jobs[1].lifecycle, left_to_slurm_reason=left)
        tell(controller, 100.0, stalled_s=2000.0)
        outputs = review(controller, 200.0)
        assert Requeue(1, 0) not in outputs and "it hangs, and is not started again" in told(outputs)


# -- slow nodes ------------------------------------------------------------------------------------------------------------


def test_slow_nodes_of_two_users_get_a_penalty_and_are_drained_where_that_is_wanted() -> None:
    controller = running(WIDE, replace(WIDE, job_id=2, uid=1001))
    tell(controller, 100.0, slow_nodes=("n2",), slow_times=(1.5,))
    assert controller.faults.nodes.penalties(100.0) == {}
    outputs = tell(controller, 110.0, job_id=2, slow_nodes=("n2", "n9"), slow_times=(1.5, 2.0))
    assert controller.faults.nodes.penalties(110.0).keys() == {"n2"}
    assert any(isinstance(o, RememberNodes) for o in outputs)
    assert not any(isinstance(o, DrainNode) for o in review(controller, 120.0))
    assert [o.name for o in review(controller, 120.0, drains=True) if isinstance(o, DrainNode)] == ["n2"]


def test_a_job_with_a_straggler_takes_that_node_last() -> None:
    controller = running(WIDE)
    tell(controller, 100.0, slow_nodes=("n2",), slow_times=(1.5,))
    job = controller.decidable_job(WIDE, 110.0)
    assert (job.shun, job.slowed) == (("n2",), 1.5)
    # of a launcher before this one, which does not say how slow
    tell(controller, 120.0, slow_nodes=("n2",))
    assert controller.decidable_job(WIDE, 130.0).slowed == 1.2
    # a report of an incarnation before, or of nodes that it does not hold
    assert controller.decidable_job(replace(WIDE, restarts=1), 130.0).shun == ()
    assert controller.decidable_job(replace(WIDE, node_names=("n1", "n3")), 130.0).shun == ()


def test_a_job_alone_on_a_node_is_compared_with_runs_like_it() -> None:
    like = replace(JOB, job_id=2, name="gpt-8", node_names=("n2",))
    controller = running(JOB, like)
    for job_id, step_s in ((1, 1.0), (2, 1.4)):
        tell(controller, 100.0, step=0, job_id=job_id, step_s=step_s)
        tell(controller, 200.0, step=60, job_id=job_id, step_s=step_s)
    assert [m.uid for m in controller.faults.nodes.records["n2"].marks] == [1000]


def test_a_node_that_slurm_lost_under_a_job_is_marked() -> None:
    controller = running(JOB)
    controller.handle(JobObserved(1, 0.0, Observed("PENDING", 1)), 200.0)
    outputs = controller.handle(NodesRead(frozenset({"n2", "n3"})), 200.0)
    assert any(isinstance(o, RememberNodes) for o in outputs)
    assert controller.faults.nodes.penalties(200.0) == {"n1": 0.5}


# -- jobs that do nothing --------------------------------------------------------------------------------------------------


def silent(controller: Controller, at_s: float, idle_s: float | None) -> list[Output]:
    return controller.handle(ReportsReceived((Report(1, 0, 0, idle_s=idle_s, silent=True),), 0), at_s)


def test_a_job_that_does_nothing_is_told_and_goes_on_smaller() -> None:
    controller = running(JOB)
    controller.jobs[1].smallest = Target(Shape("a100", 1, 1), (), Plan(global_batch=8))
    assert not any(o.story for o in silent(controller, 400.0, 300.0) if isinstance(o, Remember))
    assert silent(controller, 400.0, 300.0) == []
    assert controller.reports == {}  # nobody could be asked for a checkpoint
    outputs = review(controller, 400.0)
    assert "its GPUs do nothing" in told(outputs)
    assert controller.decidable_job(JOB, 400.0).idle_s == 300.0
    assert told(review(controller, 460.0)) == ""
    outputs = review(controller, 3800.0)
    assert AskCheckpoint(1, 0) in outputs and "its GPUs did nothing" in told(outputs)
    target = controller.jobs[1].lifecycle.target
    assert target is not None and target.shape.gpus == 1


def test_one_that_can_not_leave_its_size_keeps_it() -> None:
    controller = running(JOB)
    controller.jobs[1].smallest = Target(Shape("a100", 1, 1), (), Plan(global_batch=8))
    controller.jobs[1].profile = Profile(accepts=Accepts(own_size=True))
    silent(controller, 4000.0, 3900.0)
    outputs = review(controller, 4000.0)
    assert AskCheckpoint(1, 0) not in outputs and "its GPUs do nothing" in told(outputs)


def test_a_job_that_has_worked_is_not_taken_for_one_that_never_did() -> None:
    controller = running(JOB)
    controller.jobs[1].smallest = Target(Shape("a100", 1, 1))
    silent(controller, 10_000.0, 4000.0)  # 6000 s of CPU time before: it may be done
    outputs = review(controller, 10_000.0)
    assert AskCheckpoint(1, 0) not in outputs and "its GPUs do nothing" in told(outputs)
    tell(controller, 10_010.0, step=10)  # it makes steps
    assert controller.decidable_job(JOB, 10_020.0).idle_s is None
    assert "its GPUs do nothing" not in told(review(controller, 10_020.0))


def idle_after_steps(**values: Any) -> tuple[Controller, list[Output]]:
    """A job that has made steps, and does nothing since; the outputs of its review after IdleReclaim."""
    controller = running(JOB)
    controller.jobs[1].smallest = Target(Shape("a100", 1, 1), (), Plan(global_batch=8))
    tell(controller, 400.0, step=10, step_s=1.0)
    tell(controller, 1000.0, step=10, step_s=1.0, idle_s=300.0, **values)
    assert review(controller, 1000.0) != []
    return controller, review(controller, 1000.0 + TIMES.idle_s)


def test_a_job_that_stops_stepping_is_told_and_goes_on_smaller_from_its_checkpoint() -> None:
    controller = running(JOB)
    tell(controller, 400.0, step=10, step_s=1.0)
    assert controller.decidable_job(JOB, 400.0).idle_s is None
    tell(controller, 1000.0, step=10, step_s=1.0, idle_s=300.0)
    outputs = review(controller, 1000.0)
    assert "no step since step 10: its GPUs do nothing" in told(outputs)
    (step,) = [o for o in outputs if isinstance(o, Remember) and o.event == "Warning"]
    notice = make_notice(step, JOB, 1000.0)
    assert notice is not None and (notice.event, notice.text) == ("idle", step.story[0])
    assert told(review(controller, 1060.0)) == "", "once"
    controller, outputs = idle_after_steps(checkpoint_step=5)
    assert AskCheckpoint(1, 0) in outputs and "its GPUs did nothing" in told(outputs)
    tell(controller, 5000.0, step=11, step_s=1.0)
    assert controller.decidable_job(JOB, 5000.0).idle_s is None


def test_a_job_that_stops_stepping_without_a_checkpoint_keeps_its_size() -> None:
    _, outputs = idle_after_steps()
    assert AskCheckpoint(1, 0) not in outputs


def test_a_job_whose_training_is_over_keeps_its_size() -> None:
    _, outputs = idle_after_steps(checkpoint_step=10, ended=True)
    assert AskCheckpoint(1, 0) not in outputs


def test_a_job_of_its_smallest_size_keeps_it() -> None:
    controller = running(JOB)
    controller.jobs[1].smallest = Target(HAS)
    silent(controller, 4000.0, 3900.0)
    assert AskCheckpoint(1, 0) not in review(controller, 4000.0)


def test_the_clock_moves_what_is_watched() -> None:
    controller = running(WIDE, replace(WIDE, job_id=2, uid=1001))
    for job_id in (1, 2):
        tell(controller, 100.0, job_id=job_id, slow_nodes=("n2",))
    controller.handle(ClockSet(86_400.0), 86_500.0)
    assert controller.faults.nodes.penalties(86_500.0)["n2"] > 0.99


# -- causes that launchers find out ----------------------------------------------------------------------------------------

XID_79 = Fault(kind="gpu", node="n1", xid=79, pci_address="0000:3b:00")
NO_LINK = Fault(kind="network", node="n1", adapter="mlx5_0 port 1")


def test_what_ended_a_run_is_told_once() -> None:
    controller = running(JOB)
    disk = Fault(kind="disk", folder="/ckpt", free_bytes=0, node="n1")
    assert "disk full: /ckpt (0.0 GiB free) on n1" in told(tell(controller, 100.0, fault=disk))
    assert "disk full" not in told(tell(controller, 101.0, fault=disk))
    assert "disk full" in told(tell(controller, 102.0, fault=replace(disk, run=1))), "of the next run"


def test_a_run_that_ended_before_its_program_reported_is_told_of_once_too() -> None:
    controller = running(JOB)
    oom = Fault(kind="oom", node="n1")
    assert "out of host memory" in told(tell(controller, 100.0, step=0, silent=True, ended=True, fault=oom))
    assert "out of host memory" not in told(tell(controller, 101.0, fault=oom))


@pytest.mark.parametrize(("fault", "word"), [(XID_79, "GPU failed"), (NO_LINK, "network link lost")])
def test_what_failed_for_two_users_makes_its_node_a_bad_one(fault: Fault, word: str) -> None:
    controller = running(JOB, replace(JOB, job_id=2, uid=1001))
    tell(controller, 100.0, fault=fault)
    assert controller.faults.nodes.penalties(100.0) == {}, "one user's word"
    tell(controller, 101.0, job_id=2, fault=fault)
    assert set(controller.faults.nodes.penalties(101.0)) == {"n1"}
    assert controller.faults.nodes.records["n1"].format_reasons(101.0) == f"{word} under jobs 1, 2"


def test_a_job_marks_no_node_that_it_does_not_have_and_none_for_its_own_faults() -> None:
    controller = running(JOB)
    tell(controller, 100.0, fault=replace(XID_79, node="n3"))
    tell(controller, 101.0, fault=Fault(kind="oom", node="n1"))
    assert controller.faults.nodes.records == {}


def test_the_node_of_a_failed_gpu_is_taken_last_by_the_jobs_next_incarnation() -> None:
    controller = running(JOB)
    tell(controller, 100.0, fault=XID_79)
    assert controller.decidable_job(JOB, 110.0).shun == (), "it was started again there"
    waits = replace(JOB, state=JobState.PENDING, restarts=1, node_names=())
    assert controller.decidable_job(waits, 110.0).shun == ("n1",)


# -- loss spikes -----------------------------------------------------------------------------------------------------------

SPIKE = LossSpike(step=95, loss=9.0, usual=2.0)


def test_a_loss_spike_is_in_the_story_once_it_is_known_what_follows() -> None:
    controller = running(JOB)
    assert "loss" not in told(tell(controller, 100.0, step=95, spike=SPIKE)), "it may be an odd step"
    goes_on = replace(SPIKE, answer="not-allowed")
    assert "no skip_spikes=yes" in told(tell(controller, 101.0, step=105, spike=goes_on))
    assert "loss" not in told(tell(controller, 102.0, step=106, spike=goes_on))


def test_a_loss_spike_that_ended_a_run_is_told_as_its_fault_alone() -> None:
    controller = running(JOB)
    skipped = replace(SPIKE, answer="skipped", checkpoint_step=40, first_example=1, last_example=9)
    outputs = tell(controller, 100.0, step=41, spike=skipped, fault=Fault(kind="spike", spike=skipped))
    assert told(outputs).count("without examples 1 to 9") == 1
    assert controller.faults.nodes.records == {}, "no node is to blame"


def test_explain_shows_a_recent_loss_spike_by_its_code() -> None:
    (reason,) = loss_reasons(Report(1, 0, 95, spike=SPIKE))
    assert reason_codes((reason,)) == {"loss-spike", "spike-new"}
    (reason,) = loss_reasons(Report(1, 0, 95, spike=replace(SPIKE, loss=None)))
    assert format_reasons((reason,)).startswith("The loss is not a number from step 95 on; ")
    assert loss_reasons(Report(1, 0, 95 + SPIKE_WINDOW, spike=SPIKE)) == () == loss_reasons(Report(1, 0, 95))


# -- checks before a run ---------------------------------------------------------------------------------------------------


def test_a_node_short_in_its_check_is_in_the_jobs_story_and_taken_last_by_its_next_incarnation() -> None:
    nodes = tuple(Node(f"n{i}", "a100", 4) for i in range(1, 6))
    wide = replace(JOB, shape=Shape("a100", 4, 4), node_names=("n1", "n2", "n3", "n4"))
    controller = Controller(TIMES, 60.0, size_changes=SizeChanges(assumed=True))
    controller.handle(JobObserved(1, 0.0, Observed("RUNNING", 0)), 99.0)
    controller.handle(SnapshotTaken(Snapshot(100.0, Cluster(nodes), (wide,)), 60.0), 100.0)
    rates = {"n1": 300e12, "n2": 300e12, "n3": 300e12, "n4": 150e12}
    checks = tuple(
        NodeCheck(node=name, taken_s=1.0, gpus=4, device="A100", gemm_flops=rate, throttled=name == "n4")
        for name, rate in rates.items()
    )
    # the launcher says it before anything trains
    silent = Report(1, 0, 0, silent=True, node_checks=checks)
    outputs = controller.handle(ReportsReceived((silent,), 0), 100.0)
    assert told(outputs) == "n4: matrix products at 50% of the usual under job 1, and its driver has slowed a GPU down"
    assert [r.name for o in outputs if isinstance(o, RememberNodes) for r in o.records] == ["n1", "n2", "n3", "n4"]
    assert told(controller.handle(ReportsReceived((silent,), 0), 110.0)) == ""
    kept = [o for o in tell(controller, 120.0, node_checks=checks) if isinstance(o, KeepReport)]
    assert [o.report and o.report.node_checks for o in kept] == [()]  # the nodes' records have them
    waits = replace(wide, state=JobState.PENDING, restarts=1, node_names=())
    assert controller.decidable_job(waits, 130.0).shun == ("n4",)
    assert controller.decidable_job(wide, 130.0).shun == ()  # it runs on
    assert controller.decidable_job(replace(waits, job_id=2), 130.0).shun == ()
