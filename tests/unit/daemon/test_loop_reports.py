"""The daemon's loop: reports, what is learnt from them, and reads and stores that fail."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from synergy_core.job_report import Report
from synergy_core.records import Action, Plan, Profile, Shape
from synergy_core.wire.codec import decode, encode

from synergyd.control.resize.instructions import Target
from synergyd.control.resize.lifecycle import JobLifecycle, ResizeState
from synergyd.daemon.ports.report_inbox import ReceivedReport
from synergyd.slurm.client import SlurmError
from synergyd.slurm.parsed.rows import JobRow
from synergyd.store.records import StoredLifecycle
from synergyd.views.status import collect
from tests.unit.daemon.daemon_world import SCRIPT, Site, believed, grow


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


def test_reports_for_others_jobs_fill_no_log(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    """Whatever of them the report port lets through: it knows of running jobs alone."""
    site.running(1, "n1")
    caplog.clear()
    for number in range(612):
        site.post.waiting.append(ReceivedReport(Report(1, 0, number), 1001))
    site.tick()
    assert not caplog.records


def test_an_old_acknowledgement_requeues_nothing(site: Site) -> None:
    site.running(1, "n1")
    site.report(1, checkpoint_requests=3)  # checkpoints that its user asked for
    site.epoch(60)
    assert site.life(1).state is ResizeState.CHECKPOINTING and site.life(1).acks_at_request == 3
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


def test_the_first_speed_of_a_job_that_started_since_the_last_epoch_is_learnt(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The epoch read it waiting; without its speed the next one would resize it by guesses."""
    site.slurm.submit(1)
    assert site.epoch()[1].action is Action.START
    for _ in range(4):
        site.tick()
    assert site.slurm.jobs[1].state == "RUNNING"
    plan, reads, read = site.life(1).plan, list[int](), site.slurm.job
    assert plan is not None

    def counted(job_id: int, *, ended: bool = False) -> JobRow | None:
        reads.append(job_id)
        return read(job_id, ended=ended)

    monkeypatch.setattr(site.slurm, "job", counted)
    for step in (10, 20):
        site.report(1, step=step, plan=plan)
        site.tick()
    (measured,) = site.daemon.controller.profiles[1].measured
    assert measured.plan == plan and measured.step_s == 0.5 and measured.samples == 1
    assert reads == [1]  # the second report is heard with the next epoch's knowledge


def test_of_many_first_speeds_those_that_could_not_be_read_are_learnt_later(site: Site) -> None:
    jobs = range(1, 7)
    for job_id in jobs:
        site.slurm.submit(job_id)
    site.epoch()
    for _ in range(6):
        site.tick()
    started = [i for i in jobs if site.slurm.jobs[i].state == "RUNNING"]
    assert len(started) > 4  # as many as are read one by one in a look
    for step in (10, 20):
        for job_id in started:
            site.report(job_id, step=step, plan=site.life(job_id).plan)
        site.tick()
    assert [len(site.daemon.controller.profiles[i].measured) for i in started] == [1] * len(started)


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
    assert site.daemon.registry.submitted and site.life(1).state is ResizeState.CHECKPOINTING


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


@pytest.mark.slow
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


@pytest.mark.slow
def test_a_running_job_is_told_which_batch_range_it_would_gain_from(site: Site) -> None:
    site.slurm.submit(1, script=SCRIPT.replace("global_batch=256 max_gpus=4", "max_gpus=2"))
    site.slurm.runs(1, "n1")
    site.epoch()
    plan = Plan(dp=2, micro_batch=8, global_batch=16)
    site.report(1, noise_scale=5_000.0, plan=plan)
    assert "global_batch=" not in site.epoch(60)[1].why  # it has not said that it can take another
    site.report(1, noise_scale=5_000.0, plan=plan, rebatching=True)
    decision = site.epoch(60)[1]
    with site.store() as store:
        shown = collect(store).jobs[0].hint
    assert shown.startswith("global_batch=16:") and shown.endswith("% sooner")
    assert decision.action is Action.KEEP and "With global_batch=16:" in decision.why and "% sooner" in decision.why
    for _ in range(40):  # the scale is smoothed
        site.report(1, noise_scale=0.5, plan=plan, rebatching=True)
        last = site.epoch(60)[1]
    assert "global_batch=" not in last.why
