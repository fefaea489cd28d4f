"""A running job gets a node without a requeue, where its launchers can bring it in; else by a requeue, or not yet."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from synergy_core.job_report import InPlace
from synergy_core.records import Plan
from synergy_core.wire.expander import expander_name
from synergy_core.wire.report import ReportAnswer

from synergyd.control.resize.lifecycle import ResizeState
from tests.unit.daemon.daemon_world import Site
from tests.unit.slurm.fake_slurm import row

NARROW = Plan(dp=2, micro_batch=8, global_batch=256)
ABLE = InPlace(live=True, grows=True)
BUSY = "Unable to allocate resources: Requested nodes are busy"


@pytest.fixture
def site(tmp_path: Path) -> Site:
    """Job 1 runs on one node of two GPUs; another such node is free."""
    site = Site(tmp_path / "state")
    site.slurm.gpus = {"n1": 2, "n2": 2}
    site.running(1, "n1")
    return site


def grown(site: Site, in_place: InPlace = ABLE) -> None:
    """Let reports come until job 1's growth is decided."""
    for _ in range(10):
        site.report(1, plan=NARROW, resharding=True, in_place=in_place)
        site.epoch(60)
        if site.life(1).state is not ResizeState.RUNNING:
            return


def expander(site: Site, **changes: object) -> None:
    """An allocation on n2 beside job 1's own."""
    made = row(50, name=expander_name(1, 0, 1), state="RUNNING", node_names=("n2",), num_nodes=1, batch=False)
    site.slurm.jobs[50] = replace(made, **changes)  # type: ignore[arg-type]


def test_a_node_joins_while_the_job_trains(site: Site) -> None:
    grown(site)
    life = site.life(1)
    assert (life.state, life.joined_nodes) == (ResizeState.JOINING, ("n2",))
    plan = life.target.plan if life.target else None
    assert plan is not None and site.post.answers == {
        (1, 0): (1000, ReportAnswer(plan, 1, nodes=("n1", "n2"), joins=True))
    }
    assert site.slurm.signals == [], "no checkpoint before the node is there"
    expander(site)
    site.report(1, plan=NARROW, resharding=True, in_place=replace(ABLE, joined=1))
    site.tick(1)
    assert site.life(1).state is ResizeState.CHECKPOINTING
    site.report(1, plan=NARROW, resharding=True, in_place=replace(ABLE, joined=1), checkpoint_requests=1)
    site.tick(1)
    assert site.post.answers == {(1, 0): (1000, ReportAnswer(plan, 2, nodes=("n1", "n2")))}
    site.report(1, plan=plan, in_place=replace(ABLE, joined=1, order=2, number=1))
    site.tick(1)
    assert site.life(1).state is ResizeState.RUNNING and "resized live" in site.story(1)
    site.epoch(60)
    job = site.daemon.controller.jobs[1].job
    assert job is not None and (job.shape.nodes, job.node_names) == (2, ("n1", "n2")), "one job of two nodes"
    assert 50 not in site.daemon.controller.jobs and site.slurm.requeued == []


def test_nodes_that_can_not_be_had_cost_nothing(site: Site) -> None:
    grown(site)
    site.report(1, plan=NARROW, resharding=True, in_place=replace(ABLE, joined=1, join_refusal=BUSY))
    site.tick(1)
    life = site.life(1)
    assert (life.state, life.target, life.joined_nodes, life.join_refusal) == (ResizeState.RUNNING, None, (), "")
    assert BUSY in site.story(1) and site.slurm.signals == [] and site.slurm.requeued == []
    grown(site, replace(ABLE, joined=1, join_refusal=BUSY))
    assert site.life(1).state is ResizeState.JOINING, "it may have been a race for the node"
    site.report(1, plan=NARROW, resharding=True, in_place=replace(ABLE, joined=2, join_refusal=BUSY))
    site.tick(1)
    assert site.life(1).join_refusal == BUSY and site.slurm.requeued == []
    grown(site, replace(ABLE, joined=2, join_refusal=BUSY))
    assert site.life(1).state is ResizeState.CHECKPOINTING and not site.life(1).in_place, "next time by a requeue"


def test_nodes_that_were_granted_and_did_not_join_are_not_asked_for_again_at_once(site: Site) -> None:
    grown(site)
    refused = replace(ABLE, joined=1, join_refusal="n2 did not join in time", join_granted=True)
    site.report(1, plan=NARROW, resharding=True, in_place=refused)
    site.tick(1)
    for _ in range(4):  # less than five minutes
        site.report(1, plan=NARROW, resharding=True, in_place=refused)
        site.epoch(60)
        assert site.life(1).state is ResizeState.RUNNING
    for _ in range(10):
        grown(site, refused)
    assert site.life(1).state is ResizeState.JOINING and site.slurm.requeued == []


def test_a_node_that_the_run_has_lost_may_join_it_again(site: Site) -> None:
    """Its launchers report the loss until the node takes part again."""
    lost = replace(ABLE, crashes=1, number=1, lost_nodes=("n2",))
    grown(site, lost)
    site.report(1, plan=NARROW, resharding=True, in_place=lost)
    site.tick(1)
    assert site.life(1).state is ResizeState.JOINING


def test_nodes_that_have_gone_before_the_checkpoint_cost_nothing(site: Site) -> None:
    grown(site)
    site.report(1, plan=NARROW, resharding=True, in_place=replace(ABLE, joined=1))
    site.tick(1)
    assert site.life(1).state is ResizeState.CHECKPOINTING
    site.report(1, plan=NARROW, resharding=True, in_place=replace(ABLE, joined=1, join_refusal="exit code 1"))
    site.tick(1)
    life = site.life(1)
    assert (life.state, life.target, life.joined_nodes, site.slurm.requeued) == (ResizeState.RUNNING, None, (), [])


def test_launchers_that_do_not_answer_cost_nothing(site: Site) -> None:
    grown(site)
    for _ in range(4):
        site.tick(30)
    assert (site.life(1).state, site.life(1).joined_nodes) == (ResizeState.RUNNING, ())


def test_launchers_that_can_not_are_requeued(site: Site) -> None:
    grown(site, InPlace(live=True))
    assert site.life(1).state is ResizeState.CHECKPOINTING and not site.life(1).in_place


@pytest.mark.parametrize(
    "fake",
    [{"uid": 1001}, {"name": expander_name(1, 1, 1)}, {"name": expander_name(2, 0, 1)}, {"node_names": ("n3",)}],
)
def test_allocations_that_only_claim_to_be_the_jobs_are_not(site: Site, fake: dict[str, object]) -> None:
    site.slurm.gpus["n3"] = 2
    grown(site)
    expander(site, **fake)
    site.epoch(60)
    job = site.daemon.controller.jobs[1].job
    assert job is not None and job.node_names == ("n1",)
