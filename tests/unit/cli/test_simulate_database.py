"""`synergyctl simulate --from-database`: a store filled through its own methods, replayed."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from synergy_core.errors import UsageError
from synergy_core.job_report import Report
from synergy_core.reasons import text_reason
from synergy_core.records import Action, Cell, Decision, Measurement, ModelSpec, Plan, Profile, Shape
from synergy_sim.cli.database import read_database, recorded_cluster, recorded_jobs
from synergy_sim.cli.simulate import simulate_verb
from synergy_sim.records import PlacedGpus
from synergy_sim.traces.queue import UNREADABLE, RecordedJob, replay_queue

from synergyd.store.records import EpochRecord, StoredEvent, StoredLifecycle, StoredReport
from synergyd.store.store import Store, open_store
from tests.unit.daemon.daemon_world import START_S, Site

TWO = Shape("a100", 1, 2)
PLAN = Plan(dp=2, micro_batch=8, global_batch=32, zero_stage=0)
T0 = 1_700_000_000.0
SUMMARY = {"nodes": 2, "gpus": 8}
SPEC = ModelSpec("gpt-mini", 4, 256, 4, 4, 1024, 1000, 256)


def profile(step_s: float = 0.5, noise: float | None = None, plan: Plan = PLAN) -> Profile:
    return Profile(samples=9, global_batch=plan.global_batch, noise_scale=noise,
                   measured=(Measurement(plan, TWO, step_s, 9),))  # fmt: skip


def gone(store: Store, job_id: int, start_s: float, end_s: float, step: int, one: Profile | None = None) -> None:
    """A job that was seen, ran and left."""
    cell = Cell(TWO, PLAN, 64.0, 1.0, 64.0, 0.5, 0)
    wait = Decision(job_id, Action.WAIT, None, (), text_reason("no GPUs free"))
    given = Decision(job_id, Action.START, cell, ("n1",), text_reason("its size"))
    store.save_epoch(EpochRecord(T0 + start_s - 60, 0.1, False, (wait,), SUMMARY))
    store.save_epoch(EpochRecord(T0 + start_s, 0.1, False, (given,), SUMMARY))
    store.append_events(
        [
            StoredEvent(job_id, T0 + start_s, "HELD", "Wanted", "start decided"),
            StoredEvent(job_id, T0 + start_s + 5, "RUNNING", "Observed", "started with its new size"),
            StoredEvent(job_id, T0 + end_s, "GONE", "Observed", "left the queue while RUNNING"),
        ]
    )
    if one is not None:
        store.put_profiles({f"job:{job_id}": one}, T0)
    store.put_reports([StoredReport(Report(job_id, 0, step, 0.5, plan=PLAN), T0 + end_s)])


@pytest.fixture
def url(tmp_path: Path) -> str:
    found = f"sqlite:///{tmp_path / 'synergy.db'}"
    with open_store(found, create=True):
        pass
    return found


def invoke(*arguments: str) -> tuple[int, str, str]:
    done = CliRunner().invoke(simulate_verb, list(arguments))
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done.exit_code, done.stdout, done.stderr


def test_a_recorded_queue_is_replayed(url: str) -> None:
    with open_store(url) as store:
        gone(store, 11, 60, 700, 1000, profile())
        gone(store, 12, 120, 900, 400, profile(1.0))
    code, out, err = invoke("--from-database", url, "--policy", "fifo,tiresias", "--json", "-")
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert (found["jobs"], found["gpus"], found["left_out"]) == (2, 8, {})
    # 640 s and 60 s before its start; 780 s and 60 s
    assert found["recorded"] == {"jobs": 2, "avg_jct_s": (700 + 840) / 2}
    # 1,000 steps of 0.5 s and 400 of 1 s, 30 s a start; 12 comes at the very instant of the first epoch
    for policy in ("fifo", "tiresias"):
        assert found["policies"][policy]["avg_jct_s"] == pytest.approx(((60 + 30 + 500) + (30 + 400)) / 2)
    code, out, err = invoke("--from-database", url, "--policy", "synergy", "--nodes", "1")
    assert code == 0 and "4 GPUs" in out and "as recorded: 2 of these jobs" in out


def test_what_is_not_known_is_left_out_and_counted(url: str) -> None:
    with open_store(url) as store:
        gone(store, 11, 60, 700, 1000, profile())
        gone(store, 12, 60, 700, 1000)  # never measured
        gone(store, 13, 60, 700, 0, profile())  # no step done
        store.append_events([StoredEvent(14, T0, "RUNNING", "Observed", ""), StoredEvent(15, T0, "HELD", "Wanted", "")])
        store.put_profiles({"job:14": profile(), "job:16": profile()}, T0)
        # 16 runs too, and says where its end is
        store.append_events([StoredEvent(16, T0 + 9, "RUNNING", "Observed", "")])
        store.put_lifecycles([StoredLifecycle(16, T0 + 3, "RUNNING", {}, T0 + 9)])
        store.put_reports([StoredReport(Report(16, 0, 10, 0.5, plan=PLAN, done=320.0, total=6400.0), T0 + 30)])
        gone(store, 17, 0, 100, 50, profile())
        gone(store, 17, 200, 300, 80, profile())  # its number came again
        present = {"job_id": 16, "name": "sixteen", "asked_gpus": 1}
        store.save_epoch(EpochRecord(T0 + 1000, 0.1, False, (), SUMMARY, present=(present,)))
    code, out, err = invoke("--from-database", url, "--policy", "fifo", "--json", "-")
    assert code == 0
    assert err == (
        "synergyctl simulate: 5 of 8 recorded jobs are left out: 1 left without a measured step, 1 left without any "
        "progress reported, 1 still there and no total stated, 1 still waiting, never measured, 1 number used again by "
        "a later job\n"
    )
    assert json.loads(out)["jobs"] == 3 and sum(json.loads(out)["left_out"].values()) == 5
    where, kept = read_database(url)
    found = {job.name: job for job in replay_queue(recorded_jobs(kept), where, ["a100"]).jobs}
    assert set(found) == {"job 11", "sixteen", "job 17"}
    assert (found["sixteen"].gpus, found["sixteen"].truth.end(0), found["sixteen"].submit_s) == (1, 200.0, 3.0)
    assert (found["job 17"].truth.end(0), found["job 17"].submit_s) == (80.0, 200.0)


def test_measured_plans_keep_their_times_and_others_follow_the_profile() -> None:
    small = Plan(dp=2, micro_batch=4, global_batch=8, zero_stage=0)
    one = Profile(samples=40, global_batch=32, noise_scale=32.0,
                  measured=(Measurement(small, TWO, 0.25, 30), Measurement(PLAN, TWO, 0.5, 10)))  # fmt: skip
    record = RecordedJob(3, T0, T0 + 900, first_shape=TWO, profile=one, report=Report(3, 0, 50, done=5000.0))
    (only,) = replay_queue([record], "db", ["a100"]).jobs
    truth = only.truth
    assert (truth.low, truth.high, only.batch_fixed, only.max_micro_batch) == (8, 32, False, 8)
    pace = truth.pace(0, PlacedGpus("a100", (2,)), PLAN)
    assert pace is not None and (pace.step_s, pace.noise_scale) == (0.5, 32.0)
    # (32 + 8) / (32 + 32) of the examples of a batch of 32 count as ones of 8
    assert pace.rate == pytest.approx(32 * 0.625 / 0.5 / 8)
    # 30 reports at 32 examples a second, 10 at 64: weights 960 and 640 of the 5,000 examples
    assert truth.end(0) == pytest.approx(5000 * (960 * 1 + 640 * 0.625) / 1600 / 8)
    four = truth.pace(0, PlacedGpus("a100", (4,)), Plan(dp=4, micro_batch=8, global_batch=32, zero_stage=0))
    spread = truth.pace(0, PlacedGpus("a100", (3, 1)), Plan(dp=4, micro_batch=8, global_batch=32, zero_stage=0))
    assert four is not None and spread is not None
    assert spread.step_s > four.step_s and four.step_s < 0.5
    best = truth.best_rates(TWO)
    assert best is not None and best[0] >= pace.rate
    assert truth.pace(0, PlacedGpus("a100", (4,)), PLAN) is None


def test_numbers_that_make_no_sense_leave_a_job_out() -> None:
    good = RecordedJob(1, T0, T0 + 9, first_shape=TWO, profile=profile(), report=Report(1, 0, 9))
    for wrong in (
        replace(good, profile=profile(0.0)),
        replace(good, profile=profile(math.nan)),
        replace(good, profile=profile(noise=math.inf)),
        replace(good, end_s=None, report=Report(1, 0, 9, total=math.inf)),
    ):
        made = replay_queue([good, wrong], "db", ["a100"])
        assert len(made.jobs) == 1 and made.excluded_jobs == {UNREADABLE: 1}


def test_a_known_model_is_replayed_with_its_degrees() -> None:
    plan = Plan(tp=2, micro_batch=4, global_batch=32)
    one = Profile(samples=5, speed=0.5, resharding=True, model=SPEC, global_batch=32,
                  measured=(Measurement(plan, TWO, 2.0, 5),))  # fmt: skip
    record = RecordedJob(3, T0, T0 + 9, first_shape=TWO, profile=one, report=Report(3, 0, 9, tokens=256 * 640))
    (only,) = replay_queue([record], "db", ["h100"]).jobs
    assert (only.model, only.spec, only.reshard, only.gpu_type, only.batch) == ("gpt-mini", SPEC, True, "", 32)
    assert only.truth.end(0) == 640 / 32
    other = only.truth.pace(0, PlacedGpus("a100", (2,)), Plan(dp=2, micro_batch=4, global_batch=32))
    assert other is not None and 0 < other.step_s != 2.0
    assert only.truth.plans(TWO, 64) == ()


@pytest.mark.slow
def test_mistakes_are_one_line(url: str, tmp_path: Path) -> None:
    empty = tmp_path / "none.db"
    for arguments, message in (
        (["--from-database", url], "the database has no jobs; let synergyd run for a while"),
        (["--from-database", f"sqlite:///{empty}"], "there is no such database yet"),
        (["--from-database", "mysql://x/y"], "database URL: unknown kind 'mysql'"),
        (["--from-database", "what"], "database URL: can't be read as a URL"),
        (
            ["--from-database", url, "--trace", "generate:3"],
            "--trace: give it or --from-database or --from-queue, one of them",
        ),
        ([], "--trace: give it or --from-database"),
    ):
        code, out, err = invoke(*arguments)
        assert (code, out, err.count("\n")) == (2, "", 1) and message in err
    with open_store(url) as store:
        store.append_events([StoredEvent(14, T0, "RUNNING", "Observed", "")])
    code, out, err = invoke("--from-database", url, "--types", "a100=1x4")
    assert (code, out) == (2, "") and "none of its 1 jobs can be replayed: 1 still there and no total stated" in err
    code, out, err = invoke("--from-database", url)
    assert (code, out) == (2, "") and "its cluster can't be told from it" in err and "give --types" in err


def test_a_database_that_is_away_is_one_line() -> None:
    code, out, err = invoke("--from-database", "postgresql://127.0.0.1:1/none")
    assert (code, out, err.count("\n")) == (1, "", 1)


def test_the_cluster_of_a_recording(url: str) -> None:
    with open_store(url) as store:
        gone(store, 11, 60, 700, 1000, profile())
        assert recorded_cluster(store.recording(), "db") == {"a100": (2, 4)}
        store.save_epoch(EpochRecord(T0 + 5000, 0.1, False, (), {"nodes": 3, "gpus": 8}))
        with pytest.raises(UsageError, match="3 nodes with 8 GPUs of a100"):
            recorded_cluster(store.recording(), "db")


def test_a_row_that_can_not_be_read_leaves_its_job_out(url: str) -> None:
    with open_store(url) as store:
        gone(store, 11, 60, 700, 1000, profile())
        gone(store, 12, 60, 700, 1000, profile())
        gone(store, 13, 60, 700, 1000, profile())
        with store.engine.execution_options(writes=True).begin() as connection:
            connection.exec_driver_sql('UPDATE reports SET payload = \'{"job_id": "x"}\' WHERE job_id = 12')
            connection.exec_driver_sql("UPDATE decisions SET cell = '{}' WHERE job_id = 13 AND cell IS NOT NULL")
    code, _, err = invoke("--from-database", url, "--policy", "fifo", "--json", "-")
    assert (
        code == 0
        and "2 of 3 recorded jobs are left out: 2 with a stored report, profile or decision that can't be read" in err
    )


@pytest.mark.slow
def test_what_a_daemon_itself_has_stored_can_be_replayed(tmp_path: Path) -> None:
    site = Site(tmp_path / "state")
    for job_id, steps in ((1, 1000), (2, 400)):
        site.slurm.submit(job_id)
        decided = site.epoch()[job_id]
        site.tick()
        assert decided.cell is not None and site.slurm.jobs[job_id].state == "RUNNING"
        site.epoch(60)
        site.report(job_id, plan=decided.cell.plan, step=steps, done=256.0 * steps, total=256000.0)
        site.epoch(600)
        if job_id == 1:
            del site.slurm.jobs[1]
            site.epoch(60)
    where, kept = read_database(site.url)
    gone, there = sorted(recorded_jobs(kept), key=lambda job: job.job_id)
    assert (gone.submit_s, gone.end_s, gone.ran) == (START_S, START_S + 1 + 60 + 600 + 60, True)
    assert (there.submit_s, there.end_s, there.asked_gpus) == (gone.end_s, None, 2)
    assert recorded_cluster(kept, where) == {"a100": (2, 4)}
    made = replay_queue([gone, there], where, ["a100"])
    assert not made.excluded_jobs and made.recorded_jcts_s == (721.0,)
    # the one that is still there is replayed to the end that it states
    assert [job.truth.end(0) for job in made.jobs] == [1000.0, 1000.0]
    code, out, err = invoke("--from-database", site.url, "--policy", "synergy,fifo", "--json", "-")
    assert (code, err) == (0, "") and json.loads(out)["policies"]["synergy"]["finished"] == 2
