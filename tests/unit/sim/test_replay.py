"""The pieces of tests/benchmarks/replay.py that need no cluster: compressed truths, what a job is told, costs of what was seen."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from synergy_core.records import Plan, Shape
from synergy_sim.records import Costs, PlacedGpus, place_shape

from tests.benchmarks import replay as benchmark
from tests.throwaway import replay_job, replay_site
from tests.throwaway.replay_site import Held, measured, script
from tests.throwaway.replay_truth import PaceServer, Said, compressed, needed_s, scaled, told
from tests.unit.sim.builders import job

PLAN = Plan(dp=4, micro_batch=16, global_batch=64, zero_stage=0)
TWO_BY_TWO = PlacedGpus("a100", (2, 2))


def test_compressed_jobs_are_as_many_times_as_fast_from_the_first_submission_on() -> None:
    slow = (job(120.0, 4, 400.0), job(240.0, 1, 100.0))
    first, second = compressed(slow, 12.0)
    assert (first.submit_s, second.submit_s) == (0.0, 10.0)
    pace = first.truth.pace(0, TWO_BY_TWO, PLAN)
    own = slow[0].truth.pace(0, TWO_BY_TWO, PLAN)
    assert pace is not None and own is not None
    assert (pace.rate, pace.step_s) == (12 * own.rate, own.step_s / 12)
    rates, own_rates = (t.best_rates(Shape("a100", 1, 4)) for t in (first.truth, slow[0].truth))
    assert rates is not None and own_rates is not None and rates.tolist() == (12 * own_rates).tolist()
    assert first.truth.end(0) == slow[0].truth.end(0)
    assert needed_s(first, place_shape(Shape("a100", 1, 4))) == pytest.approx(400 / 4 / 12)


def test_a_job_asks_a_server_for_its_pace(tmp_path: Path) -> None:
    mine = job(0.0, 4, 400.0, stages=2)
    with PaceServer(tmp_path / "paces", {mine.name: mine}, "a100") as server:
        path = str(server.path)
        training = replay_job.Training(path, mine.name, nodes=2, each=2, restarts=1)
        found = training.told(PLAN)
        assert (found.plan, found.ends, found.rates, found.base_batch) == (PLAN, (200.0, 400.0), (4.0, 4.0), 64)
        assert training.told(None).plan.global_batch == 64
        training.say("trains")
    assert [(s.what, s.restarts, s.gpus) for s in server.said[mine.name]] == [
        ("asked", 1, 4),
        ("asked", 1, 4),
        ("trains", 1, 0),
    ]


def test_steps_that_pass_together_count_as_their_share() -> None:
    timer = replay_job.ManySteps(skip=0)
    timer.together = 10
    timer.add(2.5)
    assert timer.median_s == 0.25


def test_costs_are_means_of_what_jobs_said_and_slurm_showed() -> None:
    held = {"a": [Held(0.0, 100.0), Held(104.0, 200.0)], "b": [Held(0.0, 50.0)]}
    said = {
        "a": [
            Said("trains", 0, 3.0),
            Said("saves", 0, 98.0),
            Said("trains", 1, 109.0),
            Said("saves", 1, 120.0),
            Said("saves", 1, 150.0),
            Said("trains", 1, 155.0),
            Said("done", 1, 198.5),
            Said("saves", 1, 199.0),
        ],
        "b": [Said("trains", 0, 5.0), Said("done", 0, 49.5), Said("saves", 0, 49.6)],
    }
    costs, counted = measured(held, said, {"a": [-90.0, -3.0, 30.0], "b": [-2.0]})
    # a first start of 3 and 5 s; 2 s from the checkpoint to free nodes, 4 to the next start; ends of 1.5 and 0.5 s; a start 3 and 2 s
    # after the last epoch before it that decided it; 5 s from a checkpoint to the next run of the same incarnation, as a checkpoint and 3 s
    assert costs == Costs(4.0, 2.0, 4.0, 5.0, 1.0, 2.5, 3.0)
    assert counted == {"first_start": 2, "start": 1, "checkpoint": 1, "requeue": 1, "end": 2, "grant": 2, "live": 1}
    assert scaled(costs, 12) == Costs(48.0, 24.0, 48.0, 60.0, 12.0, 30.0, 36.0)


def test_a_replay_reads_from_the_daemons_store_when_starts_were_decided(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "synergy.db")) as store:
        store.execute("CREATE TABLE decisions (job_id INTEGER, at_s REAL, action TEXT)")
        rows = [(7, 5.0, "start"), (7, 1.0, "start"), (7, 2.0, "keep"), (8, 3.0, "start")]
        store.executemany("INSERT INTO decisions VALUES (?, ?, ?)", rows)
        store.commit()
    found = replay_site.starts_decided(tmp_path / "synergy.db", {7: "a", 8: "b"})
    assert found == {"a": [1.0, 5.0], "b": [3.0]}


def test_scripts_say_what_a_user_would() -> None:
    mine, shape = job(0.0, 4, 400.0), Shape("a100", 2, 2)
    plain = script(mine, shape, Path("/c"), Path("/s"), managed=False)
    # 100 s and 30 s of slack, in whole minutes
    assert (
        "#SBATCH --nodes=2 --gres=gpu:2 --open-mode=append --time=3\nexport SYNERGY_IN_PLACE=nodes\nsrun synergy-launch"
        in plain
    )
    assert "#SYNERGY global_batch=64 checkpoint=/c\n" in script(mine, shape, Path("/c"), Path("/s"), managed=True)
    assert replay_site.figures_lines("t4", 2.0).startswith("#SYNERGY GpuType=t4 peak_tflops=130 bandwidth_gbs=640")
    assert told(mine, TWO_BY_TWO, None)["base_batch"] == 64


def test_the_table_compares_with_the_mean_of_several_simulations() -> None:
    real = {
        "avg_jct_s": 100.0,
        "median_jct_s": 50.0,
        "avg_wait_s": 0.0,
        "restarts_per_job": 2.0,
        "gpu_hours": 4.0,
        "makespan_s": 9.0,
    }
    sims = [{**real, "avg_jct_s": 100.0}, {**real, "avg_jct_s": 120.0}]
    *_, apart, spread = benchmark.compared("synergy", real, sims).splitlines()
    assert apart.split()[1] == "+10.0%" and spread.split()[2] == "+20.0%"
