"""What a restart is believed to cost: the setting, then the program's restarts, then the job's own."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest
from synergy_core.records import Directive, Job, JobState, Profile, Shape
from synergy_core.restarts import RestartCost, RestartTimes

from synergyd.jobmodel.restart_cost import RestartCostModel, restart_key, storage_mark

PRIOR_S = 60.0


def job(job_id: int = 1, name: str = "llama", **said: Any) -> Job:
    shape = Shape("a100", 1, 4)
    directive = Directive(**{"checkpoint": "/scratch/run", **said})
    return Job(
        job_id, name, "ann", 1000, "main", JobState.RUNNING, "", 0.0, 0.0, None, 0, shape, shape, directive=directive
    )


def times(
    restarts: int, checkpoint_s: float = 8.0, requeue_s: float = 2.0, start_s: float = 250.0, **more: Any
) -> RestartTimes:
    return RestartTimes(
        job_id=more.pop("job_id", 1),
        restarts=restarts,
        checkpoint_s=checkpoint_s,
        requeue_s=requeue_s,
        start_s=start_s,
        **more,
    )


def after(*measured: RestartTimes, of: Job | None = None) -> RestartCostModel:
    costs = RestartCostModel(PRIOR_S)
    for one in measured:
        costs.learn(replace(of or job(), job_id=one.job_id), one)
    return costs


def test_before_anything_was_measured_it_is_the_setting() -> None:
    cost = RestartCostModel(PRIOR_S).cost(job())
    assert (
        cost.mean_s == pytest.approx(PRIOR_S, rel=0.02)
        and cost.spread_s > PRIOR_S / 2
        and (cost.own, cost.others) == (0, 0)
    )
    assert cost.format().startswith("60 s (expected; +-")


def test_a_few_own_restarts_outweigh_the_setting_and_narrow_the_spread() -> None:
    costs = [after(*(times(n) for n in range(1, count + 1))).cost(job()) for count in (1, 3, 10)]
    assert [c.own for c in costs] == [1, 3, 10]
    assert abs(costs[0].mean_s - 260) < 80 and abs(costs[1].mean_s - 260) < 40 and abs(costs[2].mean_s - 260) < 20
    assert costs[0].spread_s > costs[1].spread_s > costs[2].spread_s
    assert costs[1].format().startswith(f"{costs[1].mean_s:.0f} s (measured, 3 restarts; +-")


def test_the_spread_is_that_of_the_restarts() -> None:
    draws = random.Random(1)
    seen = [times(n, start_s=100 * draws.lognormvariate(0, 0.5)) for n in range(1, 31)]
    wide, narrow = after(*seen).cost(job()), after(*(times(n, start_s=100.0) for n in range(1, 31))).cost(job())
    assert 40 < wide.spread_s < 80 and narrow.spread_s < 30


def test_a_job_of_the_same_program_on_the_same_storage_inherits_and_no_other() -> None:
    costs = after(*(times(n) for n in range(1, 6)))
    like = costs.cost(job(2, "llama-2"))
    assert (
        like.mean_s > 180
        and (like.own, like.others) == (0, 5)
        and "measured on 5 restarts of its program" in like.format()
    )
    elsewhere = costs.cost(job(3, checkpoint="/home/ann/run"))
    assert PRIOR_S < elsewhere.mean_s < 150 and elsewhere.others == 0  # of the cluster it says something
    assert like.mean_s > 1.3 * elsewhere.mean_s
    assert restart_key(job()) == restart_key(job(9)) != restart_key(job(name="other"))
    assert [storage_mark(p) for p in ("/scratch/a/b", "/scratch", "run", "", None)] == [
        "/scratch",
        "/scratch",
        "",
        "",
        "",
    ]


def test_jobs_that_share_a_name_and_no_cost_are_told_apart() -> None:
    quick = [times(n, job_id=n, checkpoint_s=1.0, start_s=20.0) for n in range(10, 15)]
    slow = after(*quick, times(1, start_s=250.0)).cost(job())
    assert slow.mean_s > 150 and after(*quick).cost(job()).mean_s < 50


def test_what_many_programs_cost_is_expected_of_a_new_one() -> None:
    costs = RestartCostModel(PRIOR_S)
    for number in range(20):
        of = job(number + 10, f"program-{chr(97 + number)}x")
        costs.learn(of, times(1, job_id=of.job_id))
    assert costs.cost(job()).mean_s > 180


def test_a_first_start_says_less_than_a_restart() -> None:
    first, restart = after(times(0)).cost(job()), after(times(1)).cost(job())
    assert PRIOR_S < first.mean_s < restart.mean_s and first.own == 0
    assert abs(after(times(0), *(times(n, start_s=20.0) for n in (1, 2, 3))).cost(job()).mean_s - 30) < 15


def test_one_odd_restart_is_bounded_and_forgotten() -> None:
    usual = [times(n, start_s=40.0) for n in range(1, 9)]
    odd = times(9, start_s=1e6)
    assert after(odd).cost(job()).mean_s <= 20 * PRIOR_S
    assert after(*usual, odd).cost(job()).mean_s < 3 * after(*usual).cost(job()).mean_s
    later = [times(n, start_s=40.0) for n in range(10, 50)]
    assert after(*usual, odd, *later).cost(job()).mean_s == pytest.approx(50, rel=0.1)


def test_it_grows_with_the_bytes_that_each_gpu_writes_where_that_was_seen() -> None:
    grows = [
        times(n, checkpoint_s=10.0 * size, bytes_per_writer=1e9 * size) for n, size in enumerate((1, 2, 4, 8) * 3, 1)
    ]
    flat = [times(n, checkpoint_s=30.0, bytes_per_writer=1e9 * size) for n, size in enumerate((1, 2, 4, 8) * 3, 1)]
    small, large = (after(*grows).cost(job(), size).checkpoint_s for size in (1e9, 8e9))
    assert large > 4 * small
    small, large = (after(*flat).cost(job(), size).checkpoint_s for size in (1e9, 8e9))
    assert large == pytest.approx(small, rel=0.05)


def test_what_was_learnt_is_read_back() -> None:
    costs = RestartCostModel(PRIOR_S)
    stored: dict[str, Profile] = {}
    for n in range(40):
        stored |= costs.learn(job(), times(n, start_s=200.0 + n))
    again = RestartCostModel(PRIOR_S)
    again.load({**stored, "job:1": next(iter(stored.values()))})
    assert again.cost(job()) == costs.cost(job()) and len(stored) == 1
    assert len(next(iter(stored.values())).restarts) == 32
    costs.forget(1)
    assert costs.cost(job()) == again.cost(job())


def test_a_restart_told_twice_counts_once() -> None:
    assert after(times(1), times(1)).cost(job()) == after(times(1)).cost(job())


def test_where_restarts_are_free_they_stay_so() -> None:
    costs = RestartCostModel(0.0)
    costs.learn(job(), times(1))
    assert costs.cost(job()) == RestartCost(mean_s=0.0)
