"""Less communication in the daemon: given where it pays, kept through a run's warm-up, and taken back where the loss does worse."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from synergy_core.accepts import Accepts
from synergy_core.exchange import KINDS
from synergy_core.job_report import InPlace
from synergy_core.loss_trend import NO_LOSSES
from synergy_core.records import Plan
from synergy_core.wire import plan_file
from synergy_core.wire.report import ReportAnswer

from synergyd.control.resize.lifecycle import ResizeState
from tests.unit.daemon.daemon_world import Site

SCRIPT = "#!/bin/bash\n#SYNERGY min_gpus=8 max_gpus=8 global_batch=64 comm=local checkpoint=/ckpt\nsrun synergy-launch train.py\n"
FIGURES = {"peak_tflops": 312.0, "memory_gib": 80.0, "bandwidth_gbs": 2039.0, "intra_gbs": 300.0, "inter_gbs": 0.1}


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return made(tmp_path)


def made(folder: Path, comm_options: tuple[str, ...] = KINDS) -> Site:
    """One job on two nodes of four GPUs behind a slow network."""
    site = Site(folder, gpu_figures={"a100": FIGURES}, comm_options=comm_options)
    site.slurm.gpus = {"n1": 4, "n2": 4}
    site.slurm.submit(1, SCRIPT, tres_per_node="gres:gpu:4", num_nodes=2)
    return site


def started(site: Site) -> Plan:
    """It runs with the plan that it was given."""
    decided = site.epoch()[1]
    assert decided.cell is not None
    for _ in range(10):
        site.tick(5)
        if site.slurm.jobs_now()[0].state == "RUNNING":
            break
    site.slurm.runs(1, "n1", "n2")
    site.epoch(5)
    assert site.life(1).state is ResizeState.RUNNING
    plan = site.life(1).plan
    assert plan is not None
    return plan


def reported(
    site: Site, plan: Plan, first: int, losses: list[float], comm: str = "", step_s: float = 4.0, **more: Any
) -> None:
    for number, loss in enumerate(losses):
        ran = replace(plan, exchange=comm or "exact")
        site.report(1, step=first + number, loss=loss, plan=ran, comm=comm, step_s=step_s, **more)
        if number % 6 == 5:
            site.epoch(60)


def asked(site: Site) -> bool:
    return any(call[0] in ("signal", "requeue") for call in site.slurm.calls)


def test_it_is_given_told_and_kept_while_it_warms_up(site: Site) -> None:
    why = site.epoch()[1].why
    plan = started(site)
    assert plan.exchange.startswith("local:")
    assert f"Exchange {plan.exchange}: step " in why and "an example worth 0." in why
    assert plan_file.read(plan_file.plan_path(site.folder, 1), 1).plan == plan
    reported(site, plan, 1, [3.0 - 0.01 * n + 0.02 * (n % 3) for n in range(30)])  # as the exact exchange
    assert not asked(site) and site.life(1).plan == plan


def test_a_loss_that_does_worse_takes_it_back_for_good(site: Site) -> None:
    plan = started(site)
    reported(site, plan, 1, [3.0 - 0.01 * n + 0.02 * (n % 3) for n in range(36)])
    reported(site, plan, 40, [2.7 + 0.1 * n + 0.02 * (n % 3) for n in range(24)], plan.exchange, 0.4)
    assert site.life(1).exact_only
    assert site.story(1).count(f"exchange {plan.exchange} is taken back") == 1
    decided = site.epoch(60)[1]
    assert asked(site) or decided.action.value == "resize", decided.why
    target = site.life(1).target
    assert target is not None and target.plan is not None and target.plan.exchange == "exact"


def test_it_is_given_back_and_taken_in_place(tmp_path: Path) -> None:
    """Of a launcher that can start its run again; the new run warms up with the exact exchange, and is the ordered one all the same."""
    site = made(tmp_path)
    plan = started(site)
    here: dict[str, Any] = {"in_place": InPlace(), "resharding": True}
    reported(site, plan, 1, [3.0 - 0.01 * n + 0.02 * (n % 3) for n in range(36)], **here)
    reported(site, plan, 40, [2.7 + 0.1 * n + 0.02 * (n % 3) for n in range(24)], plan.exchange, 0.4, **here)
    for _ in range(20):
        if site.life(1).state is ResizeState.CHECKPOINTING:
            break
        site.epoch(60)
    exact = ordered(site, plan, plan.exchange, order=1)
    assert exact.exchange == "exact"
    site.report(1, step=70, plan=exact, step_s=4.0, in_place=InPlace(number=1, order=1), resharding=True)
    site.tick(1)
    assert (site.life(1).state, site.life(1).plan) == (ResizeState.RUNNING, exact)
    # its owner allows it once more, as far as a daemon knows
    tracked = site.daemon.controller.jobs[1]
    tracked.lifecycle, tracked.exchange_losses = replace(tracked.lifecycle, exact_only=False), NO_LOSSES
    for number in range(60):
        if site.life(1).state is ResizeState.CHECKPOINTING:
            break
        again = {"in_place": InPlace(number=1, order=1), "resharding": True}
        site.report(1, step=71 + number, plan=exact, step_s=4.0, trained_s=60.0 * number, **again)
        site.epoch(60)
    less = ordered(site, exact, "", order=2)
    assert less.exchange.startswith("local:")
    site.report(1, step=140, plan=exact, step_s=4.0, in_place=InPlace(number=2, order=2), resharding=True)
    site.tick(1)
    assert (site.life(1).state, site.life(1).plan, site.slurm.requeued) == (ResizeState.RUNNING, less, [])


def ordered(site: Site, present: Plan, comm: str, order: int) -> Plan:
    """The checkpoint is there: the plan that the launcher is to start again with."""
    target = site.life(1).target
    assert site.life(1).state is ResizeState.CHECKPOINTING and target is not None and target.plan is not None
    told = InPlace(number=order - 1, order=order - 1)
    ran = replace(present, exchange=comm or "exact")
    site.report(1, plan=ran, comm=comm, resharding=True, in_place=told, checkpoint_requests=order)
    site.tick(1)
    assert (site.life(1).state, site.post.answers) == (
        ResizeState.RESTARTING,
        {(1, 0): (1000, ReportAnswer(target.plan, order))},
    )
    return target.plan


def test_a_loss_that_goes_on_keeps_it(site: Site) -> None:
    plan = started(site)
    reported(site, plan, 1, [3.0 - 0.01 * n + 0.02 * (n % 3) for n in range(36)])
    reported(site, plan, 40, [2.6 - 0.005 * n + 0.02 * (n % 3) for n in range(24)], plan.exchange, 0.4)
    assert not site.life(1).exact_only and not asked(site)


@pytest.mark.parametrize("accepts", [Accepts(exact_only=True), Accepts(refuses="local")])
def test_a_script_that_can_t_is_told_and_never_asked_again(site: Site, accepts: Accepts) -> None:
    plan = started(site)
    for number in range(3):
        site.report(1, step=10 + number, plan=replace(plan, exchange="exact"), step_s=4.0, accepts=accepts)
        decided = site.epoch(60)[1]
    running = site.life(1)
    assert not asked(site) and running.plan == plan
    assert "comm=local changes nothing: its program exchanges every gradient in every step." in decided.why


def test_the_admin_allows_none(tmp_path: Path) -> None:
    site = made(tmp_path, comm_options=("exact", "compressed"))
    plan = started(site)
    assert plan.exchange == "exact"
    site.report(1, step=10, plan=plan, step_s=4.0)
    assert "comm=local changes nothing: none of it is allowed here." in site.epoch(60)[1].why


def test_what_a_script_exchanges_by_itself_is_no_reason_for_a_restart(tmp_path: Path) -> None:
    site = Site(tmp_path, gpu_figures={"a100": FIGURES})
    site.slurm.gpus = {"n1": 4, "n2": 4}
    site.slurm.submit(1, SCRIPT.replace("comm=local ", ""), tres_per_node="gres:gpu:4", num_nodes=2)
    plan = started(site)
    assert plan.exchange == "exact"
    reported(site, plan, 1, [3.0] * 12, "local:8", 0.3)
    assert not asked(site)
