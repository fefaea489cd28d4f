"""The daemon's loop over a cluster in memory and a real SQLite store: starts, resizes, daemons that come and go."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest
from synergy_core.records import Action, Plan, Shape
from synergy_core.wire import plan_file

from synergyd.control.resize.lifecycle import ResizeState
from tests.unit.daemon.daemon_world import SCRIPT, START_S, Site, acted, grow


def test_a_waiting_job_starts_with_a_plan(site: Site) -> None:
    site.slurm.submit(1)
    decided = site.epoch()[1]
    assert decided.action is Action.START and decided.cell is not None
    assert site.life(1).state is ResizeState.RELEASED
    found = plan_file.read(plan_file.plan_path(site.folder, 1), 1)
    assert found == plan_file.PlanFile(
        1, decided.cell.plan, "ctl:7321", "/ckpt", os.getuid(), asked=Shape("", 1, 2), own_batch=found.own_batch
    )
    site.tick()
    assert (site.life(1).state, site.slurm.jobs[1].state) == (ResizeState.RUNNING, "RUNNING")
    assert site.slurm.jobs[1].node_names == decided.node_names


def test_jobs_without_a_directive_are_never_written_to(site: Site) -> None:
    site.slurm.submit(1)
    site.slurm.submit(2, "#!/bin/bash\nsleep 1\n")
    site.slurm.submit(3, None)
    site.slurm.submit(4, SCRIPT.replace("gpt2", "gpt2 nonsense=1"))
    site.slurm.submit(5, SCRIPT, het=True)
    site.slurm.submit(6, SCRIPT, batch=False)
    site.slurm.submit(7, "#!/bin/bash\n# SYNERGY\n#synergy x=1\n")
    site.slurm.comments[7] = "somebody's own remark"
    for _ in range(3):
        site.epoch(60)
        site.tick()
    assert site.slurm.written_to() == {1}
    assert site.slurm.comments[7] == "somebody's own remark"
    assert set(site.daemon.registry.submitted) == {1, 4, 5}


def test_scripts_are_read_once_even_by_the_next_daemon(site: Site) -> None:
    site.slurm.submit(1)
    site.slurm.submit(2, "#!/bin/bash\n")
    site.epoch()
    site.epoch(60)
    assert sorted(site.slurm.scripts_read) == [1, 1, 2]  # 1 again at its start: the script beside its plan
    site.start()
    site.epoch(60)
    # 1 by its stamp, but for what ends a second run of it; 2 by the store
    assert sorted(site.slurm.scripts_read) == [1, 1, 1, 2]
    site.epoch(60)
    assert sorted(site.slurm.scripts_read) == [1, 1, 1, 2]


def test_a_script_that_slurm_does_not_give_is_not_remembered_as_plain(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    """A daemon without the rights to read scripts must not mark every job for ever."""
    site.slurm.submit(1, None)
    site.slurm.submit(2)
    site.slurm.unreadable = {2: False}
    site.epoch()
    assert "job 1: its script could not be read" in caplog.text and "job 2" in caplog.text
    site.slurm.scripts[1], site.slurm.unreadable = SCRIPT, {}
    site.epoch(60)
    assert site.daemon.registry.submitted == {}  # one warning, not one an epoch
    site.start()
    site.epoch(60)
    assert set(site.daemon.registry.submitted) == {1, 2}


@pytest.mark.parametrize("mode", ["dry run", "standby"])
def test_dry_run_and_standby_touch_no_job_and_no_lifecycle(site: Site, mode: str) -> None:
    grow(site)
    with site.store() as store:
        before, epoch = store.lifecycles(), store.latest_epoch()
    calls = len(site.slurm.calls)
    heartbeat = (site.folder / "heartbeat").read_text()
    plan = plan_file.plan_path(site.folder, 1).read_text()
    site.leads = mode != "standby"
    site.start(dry_run=mode == "dry run")
    site.slurm.submit(2)
    decided = site.epoch(60)
    assert decided[2].action in (Action.START, Action.WAIT)
    assert not site.daemon.is_resizing  # `--once` ends
    site.tick(400)
    site.slurm.cancel(1)
    site.slurm.pass_time(10)
    site.epoch(60)
    assert len(site.slurm.calls) == calls and 1 not in site.daemon.controller.jobs
    assert (site.folder / "heartbeat").read_text() == heartbeat
    assert plan_file.plan_path(site.folder, 1).read_text() == plan
    with site.store() as store:
        assert store.lifecycles() == before
        latest = store.latest_epoch()
    assert latest is not None and epoch is not None
    assert latest.dry_run if mode == "dry run" else latest.started_s == epoch.started_s


def test_one_that_stood_by_takes_over_what_the_leader_wrote(site: Site) -> None:
    site.running(1, "n1")
    site.leads = False
    leader, waiting = site.daemon, site.start()
    site.epoch(1)
    assert waiting.controller.jobs[1].lifecycle.state.name == "RUNNING"
    site.leads, site.daemon = True, leader
    site.report(1)
    site.epoch(60)
    assert leader.controller.jobs[1].lifecycle.state is ResizeState.CHECKPOINTING
    site.daemon = waiting
    site.epoch(1)
    # what it takes over it sends again at once
    assert replace(waiting.controller.jobs[1].lifecycle, sent_s=0.0) == replace(
        leader.controller.jobs[1].lifecycle, sent_s=0.0
    )
    site.report(1, checkpoint_requests=1)
    site.tick()
    assert waiting.controller.jobs[1].lifecycle.state is ResizeState.REQUEUING and len(site.slurm.requeued) == 1


def test_the_whole_story_of_a_resize(site: Site) -> None:
    grow(site)
    assert [s[:2] for s in site.slurm.signals] == [(1, 0)] and site.daemon.is_resizing
    site.tick()
    assert site.slurm.requeued == []  # not without its checkpoint
    site.report(1, checkpoint_requests=1)
    for _ in range(10):
        site.tick()
    assert site.slurm.requeued == [(1, 0)] and not site.daemon.is_resizing
    job = site.slurm.jobs[1]
    assert (job.state, job.restarts, job.tres_per_node) == ("RUNNING", 1, "gres:gpu:4")
    assert site.life(1).state is ResizeState.RUNNING and site.life(1).plan is not None and site.life(1).plan.gpus == 4
    story = site.story(1)
    told = [
        story.index(w)
        for w in (
            "resize decided",
            "checkpoint acknowledged",
            "requeued",
            "size set and read back",
            "released",
            "new size",
        )
    ]
    assert told == sorted(told) and "2 a100 GPUs" in story
    site.report(1, plan=site.life(1).plan)
    assert acted(site.epoch(60)) == {}


def test_no_acknowledgement_is_told_plainly(site: Site) -> None:
    grow(site)
    site.tick(299)
    assert site.slurm.requeued == []
    site.tick(2)
    assert site.slurm.requeued == [(1, 0)]
    assert "no checkpoint acknowledged within 300 s" in site.story(1)


@pytest.mark.parametrize("state", [s for s in ResizeState if s is not ResizeState.GONE])
def test_a_daemon_killed_in_any_state_is_followed_by_one_that_goes_on(site: Site, state: ResizeState) -> None:
    """kill -9 as soon as the store shows `state`; every job runs at its new size in the end, requeued once."""
    site.slurm.submit(2, SCRIPT.replace("gpt2", "gpt2 resize=no"), tres_per_node="gres:gpu:4")
    site.slurm.runs(2, "n2")
    site.running(1, "n1")
    killed = False
    flush = type(site.daemon.dependencies.store).flush

    class Killed(Exception):
        pass

    def flush_then_die() -> bool:
        nonlocal killed
        done = flush(site.daemon.dependencies.store)
        if (
            not killed
            and 1 in site.daemon.controller.jobs
            and site.life(1).state is state
            and site.slurm.now_s > START_S
        ):
            killed = True
            raise Killed
        return done

    def turn(what: str, seconds: float) -> None:
        site.daemon.dependencies.store.flush = flush_then_die  # type: ignore[method-assign]
        try:
            site.tick(seconds) if what == "tick" else site.epoch(seconds)
        except Killed:
            site.start()
            site.report(2, plan=Plan(dp=4, micro_batch=8, global_batch=256))
            site.epoch(1)

    turn("epoch", 60)
    for _ in range(20):
        if site.life(1).state is ResizeState.CHECKPOINTING:
            site.report(1, checkpoint_requests=len(site.slurm.signals))
        turn("tick", 3)
    # a running job's resize never is QUEUED, and its launchers do not restart in place
    assert killed or state in (
            ResizeState.QUEUED, ResizeState.JOINING, ResizeState.RESTARTING, ResizeState.RETURNING,
        )  # fmt: skip
    for _ in range(40):
        turn("tick", 10)
    assert len(site.slurm.requeued) == 1
    assert site.life(1).state is ResizeState.RUNNING
    job = site.slurm.jobs[1]
    assert (job.state, job.restarts, job.tres_per_node) == ("RUNNING", 1, "gres:gpu:4")


@pytest.mark.slow
def test_a_job_that_another_waits_for_gives_way_and_grows_again(site: Site) -> None:
    """Arrivals and departures over many epochs: never more GPUs than there are, nobody forgotten."""
    site.slurm.gpus = {"n1": 4}
    site.slurm.submit(1)
    for turn in range(12):
        if turn == 3:
            site.slurm.submit(2)
        if turn == 8:
            site.slurm.cancel(1)
        for job_id, job in site.slurm.jobs.items():
            if job.state == "RUNNING" and job_id in site.daemon.controller.jobs:
                plan = site.life(job_id).plan or Plan(dp=2, micro_batch=8, global_batch=256)
                asked = sum(s[:2] == (job_id, job.restarts) for s in site.slurm.signals)
                site.report(job_id, plan=plan, checkpoint_requests=asked)
        site.epoch(60)
        for _ in range(12):
            for job_id in list(site.slurm.jobs):
                if job_id in site.daemon.controller.jobs and site.life(job_id).state is ResizeState.CHECKPOINTING:
                    site.report(job_id, checkpoint_requests=1)
            site.tick(2)
            used = sum(
                int(j.tres_per_node.rpartition(":")[2]) for j in site.slurm.jobs.values() if j.state == "RUNNING"
            )
            assert used <= 4
        if turn == 7:
            assert {j.state for j in site.slurm.jobs.values()} == {"RUNNING"} and len(site.slurm.jobs) == 2
    assert set(site.slurm.jobs) == set(site.daemon.controller.jobs) == {2}
    assert site.slurm.jobs[2].tres_per_node == "gres:gpu:4" and site.life(2).state is ResizeState.RUNNING
    with site.store() as store:
        assert set(store.lifecycles()) == {2}
    assert "left the queue" in site.story(1) and not plan_file.plan_path(site.folder, 1).exists()


def test_keep_and_paused_and_held_jobs_are_left_alone(site: Site) -> None:
    site.running(1, "n1")
    site.slurm.submit(2, priority=0)
    with site.store() as store:
        store.set_paused(1, True, 0.0)
    site.epoch(60)
    before = len(site.slurm.calls)
    decided = site.epoch(60)
    site.tick()
    assert acted(decided) in ({}, {2: "wait"}) and len(site.slurm.calls) == before
    with site.store() as store:
        store.set_paused(1, False, 1.0)
    assert acted(site.epoch(60)).get(1) == "resize"


def test_a_decision_is_stored_again_when_its_reason_changes(site: Site) -> None:
    site.slurm.submit(1)
    site.slurm.runs(1, "n1")
    site.epoch()
    site.epoch(60)  # nothing new
    with site.store() as store:
        store.set_paused(1, True, 0.0)
    site.epoch(60)
    site.epoch(60)
    with site.store() as store:
        reasons = [d.decision.why for d in store.decisions_of(1, 10)]
    assert len(reasons) == 2 and "paused" in reasons[0] and "not reported" in reasons[1]
