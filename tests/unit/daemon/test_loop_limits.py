"""The daemon's loop where Slurm holds jobs to limits of associations."""

from __future__ import annotations

import pytest
from synergy_core.records import Action

from synergyd.control.resize.lifecycle import ResizeState
from synergyd.slurm.parsed.associations import AccountingRules
from tests.paths import ROOT
from tests.unit.daemon.daemon_world import Site

SHOWN = (ROOT / "tests" / "cases" / "golden" / "assoc_mgr.txt").read_text().replace("UserName=nobody", "UserName=ann")
LIMITS = AccountingRules(enforcement=frozenset(("associations", "limits")))
FULL = SHOWN.replace("cpu=100(3)", "cpu=100(99)")  # of account chem


def growing(site: Site, text: str = SHOWN) -> Action:
    """Job 1 of account chem runs on two GPUs of n1; the action of an epoch that may double them."""
    site.slurm.rules, site.slurm.assoc_mgr = LIMITS, text
    site.slurm.submit(1, account="chem", qos="normal")
    site.slurm.runs(1, "n1")
    site.epoch()
    site.report(1)
    return site.epoch(60)[1].action


def test_a_running_job_grows_within_its_accounts_limit_alone(site: Site) -> None:
    full = SHOWN.replace("gres/gpu=8(2)", "gres/gpu=2(2)")
    assert growing(site, full) is Action.KEEP
    assert "account chem may hold 0 more GPUs (GrpTRES)" in site.daemon.decisions[0].why
    site.slurm.assoc_mgr = SHOWN
    assert site.epoch(60)[1].action is Action.RESIZE


def test_a_limit_that_was_lowered_leaves_what_runs_as_it_is(site: Site) -> None:
    assert growing(site, SHOWN.replace("gres/gpu=8(2)", "gres/gpu=1(2)")) is Action.KEEP
    assert "account chem has 2 GPUs and may have 1 (GrpTRES)" in site.daemon.decisions[0].why
    assert site.slurm.jobs[1].state == "RUNNING"


def test_a_job_whose_association_is_gone_goes_on(site: Site) -> None:
    assert growing(site, SHOWN.replace("UserName=ann", "UserName=eve")) is Action.KEEP
    assert "Slurm has no association of ann with account chem any more" in site.daemon.decisions[0].why


@pytest.mark.parametrize("as_owner", [True, False])
def test_a_limit_reached_in_between_refuses_the_update_of_a_daemon_that_would_lift_it(
    site: Site, as_owner: bool
) -> None:
    site.slurm.acts_as_owner = as_owner
    assert growing(site) is Action.RESIZE
    site.slurm.assoc_mgr = FULL
    site.report(1, checkpoint_requests=1)
    for _ in range(12):
        site.tick()
    sizes = [c for c in site.slurm.calls if any("NumCPUs" in word for word in c)]
    if as_owner:
        assert sizes
        return
    assert not sizes and site.life(1).state is ResizeState.PARKED
    assert "account chem may hold 1 more CPUs (GrpTRES)" in site.story(1)
    site.slurm.assoc_mgr = SHOWN
    for _ in range(5):
        site.tick()
    assert site.slurm.jobs[1].state == "RUNNING" and site.slurm.jobs[1].tres_per_node == "gres:gpu:4"


def test_one_call_an_epoch_and_none_without_limits(site: Site) -> None:
    growing(site)
    assert site.slurm.assoc_reads == 2
    site.slurm.rules = AccountingRules()
    site.epoch(700)
    site.epoch(60)
    assert site.slurm.assoc_reads == 2
