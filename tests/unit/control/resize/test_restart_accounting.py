"""What a restart took, phase by phase, and which restarts count as Synergy's choice."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from synergy_core.job_report import Report
from synergy_core.reasons import text_reason
from synergy_core.records import (
    Action,
    Cell,
    Cluster,
    Decision,
    Directive,
    Job,
    JobState,
    Node,
    Plan,
    Profile,
    Shape,
    Snapshot,
)

from synergyd.control.controller import Controller
from synergyd.control.resize.events import (
    CarriedOut,
    ClockSet,
    ControlEvent,
    InstructionAnswered,
    JobDecided,
    JobObserved,
    NodesRead,
    Observed,
    ReportsReceived,
    SnapshotTaken,
)
from synergyd.control.resize.instructions import AskCheckpoint, Release, Update
from synergyd.control.resize.lifecycle import ResizeState, ResizeTimes
from synergyd.control.tracked import KeepReport, Output, Remember

TIMES = ResizeTimes(checkpoint_timeout_s=30.0, restart_delay_s=0.0, restart_cost_s=60.0)
SMALL, LARGE = Plan(dp=2, global_batch=8), Plan(dp=4, global_batch=8)
HELD = Shape("a100", 1, 2)
JOB = Job(
    1, "llama", "ann", 1000, "main", JobState.RUNNING, "", 0.0, 100.0, None, 0, HELD, HELD,
    directive=Directive(checkpoint="/scratch/run"), node_names=("n1",),
)  # fmt: skip
GROWS = Decision(
    1, Action.RESIZE, Cell(Shape("a100", 1, 4), LARGE, 1.0, 1.0, 1.0, 1.0, 0), ("n1",), text_reason("grows")
)


class Site:
    """One job and what its controller is told of it."""

    def __init__(self) -> None:
        self.controller = Controller(TIMES, 15.0)
        self.told: list[str] = []
        self.stored: dict[str, Profile] = {}

    def at(self, now_s: float, *events: ControlEvent) -> list[Output]:
        outputs = [o for event in events for o in self.controller.handle(event, now_s)]
        for output in outputs:
            if isinstance(output, Remember):
                self.told += output.story
            elif isinstance(output, KeepReport):
                self.stored |= output.profiles
        assert not self.controller.validate()
        return outputs

    def seen(self, now_s: float, state: str, restarts: int = 0, started_s: float | None = None) -> None:
        observed = Observed(state, restarts, started_s=started_s)
        self.at(now_s, JobObserved(1, 0.0, observed))
        job = replace(JOB, state=JobState[state], restarts=restarts, node_names=("n1",) if state == "RUNNING" else ())
        cluster = Cluster((Node("n1", "a100", 4, 2 if state == "RUNNING" else 0),))
        self.at(now_s, SnapshotTaken(Snapshot(now_s, cluster, (job,), {}), 0.0))

    def reports(self, now_s: float, restarts: int = 0, **said: Any) -> None:
        self.at(
            now_s,
            ReportsReceived((Report(1, restarts, step=said.pop("step", 5), plan=SMALL, **said),), restarts),
        )

    def grows(self, now_s: float) -> None:
        self.at(now_s, JobDecided(GROWS))
        assert self.state is ResizeState.CHECKPOINTING
        self.at(now_s, InstructionAnswered(CarriedOut(AskCheckpoint(1, self.life.incarnation))))

    def comes_back(self, now_s: float, started_s: float, restarts: int = 1) -> None:
        self.seen(now_s, "PENDING", restarts)
        target = self.life.target
        assert target is not None
        self.at(
            now_s,
            InstructionAnswered(CarriedOut(Update(1, target, TIMES.park_s))),
            InstructionAnswered(CarriedOut(Release(1))),
        )
        self.seen(started_s + 1.5, "RUNNING", restarts, started_s)

    @property
    def life(self) -> Any:
        return self.controller.jobs[1].lifecycle

    @property
    def state(self) -> ResizeState:
        return self.life.state  # type: ignore[no-any-return]

    @property
    def known(self) -> Any:
        (profile,) = [p for key, p in self.stored.items() if key.startswith("restart:")]
        return profile.restarts


@pytest.fixture
def site() -> Site:
    """A job that runs since 100 s, and has reported its first steps."""
    made = Site()
    made.seen(101.0, "RUNNING", 0, 100.0)
    made.reports(130.0, step_s=1.0, trained_s=10.0, first_step_s=3.0)
    return made


def test_a_first_start_is_measured_and_no_restart(site: Site) -> None:
    (first,) = site.known
    assert (first.restarts, first.checkpoint_s, first.requeue_s, first.start_s) == (0, None, None, 30 - 10 + 2)
    account = site.life.restart_history
    assert (account.first_s, account.lost_s, account.chosen, account.under_way) == (100.0, 0.0, 0, None)
    assert not [line for line in site.told if "restart took" in line]


def test_each_phase_of_a_resize_is_measured(site: Site) -> None:
    site.grows(1000.0)
    # asked at 1000, the step goes on for 3 s, then 9 s of checkpoint
    site.reports(1012.0, checkpoint_requests=1, checkpoint_s=9.0, checkpoint_bytes=8_000, step_s=1.0, trained_s=900.0)
    site.comes_back(1014.0, started_s=1016.0)
    site.reports(1030.0, restarts=1)  # it has not trained yet
    assert len(site.known) == 1
    site.reports(1070.0, 1, step_s=1.0, trained_s=14.0, first_step_s=7.0)
    restart = site.known[-1]
    assert (restart.checkpoint_s, restart.requeue_s, restart.start_s) == (9.0, 4.0, 1070 - 14 - 1016 + 6)
    assert restart.bytes_per_writer == 4_000
    assert site.life.restart_history.lost_s == 9 + 4 + 46 and site.life.restart_history.chosen == 1
    assert site.told[-1] == "a restart took 59.0 s: checkpoint 9.0 s, requeue 4.0 s, start 46.0 s"
    site.reports(1080.0, 1, step_s=1.0, trained_s=24.0, first_step_s=7.0)
    assert len(site.known) == 2 and site.life.restart_history.lost_s == 59
    found = site.controller.restart_budgets.compute([JOB], site.controller.jobs, 1100.0)[1]
    assert (found.cost.own, found.lost_s, found.life_s) == (1, 59.0, 1000.0)


def test_an_agent_that_does_not_tell_is_measured_by_events_and_steps(site: Site) -> None:
    site.grows(1000.0)
    site.reports(1012.0, checkpoint_requests=1)
    site.comes_back(1014.0, started_s=1016.0)
    site.reports(1050.0, 1, step=900)
    site.reports(1056.0, 1, step=904, step_s=1.5)
    restart = site.known[-1]
    # of 1016 to 1056 it trained 4 steps of which it was heard
    assert (restart.checkpoint_s, restart.requeue_s) == (12.0, 4.0) and 34 <= restart.start_s <= 40


def test_a_node_failure_is_measured_and_not_chosen(site: Site) -> None:
    site.seen(1000.0, "PENDING", 1)
    site.seen(1501.0, "RUNNING", 1, 1500.0)
    site.reports(1540.0, 1, step_s=1.0, trained_s=10.0)
    assert (site.known[-1].requeue_s, site.known[-1].start_s) == (None, 30.0)  # how long it waited is no cost
    assert (site.life.restart_history.lost_s, site.life.restart_history.chosen) == (0.0, 0)


def test_a_resize_that_is_given_up_costs_what_it_took(site: Site) -> None:
    site.grows(1000.0)
    site.at(1000.5, NodesRead(frozenset()))  # its target's node is away
    assert site.state is ResizeState.RUNNING
    assert site.life.restart_history.lost_s == 0.5 and site.life.restart_history.under_way is None


def test_one_that_is_under_way_counts_so_far(site: Site) -> None:
    site.grows(1000.0)
    site.reports(1012.0, checkpoint_requests=1, checkpoint_s=9.0)
    site.comes_back(1014.0, started_s=1016.0)
    assert site.controller.restart_budgets.compute([JOB], site.controller.jobs, 1046.0)[1].lost_s == 46.0
    site.seen(1100.0, "PENDING", 2)  # its node fails before it has trained
    assert site.life.restart_history.lost_s == 100.0


def test_a_clock_that_is_set_changes_no_duration(site: Site) -> None:
    site.grows(1000.0)
    site.at(4600.0, ClockSet(3600.0))
    site.reports(4612.0, checkpoint_requests=1)
    site.comes_back(4614.0, started_s=4616.0)
    site.reports(4650.0, 1, step_s=1.0, trained_s=14.0, first_step_s=1.0)
    restart = site.known[-1]
    assert (restart.checkpoint_s, restart.requeue_s, restart.start_s) == (12.0, 4.0, 20.0)
    assert site.controller.restart_budgets.compute([JOB], site.controller.jobs, 4700.0)[1].life_s == 1000.0


def test_known_checkpoints_are_asked_for_later_before_the_end(site: Site) -> None:
    tracked = site.controller.jobs[1]
    assert site.controller.restart_budgets.lead_s(tracked) == TIMES.lead_s
    at_s = 1000.0
    for number in range(1, 5):
        site.grows(at_s)
        site.reports(at_s + 2, number - 1, checkpoint_requests=1, checkpoint_s=2.0, step_s=1.0, trained_s=9.0)
        site.comes_back(at_s + 4, at_s + 5, number)
        site.reports(at_s + 40, number, step_s=1.0, trained_s=10.0, first_step_s=1.0)
        at_s += 1000
    assert 30 + 4 < site.controller.restart_budgets.lead_s(tracked) < 60
