"""What a change without a requeue costs is learnt from such changes, and prices jobs that can change in no other way."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from synergy_core.job_report import InPlace
from synergy_core.records import Cluster, Directive, Job, Plan

from synergyd.control.restart_budgets import changes_live
from tests.unit.control.test_live_growth import expander
from tests.unit.daemon.daemon_world import SCRIPT, Site

NARROW = Plan(dp=2, micro_batch=8, global_batch=256)
ABLE = InPlace(live=True, grows=True)


@pytest.fixture
def site(tmp_path: Path) -> Site:
    """Job 1 runs on one of two nodes of two GPUs, and may have no fewer GPUs than a node has."""
    site = Site(tmp_path / "state", restart_cost_s=60.0)
    site.slurm.gpus = {"n1": 2, "n2": 2}
    site.slurm.submit(1, SCRIPT.replace("max_gpus=4", "min_gpus=2 max_gpus=4"))
    site.slurm.runs(1, "n1")
    site.epoch()
    site.report(1)
    return site


def of(site: Site) -> tuple[Job, float]:
    """Job 1, and what its next restart is believed to cost."""
    tracked = site.daemon.controller.jobs[1]
    assert tracked.job is not None
    return tracked.job, site.daemon.controller.restart_budgets.expected_cost(tracked, tracked.job).mean_s


def test_changes_without_a_requeue_have_a_price_of_their_own(site: Site) -> None:
    site.report(1, plan=NARROW, resharding=True, in_place=ABLE)
    site.epoch(1)
    before_s = of(site)[1]
    requeue_s = site.daemon.controller.restart_budgets.costs.cost(of(site)[0]).mean_s
    for _ in range(10):
        site.report(1, plan=NARROW, resharding=True, in_place=ABLE)
        site.epoch(60)
        if site.life(1).joined_nodes:
            break
    expander(site)
    target = site.life(1).target
    assert target is not None and target.plan is not None
    site.report(1, plan=NARROW, resharding=True, in_place=replace(ABLE, joined=1))
    site.tick(1)
    site.report(1, plan=NARROW, resharding=True, in_place=replace(ABLE, joined=1), checkpoint_requests=1)
    site.tick(1)
    for _ in range(3):
        now = replace(ABLE, joined=1, order=2, number=1)
        site.report(1, plan=target.plan, in_place=now, step=20, trained_s=2.0, first_step_s=0.5, checkpoint_requests=1)
        site.tick(1)
        site.epoch(1)
    assert of(site)[1] < before_s / 2
    controller = site.daemon.controller
    assert controller.restart_budgets.costs.cost(of(site)[0]).mean_s == requeue_s, "that of a requeue is as before"
    site.start()
    site.epoch(1)
    site.report(1, plan=target.plan, in_place=replace(ABLE, joined=1, order=2, number=1))
    site.epoch(1)
    assert of(site)[1] < before_s / 2, "the next daemon knows it"


@pytest.mark.parametrize(
    ("directive", "in_place", "live"),
    [
        (Directive(min_gpus=2), ABLE, True),
        (Directive(min_gpus=1), ABLE, False),
        (Directive(), ABLE, False),
        (Directive(min_gpus=2, gpu_types=("a100", "h100")), ABLE, False),
        (Directive(min_gpus=2), InPlace(), False),
        (Directive(min_gpus=2), None, False),
    ],
)
def test_only_jobs_that_change_by_whole_nodes_have_it(
    site: Site, directive: Directive, in_place: InPlace | None, live: bool
) -> None:
    site.report(1, plan=NARROW, resharding=True, in_place=in_place)
    site.epoch(1)
    tracked = site.daemon.controller.jobs[1]
    assert tracked.job is not None
    job = replace(tracked.job, directive=directive)
    cluster = site.daemon.observer.cluster
    assert changes_live(tracked, job, cluster) is live
    larger = Cluster(tuple(replace(node, gpus=4) for node in cluster.nodes))
    assert not changes_live(tracked, job, larger), "it has a part of a node, and may get more of it"
