"""Another plan for the GPUs that a job has: its launchers restart it in its allocation, else it is requeued."""

from __future__ import annotations

from pathlib import Path

import pytest

from synergyd.control.lifecycle import ResizeState
from synergyd.records import InPlace, Plan
from synergyd.wire.report import Told
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
    assert (site.life(1).state, site.post.answers) == (ResizeState.RESTARTING, {(1, 0): (1000, Told(plan, 1))})
    site.report(1, plan=plan, in_place=InPlace(number=1, order=1))
    site.tick(1)
    assert (site.life(1).state, site.life(1).plan, site.post.answers) == (ResizeState.RUNNING, plan, {})
    assert site.slurm.requeued == [] and "restarted in place: 2 a100 GPUs" in site.story(1)
    # what an incarnation finds that Slurm starts by itself
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
    assert (site.life(1).state, site.life(1).restarts, site.life(1).plan) == (ResizeState.RUNNING, 1, plan)


def test_the_next_daemon_gives_the_same_order_again(site: Site) -> None:
    plan = decided(site, InPlace())
    site.post.answers = {}
    site.daemon = site.start()
    site.epoch(1)
    site.tick(1)
    assert site.post.answers == {(1, 0): (1000, Told(plan, 1))}
    site.report(1, plan=plan, in_place=InPlace(number=1, order=1))
    site.tick(1)
    assert site.life(1).state is ResizeState.RUNNING and site.slurm.requeued == []


def test_a_crash_that_the_launcher_mended_is_told_once(site: Site) -> None:
    for _ in range(2):
        site.report(1, in_place=InPlace(number=1, crashes=1, code=7, step=120))
        site.epoch(60)
    assert site.story(1).count("ended with exit code 7 at step 120: started again in place") == 1


def test_a_job_that_goes_on_without_a_node_that_slurm_keeps_is_restarted_on_all(site: Site) -> None:
    for _ in range(9):
        site.report(1, plan=Plan(micro_batch=8, global_batch=256), in_place=InPlace(number=1, crashes=1, step=120))
        site.epoch(60)
        assert site.life(1).state is ResizeState.RUNNING
    site.report(1, plan=Plan(micro_batch=8, global_batch=256), in_place=InPlace(number=1, crashes=1, step=120))
    site.epoch(120)
    assert site.life(1).state is ResizeState.CHECKPOINTING and not site.life(1).stays
    assert "it runs on fewer GPUs than it holds" in site.story(1) and "lost a node at step 120" in site.story(1)
