"""A running job on several nodes gives one back for another job: without a requeue where its launchers can, else with one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from synergy_core.job_report import InPlace
from synergy_core.records import Plan, Shape
from synergy_core.wire.report import ReportAnswer

from synergyd.control.resize.events import Wanted
from synergyd.control.resize.instructions import Target
from synergyd.control.resize.lifecycle import ResizeState
from synergyd.control.resize.machine import advance
from tests.unit.daemon.daemon_world import SCRIPT, Site

WIDE = Plan(dp=4, micro_batch=8, global_batch=256)
ABLE = InPlace(live=True)


@pytest.fixture
def site(tmp_path: Path) -> Site:
    """Job 1 runs on two nodes of two GPUs each."""
    site = Site(tmp_path / "state")
    site.slurm.gpus = {"n1": 2, "n2": 2}
    site.running(1, "n1", "n2")
    return site


def shrunk(site: Site, in_place: InPlace | None = ABLE) -> Plan:
    """The plan with which job 1 is to go on while job 2 waits for one of its nodes; its checkpoint is there."""
    site.report(1, plan=WIDE, resharding=True, in_place=in_place)
    site.epoch(60)
    site.slurm.submit(2, SCRIPT.replace("max_gpus=4", "min_gpus=2 max_gpus=2"))
    for _ in range(10):
        site.report(1, plan=WIDE, resharding=True, in_place=in_place)
        site.epoch(60)
        if site.life(1).state is ResizeState.CHECKPOINTING:
            break
    target = site.life(1).target
    assert target is not None and (target.nodes, target.plan and target.plan.gpus) == (("n1",), 2)
    site.report(1, plan=WIDE, resharding=True, in_place=in_place, checkpoint_requests=1)
    site.tick(1)
    assert target.plan is not None
    return target.plan


def nodes_of(site: Site) -> list[str]:
    """Job 1's, as Slurm has them."""
    return list(site.slurm.jobs[1].node_names)


def test_a_node_is_given_back_without_a_requeue(site: Site) -> None:
    plan = shrunk(site)
    assert (site.life(1).state, site.post.answers) == (
        ResizeState.RESTARTING,
        {(1, 0): (1000, ReportAnswer(plan, 1, nodes=("n1",)))},
    )
    assert nodes_of(site) == ["n1", "n2"], "its processes are there"
    site.report(1, plan=plan, in_place=InPlace(number=1, order=1))
    site.tick(1)
    assert site.life(1).state is ResizeState.RUNNING and nodes_of(site) == ["n1"]
    assert site.slurm.requeued == [] and site.post.answers == {}
    assert "live resize decided" in site.story(1) and "resized live: 2 a100 GPUs" in site.story(1)
    assert site.life(1).plan == plan
    site.slurm.set(1, num_tasks=2)  # as of the nodes that it had: Slurm changes that of no running job
    site.epoch(1)
    job = site.daemon.controller.jobs[1].job
    assert job is not None and job.fixed == "", "it may be resized again"
    for _ in range(5):
        site.tick(3)
    assert site.slurm.jobs[2].state == "RUNNING"


@pytest.mark.parametrize("in_place", [InPlace(), None])
def test_a_launcher_that_can_not_is_requeued(site: Site, in_place: InPlace | None) -> None:
    shrunk(site, in_place)
    assert site.life(1).state is ResizeState.REQUEUING


def test_a_site_that_forbids_it_requeues(site: Site) -> None:
    site.start(live=False)
    site.epoch(1)
    shrunk(site)
    assert site.life(1).state is ResizeState.REQUEUING


def test_a_script_that_needs_all_nodes_later_is_requeued_and_not_tried_again(site: Site) -> None:
    site.slurm.scripts[1] = SCRIPT + "srun evaluate.py\n"
    shrunk(site)
    assert site.life(1).state is ResizeState.REQUEUING
    assert "line 4 of its script would not work on fewer nodes: srun evaluate.py" in site.story(1)
    for _ in range(6):
        site.tick(3)
    assert site.life(1).state is ResizeState.RUNNING and "srun evaluate.py" in site.life(1).live_refusal


def test_nodes_that_slurm_does_not_take_back_at_once_are_given_back_later(site: Site) -> None:
    plan = shrunk(site)
    site.slurm.refuse["keep"] = ("Job/step DB index is being set, try again in a bit", True)
    for _ in range(9):
        site.report(1, plan=plan, in_place=InPlace(number=1, order=1))
        site.tick(10)
        assert site.life(1).state is ResizeState.RETURNING
    assert "try again in a bit" in site.story(1)
    site.slurm.refuse.clear()
    site.tick(11)
    assert site.life(1).state is ResizeState.RUNNING and nodes_of(site) == ["n1"]
    assert site.slurm.requeued == []


def test_the_next_daemon_gives_the_nodes_back(site: Site) -> None:
    plan = shrunk(site)
    site.slurm.refuse["keep"] = ("Socket timed out", True)
    site.report(1, plan=plan, in_place=InPlace(number=1, order=1))
    site.tick(1)
    assert site.life(1).state is ResizeState.RETURNING
    site.slurm.refuse.clear()
    site.start()
    site.epoch(1)
    site.tick(11)
    assert site.life(1).state is ResizeState.RUNNING and nodes_of(site) == ["n1"]


def without_n2(site: Site) -> None:
    """Job 1's launchers say that its run goes on without n2, which they have lost."""
    narrow = Plan(dp=2, micro_batch=8, global_batch=256)
    lost = InPlace(number=1, crashes=1, step=120, live=True, crash_nodes=("n2",), lost_nodes=("n2",))
    site.report(1, plan=narrow, resharding=True, in_place=lost)
    site.epoch(60)


def test_a_lost_node_is_given_back_as_soon_as_slurm_starts_no_job_there(site: Site) -> None:
    site.report(1, plan=WIDE, resharding=True, in_place=ABLE)
    site.epoch(60)
    without_n2(site)
    assert (site.life(1).state, nodes_of(site)) == (ResizeState.RUNNING, ["n1", "n2"]), "others might be started there"
    site.slurm.states["n2"] = "mixed+not_responding"
    without_n2(site)
    site.tick(1)
    assert (site.life(1).state, nodes_of(site), site.slurm.requeued) == (ResizeState.RUNNING, ["n1"], [])
    assert "lost n2 at step 120: started again in place" in site.story(1)
    assert "runs on n1: n2, lost, given back" in site.story(1)


def test_a_lost_node_that_answers_slurm_is_given_back_too(site: Site) -> None:
    """Only its launcher was killed: no launcher could follow an order that counts on the node."""
    site.report(1, plan=WIDE, resharding=True, in_place=ABLE)
    site.epoch(60)
    for _ in range(4):
        without_n2(site)
        assert (site.life(1).state, nodes_of(site)) == (ResizeState.RUNNING, ["n1", "n2"]), "it may not answer soon"
    for _ in range(3):
        without_n2(site)
        site.tick(1)
    assert (nodes_of(site), site.slurm.requeued, site.life(1).orders) == (["n1"], [], 0)


@pytest.mark.parametrize("acknowledged", [False, True])
def test_a_change_is_given_up_once_the_run_has_lost_a_node_that_it_counts_on(site: Site, acknowledged: bool) -> None:
    """Its launchers would not follow the order, and the job would be requeued in the end."""
    site.report(1, plan=WIDE, resharding=True, in_place=ABLE)
    site.epoch(60)
    life = site.life(1)
    other = replace(WIDE, dp=2, pp=2)
    wide = Target(Shape("A100", 2, 2), ("n1", "n2"), WIDE)
    wanted = Wanted(replace(wide, plan=other), "another plan", 0, wide, wide, in_place=True, live=True)
    controller = site.daemon.controller
    controller.jobs[1].lifecycle = advance(life, wanted, site.slurm.now_s, controller.times).life
    if acknowledged:
        site.report(1, plan=WIDE, resharding=True, in_place=ABLE, checkpoint_requests=1)
        site.tick(1)
    assert site.life(1).state is (ResizeState.RESTARTING if acknowledged else ResizeState.CHECKPOINTING)
    without_n2(site)
    assert (site.life(1).state, site.life(1).target, site.slurm.requeued) == (ResizeState.RUNNING, None, [])
    assert "it goes on as it is: the run has lost n2" in site.story(1)


def test_a_node_that_is_drained_while_the_order_is_followed_changes_nothing(site: Site) -> None:
    plan = shrunk(site)
    site.slurm.states["n1"] = "mixed+drain"
    site.epoch(60)
    assert site.life(1).state is ResizeState.RESTARTING
    site.report(1, plan=plan, in_place=InPlace(number=1, order=1))
    site.tick(1)
    assert nodes_of(site) == ["n1"] and site.life(1).state is ResizeState.RUNNING


def test_a_silent_node_whose_launcher_is_there_is_kept(site: Site) -> None:
    site.slurm.states["n2"] = "mixed+not_responding"
    site.report(1, plan=WIDE, resharding=True, in_place=ABLE)
    site.epoch(60)
    site.tick(1)
    assert (site.life(1).state, nodes_of(site)) == (ResizeState.RUNNING, ["n1", "n2"])


def test_a_lost_node_stays_where_the_admin_forbids_changes_of_running_jobs(site: Site) -> None:
    site.start(live=False)
    site.report(1, plan=WIDE, resharding=True, in_place=ABLE)
    site.epoch(60)
    site.slurm.states["n2"] = "mixed+not_responding"
    for _ in range(3):
        without_n2(site)
        site.tick(1)
    assert (site.life(1).state, nodes_of(site)) == (ResizeState.RUNNING, ["n1", "n2"])


def test_a_script_that_needs_all_nodes_later_is_requeued_on_those_that_are_left(site: Site) -> None:
    site.slurm.scripts[1] = SCRIPT + "srun -N 2 python evaluate.py\n"
    site.slurm.states["n2"] = "mixed+not_responding"
    without_n2(site)
    for _ in range(5):
        site.tick(11)
    assert nodes_of(site) != ["n1", "n2"] and site.slurm.requeued == [(1, 0)]
    assert "could not be given back" in site.story(1) and "evaluate.py" in site.story(1)
