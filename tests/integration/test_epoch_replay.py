"""An epoch of a real daemon on a real cluster, recorded and decided again by the simulator: the same decisions, bit for bit."""

from __future__ import annotations

import pickle
import sys
from pathlib import Path

import pytest
from synergy_sim.synergy_director import decide_simulated_epoch

from synergyd.cli import synergyd as synergyd_cli
from synergyd.daemon import loop
from synergyd.scheduler.epoch import Draft, Stage, StageTimer, run
from synergyd.scheduler.policies import load_policy
from synergyd.slurm.directives.conf import load_settings
from tests.integration.daemon_site import ELASTIC
from tests.throwaway import light_job
from tests.throwaway.slurm import SlurmCluster
from tests.throwaway.synergy import remember_programs

pytestmark = pytest.mark.slurm


def test_the_simulator_decides_as_the_daemon_did(site: SlurmCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three training jobs and a plain one ask for more than two nodes of four GPUs have."""
    recorded: list[bytes] = []

    def recording(stages: tuple[Stage, ...], draft: Draft, timer: StageTimer | None = None) -> Draft:
        decided = run(stages, draft, timer)
        recorded.append(pickle.dumps((draft.inputs, decided.decisions)))
        return decided

    remember_programs(site)
    for gpus in (4, 2, 4):
        light_job.submit(site, gpus=gpus, directive=ELASTIC)
    site.sbatch("#!/bin/sh\nsleep 600\n", "--gres=gpu:1", "-o", "/dev/null")
    monkeypatch.setattr(loop, "run", recording)
    for key, value in site.env.items():
        monkeypatch.setenv(key, value)
    monkeypatch.setattr(sys, "argv", ["synergyd", "--once"])
    with pytest.raises(SystemExit) as ended:
        synergyd_cli.main()
    assert ended.value.code == 0
    inputs, decisions = pickle.loads(recorded[0])
    assert len(decisions) == 3 and {decision.action.value for decision in decisions} >= {"start"}
    settings = load_settings(Path(site.env["SLURM_CONF"])).settings
    again = decide_simulated_epoch(inputs, settings, load_policy(settings.policy))
    assert again == decisions and repr(again) == repr(decisions)
