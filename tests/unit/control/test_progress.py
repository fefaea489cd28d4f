"""What the daemon believes of how far jobs have come."""

from synergyd.control.job_durations import JobDurations
from synergyd.control.progress import attained, progress_of
from synergyd.records import JobState, Report
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
    assert attained({1: 10.0, 2: 5.0, 9: 1.0}, [runs, waits], 3.0) == {1: 22.0, 2: 5.0}
    assert attained({}, [runs], -1.0) == {1: 0.0}


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
