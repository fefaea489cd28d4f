"""The daemon's loop over a cluster in memory and a real SQLite store."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from synergyd.control.instructions import Target
from synergyd.control.resize import JobLifecycle, ResizeState
from synergyd.daemon.adoption import Adoption
from synergyd.daemon.report_inbox import ReceivedReport
from synergyd.records import Action, Plan, Profile, Report, Shape
from synergyd.slurm.client import SlurmError
from synergyd.store.records import StoredLifecycle
from synergyd.wire import plan_file
from synergyd.wire.codec import decode, encode
from tests.unit.daemon.daemon_world import SCRIPT, START_S, Site, acted, believed


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def grow(site: Site) -> None:
    """Job 1 runs on two GPUs of n1, and an epoch decides that it shall have four."""
    site.running(1, "n1")
    decided = site.epoch(60)[1]
    assert decided.action is Action.RESIZE and decided.cell is not None and decided.cell.shape.gpus == 4
    assert site.life(1).state is ResizeState.CHECKPOINTING


def test_a_waiting_job_starts_with_a_plan(site: Site) -> None:
    site.slurm.submit(1)
    decided = site.epoch()[1]
    assert decided.action is Action.START and decided.cell is not None
    assert site.life(1).state is ResizeState.RELEASED
    found = plan_file.read(plan_file.plan_path(site.folder, 1), 1)
    assert found == plan_file.PlanFile(1, decided.cell.plan, "ctl:7321", "/ckpt", os.getuid())
    site.tick()
    assert (site.life(1).state, site.slurm.jobs[1].state) == (ResizeState.RUNNING, "RUNNING")
    assert site.slurm.jobs[1].node_names == decided.node_names


def test_jobs_without_a_directive_are_never_written_to(site: Site) -> None:
    site.slurm.submit(1)
    site.slurm.submit(2, "#!/bin/bash\nsleep 1\n")
    site.slurm.submit(3, None)
    site.slurm.submit(4, SCRIPT.replace("gpt2", "gpt2 nonsense=1"))
    site.slurm.submit(5, SCRIPT, array=True)
    site.slurm.submit(6, SCRIPT, batch=False)
    site.slurm.submit(7, "#!/bin/bash\n# SYNERGY\n#synergy x=1\n")
    site.slurm.comments[7] = "somebody's own remark"
    for _ in range(3):
        site.epoch(60)
        site.tick()
    assert site.slurm.written_to() == {1}
    assert site.slurm.comments[7] == "somebody's own remark"
    assert set(site.daemon.registry.known) == {1, 4, 5}


def test_scripts_are_read_once_even_by_the_next_daemon(site: Site) -> None:
    site.slurm.submit(1)
    site.slurm.submit(2, "#!/bin/bash\n")
    site.epoch()
    site.epoch(60)
    assert sorted(site.slurm.scripts_read) == [1, 1, 2]  # 1 again at its start: the script beside its plan
    site.start()
    site.epoch(60)
    assert sorted(site.slurm.scripts_read) == [1, 1, 2]  # 1 by its stamp, 2 by the store


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
    assert site.daemon.registry.known == {}  # one warning, not one an epoch
    site.start()
    site.epoch(60)
    assert set(site.daemon.registry.known) == {1, 2}


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
    assert not site.daemon.busy  # `--once` ends
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
    assert [s[:2] for s in site.slurm.signals] == [(1, 0)] and site.daemon.busy
    site.tick()
    assert site.slurm.requeued == []  # not without its checkpoint
    site.report(1, checkpoint_requests=1)
    for _ in range(10):
        site.tick()
    assert site.slurm.requeued == [(1, 0)] and not site.daemon.busy
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
    flush = type(site.daemon.tools.store).flush

    class Killed(Exception):
        pass

    def flush_then_die() -> bool:
        nonlocal killed
        done = flush(site.daemon.tools.store)
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
        site.daemon.tools.store.flush = flush_then_die  # type: ignore[method-assign]
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
    assert killed or state is ResizeState.QUEUED  # a running job's resize never is QUEUED
    for _ in range(40):
        turn("tick", 10)
    assert len(site.slurm.requeued) == 1
    assert site.life(1).state is ResizeState.RUNNING
    job = site.slurm.jobs[1]
    assert (job.state, job.restarts, job.tres_per_node) == ("RUNNING", 1, "gres:gpu:4")


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


def test_a_plain_job_is_told_where_to_report_once(site: Site) -> None:
    site.slurm.submit(1)
    site.slurm.runs(1, "n1")
    site.epoch()
    assert "report=ctl:7321" in site.slurm.comments[1]
    assert plan_file.read(plan_file.plan_path(site.folder, 1), 1).plan is None
    assert "not reported yet" in site.epoch(60)[1].why
    site.start()
    site.epoch(60)
    assert sum("AdminComment" in " ".join(c) for c in site.slurm.calls) == 1


def test_a_daemon_at_another_address_tells_running_jobs(site: Site) -> None:
    """A stand-by on another host takes over: jobs must find it, with the plan they run by."""
    grow(site)
    site.report(1, checkpoint_requests=1)
    for _ in range(10):
        site.tick()
    before = plan_file.read(plan_file.plan_path(site.folder, 1), 1)
    assert site.life(1).state is ResizeState.RUNNING and before.plan is not None and before.report == "ctl:7321"
    here = site.daemon
    there = site.start()
    there.actuator = replace(there.actuator, report="ctl2:7321")
    there.adoption = Adoption(there.actuator, there.settings.state_dir, "ctl2:7321", "")
    site.epoch(60)
    assert plan_file.read(plan_file.plan_path(site.folder, 1), 1) == replace(before, report="ctl2:7321")
    assert "report=ctl2:7321" in site.slurm.comments[1] and "plan=tp:" in site.slurm.comments[1]
    calls = len(site.slurm.calls)
    site.epoch(60)
    assert len(site.slurm.calls) == calls
    site.leads, site.daemon = False, here
    site.epoch(60)
    site.leads = True
    site.epoch(60)  # and back
    assert plan_file.read(plan_file.plan_path(site.folder, 1), 1) == before


def test_a_job_that_has_to_wait_is_parked_and_parked_again(site: Site) -> None:
    site.slurm.gpus = {"n1": 4}
    site.slurm.submit(1, SCRIPT.replace("gpt2", "gpt2 resize=no"), tres_per_node="gres:gpu:4")
    site.slurm.runs(1, "n1")
    site.slurm.submit(2)
    assert site.epoch()[2].action is Action.WAIT
    parked = site.slurm.jobs[2].eligible_s
    assert parked == site.slurm.now_s + 900
    calls = len(site.slurm.calls)
    site.epoch(600)
    assert len(site.slurm.calls) == calls  # far enough away
    site.epoch(200)
    assert site.slurm.jobs[2].eligible_s == site.slurm.now_s + 900
    assert site.slurm.jobs[2].state == "PENDING" and site.slurm.written_to() <= {1, 2}


def make_way(site: Site) -> None:
    """Job 1, which can't shrink, has been asked for its last checkpoint: job 2 shall have its GPUs."""
    site.slurm.gpus = {"n1": 4}
    site.slurm.submit(1, SCRIPT.replace("gpt2", "gpt2 min_gpus=4"), tres_per_node="gres:gpu:4")
    site.slurm.runs(1, "n1")
    site.epoch()
    site.report(1, plan=Plan(dp=4, micro_batch=8, global_batch=256))
    site.slurm.submit(2, SCRIPT.replace("gpt2", "gpt2 min_gpus=4 weight=50"), tres_per_node="gres:gpu:4")
    assert site.epoch(3600)[2].action is Action.START
    assert site.life(1).stopping and site.slurm.signals and site.slurm.jobs[2].state == "PENDING"


def test_a_job_that_can_not_shrink_is_stopped_for_a_weightier_one_and_starts_again(site: Site) -> None:
    make_way(site)
    site.report(1, checkpoint_requests=1)
    for _ in range(8):
        site.tick(2)
    # what was decided for job 2 is done as soon as job 1 has left, before another epoch
    assert site.slurm.requeued == [(1, 0)] and site.life(1).state is ResizeState.QUEUED
    assert site.slurm.jobs[2].state == "RUNNING" and site.life(2).plan is not None
    assert site.epoch(60)[1].action is Action.WAIT
    assert (site.slurm.jobs[1].state, site.slurm.jobs[2].state) == ("PENDING", "RUNNING")
    assert site.slurm.jobs[1].eligible_s is not None and site.slurm.jobs[1].eligible_s > site.slurm.now_s + 60
    site.slurm.cancel(2)
    site.tick(10)  # it completes
    site.epoch(60)
    for _ in range(3):
        site.tick(2)
    assert site.slurm.jobs[1].state == "RUNNING" and site.life(1).plan is not None
    assert "preemption decided: 4 a100 GPUs" in site.story(1)


@pytest.mark.parametrize("why", ["paused", "gone"])
def test_a_job_that_need_not_make_way_any_more_goes_on(site: Site, why: str) -> None:
    make_way(site)
    if why == "paused":
        with site.store() as store:
            store.set_paused(1, True, 0.0)
    else:
        site.slurm.cancel(2)
        site.tick(1)
    site.epoch(10)
    assert site.life(1).state is ResizeState.RUNNING and not site.life(1).stopping
    site.report(1, checkpoint_requests=1)
    for _ in range(5):
        site.tick(2)
    assert site.slurm.requeued == [] and "resize given up" in site.story(1)


@pytest.mark.parametrize("change", [{"priority": 0}, {"restarts": 1}, None])
def test_what_waits_for_gpus_is_not_started_once_its_user_has_changed_it(
    site: Site, change: dict[str, int] | None
) -> None:
    make_way(site)
    if change is None:
        site.slurm.cancel(2)
    else:
        site.slurm.set(2, **change)
    site.report(1, checkpoint_requests=1)
    calls = len(site.slurm.calls)
    for _ in range(8):
        site.tick(2)
    assert site.life(1).state is ResizeState.QUEUED and site.slurm.requeued == [(1, 0)]
    assert not [c for c in site.slurm.calls[calls:] if any("2" in word.split(",") for word in c)]
    assert 2 not in site.slurm.jobs or site.slurm.jobs[2].state == "PENDING"


def test_many_are_parked_again_with_one_call(site: Site) -> None:
    site.slurm.gpus = {"n1": 4}
    site.slurm.submit(1, SCRIPT.replace("gpt2", "gpt2 resize=no"), tres_per_node="gres:gpu:4")
    site.slurm.runs(1, "n1")
    for job_id in (2, 3, 4):
        site.slurm.submit(job_id)
    site.epoch()
    before = len(site.slurm.calls)
    site.slurm.cancel(3)
    site.epoch(850)
    assert site.slurm.calls[before:] == [["update", "2,4", "StartTime=now+900"]]
    assert {site.slurm.jobs[i].eligible_s for i in (2, 4)} == {site.slurm.now_s + 900}
    site.start()  # the next daemon stamps each once more
    site.epoch(850)
    assert all("AdminComment" in " ".join(c) for c in site.slurm.calls[before + 1 :])


def test_one_that_can_never_be_scheduled_is_left_to_slurm(site: Site) -> None:
    site.slurm.submit(1, SCRIPT.replace("max_gpus=4", "min_gpus=64 max_gpus=64"))
    decided = site.epoch()[1]
    assert decided.action is Action.WAIT and "64" in decided.why
    assert site.slurm.calls == []


def test_refused_writes_are_told_once(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    site.slurm.gpus = {"n1": 4}
    site.slurm.submit(1, SCRIPT.replace("gpt2", "gpt2 resize=no"), tres_per_node="gres:gpu:4")
    site.slurm.runs(1, "n1")
    site.slurm.submit(2)
    site.slurm.submit(3)
    site.slurm.refuse = {"update": ("Access/permission denied", False)}
    site.epoch()
    site.epoch(60)
    assert caplog.text.count("could not be kept waiting") == 1 and "permission denied" in caplog.text


@pytest.mark.parametrize(
    "wrong", [{"uid": 1001}, {"restarts": 0}, {"restarts": 2}, {"restarts": 999_999}, {"job_id": 77}], ids=str
)
def test_reports_of_others_or_of_another_incarnation_are_dropped(site: Site, wrong: dict[str, int]) -> None:
    site.slurm.submit(1, restarts=1)
    site.slurm.runs(1, "n1")
    site.epoch()
    uid = wrong.get("uid", 1000)
    changes = {k: v for k, v in wrong.items() if k != "uid"}
    site.report(1, uid, noise_scale=3.0, checkpoint_requests=5, **changes)
    assert "not reported yet" in site.epoch(60)[1].why
    assert site.daemon.controller.reports == {} and site.daemon.controller.profiles == {}
    with site.store() as store:
        assert store.reports() == {} and store.profiles() == {}
    site.report(1)
    site.epoch(60)
    assert 1 in site.daemon.controller.reports


def test_an_old_acknowledgement_requeues_nothing(site: Site) -> None:
    site.running(1, "n1")
    site.report(1, checkpoint_requests=3)  # checkpoints that its user asked for
    site.epoch(60)
    assert site.life(1).state is ResizeState.CHECKPOINTING and site.life(1).acks_before == 3
    site.report(1, checkpoint_requests=3)
    site.tick()
    site.post.waiting.append(ReceivedReport(Report(1, 0, 1, checkpoint_requests=9), 1001))
    site.tick()
    assert site.slurm.requeued == []
    site.report(1, checkpoint_requests=4)
    site.tick()
    assert site.slurm.requeued == [(1, 0)]


def test_what_was_learnt_outlives_the_daemon(site: Site) -> None:
    site.running(1, "n1")
    site.report(1, noise_scale=12.0)
    site.epoch(1)
    learnt = site.daemon.controller.profiles[1]
    assert learnt.noise_scale is not None and learnt.samples > 0
    site.start()
    site.epoch(1)
    assert site.daemon.controller.profiles[1] == learnt and site.daemon.controller.reports[1].step == 10


def test_what_neighbours_on_shared_links_cost_is_not_learnt_as_the_plans(site: Site) -> None:
    site.running(1, "n1")
    site.epoch(1)
    (before,) = site.daemon.controller.profiles[1].measured
    site.daemon.controller.jobs[1].slowdown = 1.25  # as the last decision has it
    site.report(1, step_s=0.5 * 1.25)
    site.epoch(1)
    (after,) = site.daemon.controller.profiles[1].measured
    assert after.samples == before.samples + 1 and after.step_s == pytest.approx(before.step_s)
    assert site.daemon.controller.reports[1].step_s == 0.625  # `status` shows what it really takes


def test_a_job_whose_script_can_not_be_read_now_is_not_taken_for_gone(site: Site) -> None:
    site.running(1, "n1")
    site.epoch(60)
    assert site.life(1).state is ResizeState.CHECKPOINTING
    site.slurm.comments.clear()  # somebody took the stamp away
    site.slurm.unreadable = {1: True}
    site.start()
    site.epoch(1)
    site.tick(400)
    assert site.life(1).state is ResizeState.CHECKPOINTING and site.slurm.requeued == []
    site.slurm.unreadable = {}
    site.epoch(1)
    assert site.daemon.registry.known and site.life(1).state is ResizeState.CHECKPOINTING


def test_slurm_away_is_an_error_of_the_epoch_and_loses_nothing(site: Site) -> None:
    grow(site)
    before = site.life(1)
    site.slurm.away = True
    with pytest.raises(SlurmError, match="Unable to contact"):
        site.epoch(60)
    with pytest.raises(SlurmError):
        site.tick()
    assert site.life(1) == before
    site.slurm.away = False
    site.report(1, checkpoint_requests=1)
    for _ in range(10):
        site.tick()
    assert site.slurm.jobs[1].tres_per_node == "gres:gpu:4" and site.slurm.requeued == [(1, 0)]


def test_a_finished_job_in_a_bulk_read_is_gone(site: Site) -> None:
    site.running(1, "n1")
    site.slurm.set(1, state="COMPLETED", node_names=())
    assert site.epoch(60) == {} and site.daemon.controller.jobs == {}


def test_a_disk_that_is_full_stops_no_epoch(
    site: Site, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("synergyd.daemon.heartbeat.write", full)
    monkeypatch.setattr(Path, "unlink", full)
    site.slurm.submit(1)
    site.epoch()
    site.slurm.cancel(1)
    site.epoch(60)
    assert caplog.text.count("heartbeat can't be written") == 2 and "plan of job 1 can't be removed" in caplog.text


def test_partitions_of_the_settings_bound_what_is_looked_at(tmp_path: Path) -> None:
    site = Site(tmp_path, partitions=("main",))
    site.slurm.submit(1)
    site.slurm.submit(2, partition="other")
    assert set(site.epoch()) == {1} and set(site.slurm.scripts_read) == {1}


def test_a_damaged_admin_comment_costs_a_line_and_this_job_alone(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    site.slurm.submit(1)
    site.slurm.comments[1] = "synergy:1 model=%zz\udcff | plan=tp:x cpus=\x00 report=\x1b[2J"
    site.slurm.submit(2)
    found = site.epoch()
    assert found[2].action is Action.START
    assert found[1].action is Action.WAIT and "AdminComment: 'model' can't be read" in found[1].why
    site.epoch(60)
    said = [r.getMessage() for r in caplog.records if "AdminComment" in r.getMessage()]
    assert len(said) == 3 and all(x.isprintable() and x.startswith("job 1: AdminComment: ") for x in said)


def test_lives_that_make_no_sense_are_taken_as_new(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    site.running(1, "n1")
    good = encode(JobLifecycle(1, 0.0))
    bad: list[dict[str, object]] = [
        {}, {**good, "state": "NOWHERE"}, {**good, "state": "HELD"}, {**good, "attempts": "x"}, {**good, "attempts": -1},
        {**good, "since_s": None}, {**good, "restarts": True}, {**good, "target": "x"}, {**good, "target": {"shape": {}}},
        {**good, "plan": {"tp": 0}}, {**good, "plan": [1]},
    ]  # fmt: skip
    for number, payload in enumerate(bad):
        with site.store() as store:
            store.put_lifecycles([StoredLifecycle(1, 0.0, "HELD", payload, 0.0)])
        site.start()
        site.epoch(1)
        assert (
            site.life(1).state in (ResizeState.RUNNING, ResizeState.CHECKPOINTING)
            and caplog.text.count("taken as new") == number + 1
        )


def test_lives_come_back_as_they_were() -> None:
    target = Target(Shape("a100", 2, 4), ("n1", "n2"), Plan(tp=2, dp=4, global_batch=8))
    for state in ResizeState:
        life = JobLifecycle(
            7,
            1.5,
            state,
            2.5,
            3,
            target,
            replace(target, nodes=(), plan=None),
            1.0,
            2.0,
            4,
            1,
            9.0,
            target.plan,
            "more",
            8.5,
            2,
            True,
        )
        assert decode(JobLifecycle, encode(life)) == life
        assert decode(JobLifecycle, {**encode(life), "of a newer version": 1}) == life


def test_a_job_without_reports_starts_from_what_like_jobs_learnt(site: Site) -> None:
    site.running(1, "n1")
    site.slurm.submit(2)
    site.slurm.submit(3, SCRIPT.replace("gpt2", "gpt2-medium"))
    site.epoch(1)
    learnt, like, other = believed(site, 1, 2, 3)
    assert learnt == site.daemon.controller.profiles[1] and learnt.speed != 1.0
    assert like.speed == pytest.approx(learnt.speed, rel=0.011) and like.samples == 1
    assert other == Profile() and 2 not in site.daemon.controller.profiles


def test_the_next_run_of_a_plain_program_starts_from_what_the_last_one_measured_even_with_another_daemon(
    site: Site,
) -> None:
    plain = "#!/bin/bash\n#SYNERGY global_batch=256 max_gpus=4\nsrun synergy-launch train.py\n"
    site.slurm.submit(1, plain)
    site.slurm.runs(1, "n1")
    site.epoch()
    site.report(1, plan=Plan(dp=2, micro_batch=8, global_batch=256), step_s=0.7)
    site.epoch(10)
    site.slurm.cancel(1)
    site.tick(30)
    site.epoch(10)
    assert 1 not in site.daemon.controller.jobs
    site.start()
    site.slurm.submit(2, plain)
    site.slurm.submit(3, plain.replace("256", "128"))
    site.epoch(10)
    known, other = believed(site, 2, 3)
    assert [m.step_s for m in known.measured] == pytest.approx([0.7], rel=0.02) and other == Profile()
