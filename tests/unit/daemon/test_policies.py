"""The daemon under policies that Synergy is compared with: whatever they do on paper, no job is stopped or lost."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from synergy_core.records import Action, Plan

from synergyd.control.resize.lifecycle import ResizeState
from synergyd.scheduler.epoch import Draft, EpochInputs, begin
from synergyd.scheduler.problem.delays import DelayHistory
from tests.unit.daemon.daemon_world import SCRIPT, Site


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["srsf", "tiresias", "pollux", "sia", "optimus", "crius"])  # they stop or resize
def test_jobs_come_and_go_and_none_is_lost(policy: str, tmp_path: Path) -> None:
    """One node of four GPUs; jobs that each ask for two arrive, the first leaves: then the third has its turn."""
    site = Site(tmp_path, policy=policy)
    site.slurm.gpus = {"n1": 4}
    site.slurm.submit(1)
    ran: set[int] = set()
    for turn in range(9):
        if turn in (2, 3):
            site.slurm.submit(turn)
        if turn == 5:
            site.slurm.cancel(1)
        for job_id, job in site.slurm.jobs.items():
            if job.state == "RUNNING" and job_id in site.daemon.controller.jobs:
                plan = site.life(job_id).plan or Plan(dp=2, micro_batch=8, global_batch=256)
                asked = sum(s[:2] == (job_id, job.restarts) for s in site.slurm.signals)
                site.report(job_id, plan=plan, checkpoint_requests=asked)
        running = {i for i, job in site.slurm.jobs.items() if job.state == "RUNNING"}
        for job_id, decision in site.epoch(60).items():
            assert job_id not in running or decision.action in (Action.KEEP, Action.RESIZE), decision.why
        for _ in range(12):
            for job_id in list(site.slurm.jobs):
                if job_id in site.daemon.controller.jobs and site.life(job_id).state is ResizeState.CHECKPOINTING:
                    site.report(job_id, checkpoint_requests=1)
            site.tick(2)
        held = [int(j.tres_per_node.rpartition(":")[2]) for j in site.slurm.jobs.values() if j.state == "RUNNING"]
        assert sum(held) <= 4
        now = {i for i, job in site.slurm.jobs.items() if job.state == "RUNNING"}
        # Who runs once runs on; a resize is over within these ticks.
        assert ran & set(site.slurm.jobs) <= now
        ran |= now
    assert ran == {1, 2, 3} and {i: j.state for i, j in site.slurm.jobs.items()} == {2: "RUNNING", 3: "RUNNING"}


@pytest.mark.parametrize(("policy", "keeps"), [("dally", True), ("synergy", False)])
def test_waits_are_remembered_for_dally_alone(
    policy: str, keeps: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Job 1 asks for two GPUs where there are none."""
    seen: list[EpochInputs] = []

    def begun(inputs: EpochInputs, *args: Any) -> Draft:
        seen.append(inputs)
        return begin(inputs, *args)

    monkeypatch.setattr("synergyd.daemon.loop.begin", begun)
    site = Site(tmp_path, policy=policy)
    site.slurm.gpus = {"n1": 0}
    site.slurm.submit(1)
    for _ in range(3):
        site.epoch(60)
    times_s = [inputs.snapshot.time_s for inputs in seen]
    assert times_s[2] > times_s[0]
    assert seen[2].delays == (DelayHistory({1: times_s[0]}) if keeps else DelayHistory())


@pytest.mark.parametrize("policy", ["fifo", "backfill", "srtf"])
def test_a_job_of_no_known_plan_at_its_size_starts_as_it_was_submitted(policy: str, tmp_path: Path) -> None:
    """Three GPUs at tp=2: no plan of ours. It is put off while another has the GPUs, then runs with its own arguments."""
    site = Site(tmp_path, policy=policy)
    site.slurm.gpus = {"n1": 4}
    site.slurm.submit(1, SCRIPT.replace("gpt2", "gpt2 resize=no"), tres_per_node="gres:gpu:4")
    site.slurm.runs(1, "n1")
    site.slurm.submit(2, SCRIPT.replace("gpt2", "gpt2 tp=2"), tres_per_node="gres:gpu:3")
    waits = site.epoch()[2]
    assert waits.action is Action.WAIT and "3 a100 GPUs" in waits.why, waits.why
    assert site.slurm.jobs[2].eligible_s == site.slurm.now_s + 900
    site.slurm.cancel(1)
    site.slurm.pass_time(5)
    started = site.epoch(60)[2]
    assert started.action is Action.START and "its goodput can't be predicted" in started.why, started.why
    for _ in range(5):
        site.tick(2)
    job = site.slurm.jobs[2]
    assert (job.state, job.tres_per_node, job.num_nodes) == ("RUNNING", "gres:gpu:3", 1)
    assert site.life(2).plan is None
    assert site.epoch(60)[2].action is Action.KEEP
