"""Another plan for the GPUs that a job has: its launchers restart it in its allocation, else it is requeued."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from synergy_core.job_report import EarlyFailure, InPlace
from synergy_core.records import Plan
from synergy_core.wire.report import ReportAnswer

from synergyd.control.resize.lifecycle import ResizeState
from synergyd.control.reviews import SHORT_S, review_loss
from tests.unit.daemon.daemon_world import Site

POOR = Plan(pp=2, micro_batch=8, global_batch=256)


@pytest.fixture
def site(tmp_path: Path) -> Site:
    """Job 1 runs with a poor plan, and no other job wants its GPUs."""
    site = Site(tmp_path / "state")
    site.slurm.gpus = {"n1": 2}
    site.running(1, "n1")
    return site


def decided(site: Site, in_place: InPlace | None) -> Plan:
    """The job's next plan; its checkpoint is there."""
    site.report(1, plan=POOR, step_s=9.0, resharding=True, in_place=in_place)
    site.epoch(60)
    target = site.life(1).target
    assert site.life(1).state is ResizeState.CHECKPOINTING and target is not None and target.plan is not None
    site.report(1, plan=POOR, resharding=True, in_place=in_place, checkpoint_requests=1)
    site.tick(1)
    return target.plan


def test_another_plan_for_the_same_gpus_needs_no_requeue(site: Site) -> None:
    plan = decided(site, InPlace())
    assert (site.life(1).state, site.post.answers) == (ResizeState.RESTARTING, {(1, 0): (1000, ReportAnswer(plan, 1))})
    site.report(1, plan=plan, in_place=InPlace(number=1, order=1))
    site.tick(1)
    assert (site.life(1).state, site.life(1).plan, site.post.answers) == (ResizeState.RUNNING, plan, {})
    assert site.slurm.requeued == [] and "restarted in place: 2 a100 GPUs" in site.story(1)
    site.epoch(1)  # what an incarnation finds that Slurm starts by itself
    assert "tp:1,pp:1,dp:2" in site.slurm.comments[1]


def test_a_launcher_that_can_not_is_requeued(site: Site) -> None:
    decided(site, None)
    assert (site.life(1).state, site.post.answers) == (ResizeState.REQUEUING, {})


def test_a_new_plan_that_does_not_report_in_time_is_requeued(site: Site) -> None:
    plan = decided(site, InPlace())
    site.report(1, plan=POOR, in_place=InPlace(), checkpoint_requests=1)  # the old run's
    site.tick(179)
    assert site.life(1).state is ResizeState.RESTARTING
    site.tick(2)
    assert site.slurm.requeued == [(1, 0)] and site.post.answers == {}
    for _ in range(10):
        site.tick(2)
    assert (site.life(1).state, site.life(1).incarnation, site.life(1).plan) == (ResizeState.RUNNING, 1, plan)


def test_the_next_daemon_gives_the_same_order_again(site: Site) -> None:
    plan = decided(site, InPlace())
    site.post.answers = {}
    site.daemon = site.start()
    site.epoch(1)
    site.tick(1)
    assert site.post.answers == {(1, 0): (1000, ReportAnswer(plan, 1))}
    site.report(1, plan=plan, in_place=InPlace(number=1, order=1))
    site.tick(1)
    assert site.life(1).state is ResizeState.RUNNING and site.slurm.requeued == []


def test_a_crash_that_the_launcher_mended_is_told_once(site: Site) -> None:
    for _ in range(2):
        site.report(1, in_place=InPlace(number=1, crashes=1, code=7, step=120))
        site.epoch(60)
    assert site.story(1).count("ended with exit code 7 at step 120: started again in place") == 1


@pytest.mark.parametrize(
    ("crash", "text"),
    [
        (InPlace(code=7, cause="exit", crash_nodes=("n2",)), "ended with exit code 7 on n2 at step 0"),
        (InPlace(code=137, cause="killed", crash_nodes=("n2",)), "ended with exit code 137 (killed) on n2 at step 0"),
        (InPlace(code=137, cause="hang"), "ended with exit code 137 (hang) at step 0"),
        (InPlace(crash_nodes=("n2", "n3"), step=9), "lost n2, n3 at step 9"),
        (InPlace(code=7), "ended with exit code 7 at step 0"),  # of a launcher of 0.2
        (InPlace(), "lost a node at step 0"),
    ],
)
def test_the_cause_of_a_crash_in_words(crash: InPlace, text: str) -> None:
    assert crash.describe_crash() == text


def test_a_job_that_goes_on_without_a_node_that_slurm_keeps_is_restarted_on_all(site: Site) -> None:
    for _ in range(9):
        site.report(1, plan=Plan(micro_batch=8, global_batch=256), in_place=InPlace(number=1, crashes=1, step=120))
        site.epoch(60)
        assert site.life(1).state is ResizeState.RUNNING
    site.report(1, plan=Plan(micro_batch=8, global_batch=256), in_place=InPlace(number=1, crashes=1, step=120))
    site.epoch(120)
    assert site.life(1).state is ResizeState.CHECKPOINTING and not site.life(1).in_place
    assert "it runs on fewer GPUs than it holds" in site.story(1) and "lost a node at step 120" in site.story(1)


def test_what_it_took_is_spent_once_and_is_no_cost_of_a_requeue(site: Site) -> None:
    plan, begun_s = decided(site, InPlace()), site.slurm.now_s - 1
    for step in (11, 31):
        site.report(
            1, plan=plan, step=step, trained_s=step - 10.0, in_place=InPlace(number=1, order=1), first_step_s=1.5
        )
        site.tick(20)
    account = site.life(1).restart_history
    assert (account.under_way, account.chosen) == (None, 1) and 15 < account.lost_s < site.slurm.now_s - begun_s
    assert "a restart took" in site.story(1) and "requeue" not in site.story(1).rpartition("a restart took")[2]
    tracked = site.daemon.controller.jobs[1]
    assert (
        tracked.job is not None and site.daemon.controller.restart_budgets.expected_cost(tracked, tracked.job).own == 0
    )


def test_the_time_of_one_that_was_in_vain_is_spent_once(site: Site) -> None:
    decided(site, InPlace())
    one = site.life(1).restart_history.under_way
    assert one is not None and one.chosen
    site.tick(181)
    assert site.life(1).state is ResizeState.REQUEUING
    account, now_s = site.life(1).restart_history, site.slurm.now_s
    assert account.spent_s(now_s) == now_s - one.begun_s
    assert account.under_way is not None and account.under_way.saved_s == now_s, "its requeue has just begun"


def test_an_order_outlives_a_daemon_that_is_away_for_long(site: Site) -> None:
    plan = decided(site, InPlace())
    site.slurm.pass_time(1000)
    site.start()
    site.epoch(1)
    site.tick(100)
    assert site.life(1).state is ResizeState.RESTARTING and site.slurm.requeued == []
    site.report(1, plan=plan, in_place=InPlace(number=1, order=1))
    site.tick(1)
    assert site.life(1).state is ResizeState.RUNNING


def test_a_job_that_is_suspended_has_its_full_time_afterwards(site: Site) -> None:
    decided(site, InPlace())
    site.slurm.set(1, state="SUSPENDED")
    for _ in range(5):
        site.epoch(60)
        site.tick(1)
    site.slurm.set(1, state="RUNNING")
    site.tick(150)
    assert site.life(1).state is ResizeState.RESTARTING and site.slurm.requeued == []


@pytest.mark.parametrize("told", [None, InPlace(number=1, order=1)])
def test_a_new_plan_that_fails_at_once_is_requeued_with_what_ran(site: Site, told: InPlace | None) -> None:
    plan = decided(site, InPlace())
    failed = EarlyFailure(kind="exit", code=7, number=1, plan=plan)
    site.report(1, step=0, step_s=None, plan=None, failure=failed, in_place=told)
    site.tick(1)
    life = site.life(1)
    assert (life.state, life.returns, site.slurm.requeued) == (ResizeState.REQUEUING, 1, [(1, 0)])
    assert life.target is not None and life.target.plan != plan and site.post.answers == {}


def test_a_run_is_taken_as_begun_before_its_first_word(site: Site) -> None:
    plan = decided(site, InPlace())
    site.report(1, step=0, step_s=None, plan=None, silent=True, in_place=InPlace())
    site.tick(1)
    assert site.life(1).state is ResizeState.RESTARTING, "the old run's launcher"
    site.report(1, step=0, step_s=None, plan=None, silent=True, in_place=InPlace(number=1, order=1))
    site.tick(1)
    assert (site.life(1).state, site.life(1).plan) == (ResizeState.RUNNING, plan)
    assert site.daemon.controller.jobs[1].plan == plan, "no epoch decides by the plan that it had"
    site.epoch(300)
    assert site.life(1).state is ResizeState.RUNNING and site.slurm.requeued == []


@pytest.mark.parametrize("stays", [{}, {"paused": True}, {"form": "it is not requeued"}, {"left": "Reservation"}])
def test_a_job_that_is_to_be_left_alone_is_not_restarted_on_all_its_nodes(site: Site, stays: dict[str, Any]) -> None:
    site.report(1, plan=Plan(micro_batch=8, global_batch=256), in_place=InPlace(number=1, crashes=1, step=120))
    site.epoch(60)
    tracked = site.daemon.controller.jobs[1]
    assert tracked.job is not None
    tracked.job = replace(tracked.job, paused=stays.get("paused", False))
    tracked.lifecycle = replace(tracked.lifecycle, left_to_slurm_reason=stays.get("left", ""))
    tracked.form = stays.get("form", "")
    now_s = site.slurm.now_s
    assert review_loss(tracked, now_s) is None
    assert (review_loss(tracked, now_s + SHORT_S) is None) == bool(stays)
