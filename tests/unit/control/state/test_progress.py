"""What the daemon believes of how far jobs have come."""

import pytest
from synergy_core.job_report import Report
from synergy_core.records import Cluster, Job, JobState, Snapshot

from synergyd.control.controller import Controller
from synergyd.control.resize.events import GpuTimeKnown, JobObserved, Observed, ReportsReceived, SnapshotTaken
from synergyd.control.resize.lifecycle import JobLifecycle, ResizeState, ResizeTimes
from synergyd.control.resize.restart_history import RestartHistory
from synergyd.control.state.progress import JobDurations, compute_progress
from synergyd.control.tracked import KeepReport, Output
from synergyd.scheduler.problem.records import Progress
from tests.unit.scheduler.builders import job


def test_progress_is_what_reports_and_the_clock_tell() -> None:
    jobs = [job(i) for i in (1, 2, 3, 4)]
    reports = {
        1: Report(1, 0, 5, done=100.0, total=300.0),
        2: Report(2, 0, 5, done=100.0),
        3: Report(3, 0, 5, done=100.0, total=50.0),  # makes no sense: how much is left is not known
    }
    odd = compute_progress(jobs[:1], {1: Report(1, 0, 5, done=5e-324, total=1e-306)}, {})
    assert odd == {1: Progress(0.0, 0.0, 0.0)}
    assert compute_progress(jobs, reports, {1: 7.0}) == {
        1: Progress(7.0, 200.0, 100.0),
        2: Progress(0.0, None, 100.0),
        3: Progress(0.0, None, 100.0),
        4: Progress(),
    }


def test_gpu_seconds_add_up_while_a_job_runs() -> None:
    runs, waits = job(1, nodes=("n0",), gpus=4), job(2)
    assert runs.state is JobState.RUNNING and waits.state is JobState.PENDING
    controller = Controller(ResizeTimes(), 60.0)
    for one, gpu_s in ((1, 10.0), (2, 5.0)):
        controller.handle(JobObserved(one, 0.0, Observed("PENDING")), 0.0)
        controller.handle(GpuTimeKnown(one, gpu_s), 0.0)
    for passed_s in (3.0, -1.0):  # a clock set back takes nothing away
        controller.handle(SnapshotTaken(Snapshot(5.0, Cluster(()), (runs, waits)), passed_s), 5.0)
        assert controller.attained_gpu_s == {1: 22.0, 2: 5.0}


def test_a_job_grows_no_older_while_it_may_not_start() -> None:
    controller = Controller(ResizeTimes(), 60.0)
    waits = {1: job(1), 2: job(2, held=True), 3: job(3, reason="Dependency"), 4: job(4, begin_s=1e9)}
    waits[5] = job(5, directive=None, directive_error="its array runs at most 1 task at a time")
    for one in waits:
        controller.handle(JobObserved(one, 0.0, Observed("PENDING")), 0.0)
    for now_s in (60.0, 120.0):
        controller.handle(SnapshotTaken(Snapshot(now_s, Cluster(()), tuple(waits.values())), 60.0), now_s)
    assert controller.ages_s(130.0) == {1: 130.0, 2: 10.0, 3: 10.0, 4: 10.0, 5: 10.0}


def test_what_is_kept_back_as_a_daemon_starts_was_so_before() -> None:
    controller = Controller(ResizeTimes(), 60.0)
    waits = {
        1: job(1),
        2: job(2, held=True),
        3: job(3, held=True, restarts=1),
    }  # the last one has run, and is resized maybe
    controller.restore([JobLifecycle(one, 0.0) for one in waits], {}, {}, now_s=5000.0)
    for now_s, passed_s in ((5000.0, 0.0), (5060.0, 60.0)):
        controller.handle(SnapshotTaken(Snapshot(now_s, Cluster(()), tuple(waits.values())), passed_s), now_s)
    assert controller.ages_s(5070.0) == {1: 5070.0, 2: 10.0, 3: 5010.0}


def test_typical_is_the_median_of_those_that_ended_once_they_are_enough() -> None:
    lengths = JobDurations()
    for gpus in (1, 2, 4):
        for ran_s in (10.0, 20.0, 1000.0):
            lengths.add(ran_s * gpus, gpus)
    lengths.add(0.0, 4)  # it never ran
    assert lengths.typical_s is None
    lengths.add(30.0, 1)
    assert lengths.typical_s == 20.0
    for _ in range(300):
        lengths.add(7.0, 1)
    assert lengths.typical_s == 7.0


def ended(controller: Controller, made: Job, gpu_s: float, report: Report | None) -> list[Output]:
    """What the controller puts out as the job leaves after so many GPU seconds."""
    controller.handle(JobObserved(made.job_id, 0.0, Observed("PENDING")), 0.0)
    controller.handle(SnapshotTaken(Snapshot(5.0, Cluster(()), (made,)), 0.0), 5.0)
    if report is not None:
        controller.handle(ReportsReceived((report,), 0, None), 5.0)
    controller.jobs[made.job_id].attained_gpu_s = gpu_s
    return controller.handle(JobObserved(made.job_id, 0.0, Observed("GONE")), 9.0)


def test_a_job_that_does_not_tell_its_length_teaches_it_by_its_end() -> None:
    controller, waits = Controller(ResizeTimes(), 60.0), job(9)
    told = Report(1, 0, 5, done=100.0, total=300.0)
    # one that tells, one that never reported, one that never trained, and one that ended before its first step
    runs = (job(1), 500.0, told), (job(2), 500.0, None), (job(3), 0.0, Report(3, 0, 5)), (job(5), 9.0, Report(5, 0, 0))
    for made, gpu_s, report in runs:
        assert not [o for o in ended(controller, made, gpu_s, report) if isinstance(o, KeepReport)]
    assert controller.progress([waits])[9].likely_gpu_s is None
    [learnt] = [o for o in ended(controller, job(4), 500.0, Report(4, 0, 5)) if isinstance(o, KeepReport)]
    assert learnt.report is None and [p.samples for p in learnt.profiles.values()] == [1]
    likely = controller.progress([waits])[9].likely_gpu_s
    after = Controller(ResizeTimes(), 60.0)  # the next daemon
    after.lengths.load(learnt.profiles)
    assert likely is not None and after.progress([waits])[9].likely_gpu_s == pytest.approx(likely, rel=0.1)


def test_what_a_job_had_before_this_daemon_is_taken_from_its_first_start() -> None:
    runs = job(1, nodes=("n0",), gpus=4)
    life = JobLifecycle(1, 0.0, state=ResizeState.RUNNING, restart_history=RestartHistory(first_s=100.0))
    controller = Controller(ResizeTimes(), 60.0)
    controller.restore([life], {}, {}, now_s=400.0)
    for now_s, passed_s in ((401.0, 0.0), (411.0, 10.0)):
        controller.handle(SnapshotTaken(Snapshot(now_s, Cluster(()), (runs,)), passed_s), now_s)
    assert controller.attained_gpu_s == {1: 4 * 310.0}
    controller.adopt_stored_state()
    controller.restore([life], {}, {}, now_s=411.0)
    controller.handle(SnapshotTaken(Snapshot(421.0, Cluster(()), (runs,)), 10.0), 421.0)
    assert controller.attained_gpu_s == {1: 4 * 320.0}, "what it has seen itself counts once"
