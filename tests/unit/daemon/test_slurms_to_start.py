"""Jobs that keep their size: Slurm starts them as they were submitted, and Synergy keeps none of them from it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from synergy_core.records import Action
from synergy_core.wire import plan_file

from tests.unit.daemon.daemon_world import SCRIPT, Site

FIXED = SCRIPT.replace("gpt2", "gpt2 resize=no")
WHOLE = "gres:gpu:4"


def full(site: Site) -> None:
    """One node of four GPUs, all of them in use by job 1."""
    site.slurm.gpus = {"n1": 4}
    site.slurm.submit(1, FIXED, tres_per_node=WHOLE, num_nodes=1)
    site.slurm.runs(1, "n1")


def freed(site: Site) -> None:
    """Job 1 has left its node, and Slurm has not started another so far."""
    site.slurm.full = True
    site.slurm.cancel(1)
    site.slurm.pass_time(30)


def test_one_that_waits_and_one_that_could_start_are_not_written_to(site: Site) -> None:
    full(site)
    site.slurm.submit(2, FIXED, tres_per_node=WHOLE, num_nodes=1)
    assert "It waits in Slurm's queue as it was submitted" in site.epoch()[2].why
    freed(site)
    assert site.epoch(60)[2].action is Action.START
    assert 2 not in site.slurm.written_to()
    site.slurm.runs(2, "n1")
    site.epoch(60)
    assert site.story(2).count("started by Slurm as a plain job") == 1


def test_one_whose_start_synergy_has_put_off_is_let_go(site: Site) -> None:
    """It waits as one that may be resized, and then keeps its size."""
    full(site)
    site.slurm.submit(2, SCRIPT, tres_per_node=WHOLE, num_nodes=1)
    site.epoch()
    assert site.slurm.jobs[2].eligible_s == site.slurm.now_s + 900
    known = site.daemon.registry.submitted[2]
    assert known.directive is not None
    site.daemon.registry.submitted[2] = replace(known, directive=replace(known.directive, resize=False))
    site.epoch(60)
    assert (site.slurm.jobs[2].eligible_s or 0) <= site.slurm.now_s
    calls = len(site.slurm.calls)
    site.epoch(60)
    assert len(site.slurm.calls) == calls


@pytest.mark.parametrize("changed", [{"tres_per_node": "gres:gpu:2"}, {"req_nodes": ("n1",)}])
def test_one_that_slurm_has_otherwise_is_synergys_to_start(site: Site, changed: dict[str, object]) -> None:
    full(site)
    site.slurm.submit(2, FIXED, tres_per_node=WHOLE, num_nodes=1)
    site.epoch()
    assert site.daemon.observer.left_to_slurm == {2}
    site.slurm.set(2, **changed)
    freed(site)
    assert site.epoch(60)[2].action is Action.START
    assert 2 in site.slurm.written_to()


def test_one_that_its_user_has_put_off_stays_so(site: Site) -> None:
    full(site)
    begin_s = site.slurm.now_s + 4000
    site.slurm.submit(2, FIXED, tres_per_node=WHOLE, num_nodes=1)
    site.slurm.set(2, eligible_s=begin_s)
    site.epoch()
    assert site.slurm.jobs[2].eligible_s == begin_s and 2 not in site.slurm.written_to()


def test_one_that_may_be_resized_waits_for_its_decision_still(site: Site) -> None:
    full(site)
    site.slurm.submit(2, SCRIPT, tres_per_node=WHOLE, num_nodes=1)
    assert site.epoch()[2].action is Action.WAIT
    assert site.slurm.jobs[2].eligible_s == site.slurm.now_s + 900
    assert not site.daemon.observer.left_to_slurm


def test_the_end_of_a_job_brings_the_next_epoch_where_another_waits_for_synergy(site: Site) -> None:
    full(site)
    site.epoch()
    site.slurm.ended += 1
    for _ in range(20):
        site.tick()
    assert not site.daemon.needs_early_epoch
    site.slurm.submit(2, SCRIPT, tres_per_node=WHOLE, num_nodes=1)
    site.epoch(60)
    site.slurm.ended += 1
    for _ in range(20):
        site.tick()
    assert site.daemon.needs_early_epoch


def test_one_on_several_nodes_knows_its_daemon_before_it_is_let_go(site: Site) -> None:
    """Its launcher takes the address of the links' arbiter at its start alone."""
    for job_id, nodes in ((1, 2), (2, 1)):
        site.slurm.submit(job_id, FIXED, tres_per_node="gres:gpu:2", num_nodes=nodes)
        site.slurm.comments[job_id] = "synergy:1 model=gpt2 resize=no"
        site.slurm.set(job_id, eligible_s=site.slurm.now_s + 180)
    site.epoch()
    assert plan_file.read(plan_file.plan_path(site.folder, 1), 1).report == "ctl:7321"
    assert not plan_file.plan_path(site.folder, 2).exists()
    assert all((site.slurm.jobs[i].eligible_s or 0) <= site.slurm.now_s for i in (1, 2))
