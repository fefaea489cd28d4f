"""Which steps of a job's lifecycle are notices, and when a deadline is out of reach."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest
from synergy_core.records import Cell, Directive, Job, JobState, Plan, Shape

from synergyd.control.controller import Controller
from synergyd.control.notices import DEADLINE, deadline_obstacle, late_deadlines, make_notice
from synergyd.control.resize.lifecycle import JobLifecycle, ResizeState, make_resize_times
from synergyd.control.tracked import Remember, TrackedJob
from synergyd.scheduler.problem.records import Progress
from synergyd.settings import Settings

CELL = Cell(Shape("a100", 1, 4), Plan(dp=4), 10.0, 0.5, 5.0, 1.0, 1)


def step(event: str, was: str, state: str, *story: str, **life: object) -> Remember:
    now = JobLifecycle(7, 1000.0, state=ResizeState[state], incarnation=1, cause="8 GPUs -> 4 GPUs", **life)  # type: ignore[arg-type]
    return Remember(now, ResizeState[was], event, story)


@pytest.mark.parametrize(
    ("remembered", "event"),
    [
        (step("Observed", "RELEASED", "RUNNING", "started with its new size"), "resize"),
        (step("RestartedInPlace", "RESTARTING", "RUNNING", "restarted in place"), "resize"),
        (step("Observed", "QUEUED", "RUNNING", "started by Slurm as a plain job"), None),
        (step("Observed", "RELEASED", "QUEUED", "requeued"), None),
        (step("Preempted", "RUNNING", "CHECKPOINTING", "preemption decided"), "hold"),
        (
            step(
                "Observed",
                "QUEUED",
                "QUEUED",
                "its start failed, as 3 before: held by Slurm until `scontrol release 7`",
            ),
            "hold",
        ),
        (step("Failed", "RUNNING", "RUNNING", "its plan (tp 2) failed within its first steps (NCCL error)"), "ban"),
        (step("Failed", "RUNNING", "RUNNING", "failed within its first steps under its own arguments"), None),
        (step("Ran", "RUNNING", "RUNNING"), None),
        (step(DEADLINE, "RUNNING", "RUNNING", "its deadline can't be met"), None),  # nothing is known of the job
    ],
)
def test_steps_that_are_notices(remembered: Remember, event: str | None) -> None:
    found = make_notice(remembered, None, 2000.0)
    assert (found.event if found else None) == event
    if found:
        again = make_notice(remembered, None, 9000.0)
        assert again is not None and again.key == found.key, "a daemon that comes back makes the same of it"


def test_the_first_start_is_no_resize() -> None:
    life = JobLifecycle(7, 1000.0, state=ResizeState.RUNNING)
    assert make_notice(Remember(life, ResizeState.RELEASED, "Observed", ("started",)), None, 2.0) is None


def test_a_deadline_is_out_of_reach_where_the_best_size_takes_longer() -> None:
    assert deadline_obstacle(1000.0, None, (), 1000.0) == "its deadline can't be met: it has passed"
    assert deadline_obstacle(1000.0, 0.0, (), 1000.0) == ""  # it is done
    assert deadline_obstacle(1000.0, 500.0, (CELL,), 900.0) == ""
    assert "takes 101 s on the best of its sizes, and the deadline is in 100 s" in deadline_obstacle(
        1000.0, 505.0, (CELL,), 900.0
    )
    assert deadline_obstacle(1000.0, None, (CELL,), 900.0) == deadline_obstacle(1000.0, 505.0, (), 900.0) == ""


def test_what_deadlines_cost_grows_as_their_number(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    real = Controller.progress

    def progress(self: Controller, jobs: Iterable[Job]) -> dict[int, Progress]:
        found = real(self, jobs)
        asked.append(len(found))
        return found

    monkeypatch.setattr(Controller, "progress", progress)
    controller = Controller(make_resize_times(Settings()), 60.0)
    shape, directive = Shape("a100", 1, 1), Directive(deadline_s=500.0)
    for i in (1, 2, 3):
        job = Job(i, "j", "u", 1, "gpu", JobState.RUNNING, "", 0.0, 0.0, None, 0, shape=shape, asked=shape)
        controller.jobs[i] = TrackedJob(
            lifecycle=JobLifecycle(i, 0.0), job=replace(job, directive=directive if i < 3 else None)
        )
    assert [late.lifecycle.job_id for late in late_deadlines(controller, {}, 1000.0)] == [1, 2]
    assert list(late_deadlines(controller, {}, 1001.0)) == [], "once a deadline"
    again = Controller(make_resize_times(Settings()), 60.0)
    again.restore([t.lifecycle for t in controller.jobs.values()], {}, {}, 1002.0)
    for i, tracked in controller.jobs.items():
        again.jobs[i].job = tracked.job
    assert list(late_deadlines(again, {}, 1003.0)) == [], "nor by the next daemon"
    assert asked == [2]
