"""What the daemon believes of how far jobs have come."""

from synergyd.control.controller import Controller
from synergyd.control.events import GpuTimeKnown, JobObserved, Observed, SnapshotTaken
from synergyd.control.job_durations import JobDurations
from synergyd.control.lifecycle import ResizeTimes
from synergyd.control.progress import progress_of
from synergyd.job_report import Report
from synergyd.records import Cluster, JobState, Snapshot
from synergyd.scheduler.problem.records import Progress
from tests.unit.scheduler.builders import job


def test_progress_is_what_reports_and_the_clock_tell() -> None:
    jobs = [job(i) for i in (1, 2, 3, 4)]
    reports = {
        1: Report(1, 0, 5, done=100.0, total=300.0),
        2: Report(2, 0, 5, done=100.0),
        3: Report(3, 0, 5, done=100.0, total=50.0),  # makes no sense: how much is left is not known
    }
    odd = progress_of(jobs[:1], {1: Report(1, 0, 5, done=5e-324, total=1e-306)}, {})
    assert odd == {1: Progress(0.0, 0.0, 0.0)}
    assert progress_of(jobs, reports, {1: 7.0}) == {
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


def test_typical_is_the_median_of_those_that_ended_once_they_are_enough() -> None:
    lengths = JobDurations()
    for gpus in (1, 2, 4):
        for ran_s in (10.0, 20.0, 1000.0):
            lengths.ended(ran_s * gpus, gpus)
    lengths.ended(0.0, 4)  # it never ran
    assert lengths.typical_s is None
    lengths.ended(30.0, 1)
    assert lengths.typical_s == 20.0
    for _ in range(300):
        lengths.ended(7.0, 1)
    assert lengths.typical_s == 7.0
