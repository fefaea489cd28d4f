"""Simulated jobs that allow `comm=`: what options save and cost in truth, and who takes them."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from click.testing import CliRunner
from synergy_core.exchange import KINDS, parse_exchange
from synergy_core.records import ModelSpec, Plan, Shape
from synergy_sim.cli.simulate import simulate_verb
from synergy_sim.exchanging_truth import ExchangingTruth, reported_efficiency, speed_with_exchange, with_comm
from synergy_sim.ideal import Ideals, compute_lower_bound
from synergy_sim.records import PlacedGpus, Scenario, SimulatedRun, TraceJob, TrainingSpeed, place_shape
from synergy_sim.runs import simulate
from synergy_sim.scaling_truth import ScalingTruth

from synergyd.jobmodel.model.exchange_cost import prior_worth
from synergyd.settings import Settings
from tests.unit.sim import builders

ALL = KINDS[1:]
TWO_NODES = Shape("a100", 2, 4)


def job(network: float, gpus: int = 8, seconds: float = 3000.0, submit_s: float = 0.0) -> TraceJob:
    """`network` of its step on one GPU it sends, where it spans two nodes with one GPU."""
    asked = PlacedGpus("a100", (4,) * (gpus // 4))
    truth = ScalingTruth(("a100",), seconds, asked, 64, parallel=0.99, network=network, step_s=0.5)
    return TraceJob(f"j{submit_s:g}", "made", submit_s, gpus, 64, truth, "trace:1", "a100", batch_fixed=True)


@pytest.mark.parametrize(
    ("option", "left_s", "worth"),
    # 3 s of work and 1 s of exchange, then 1 s and 3 s
    [
        ("local:4", (0.25, 0.75), 1 / (1 + 0.067 * 2 * 3)),
        ("compressed:bf16", (0.5, 1.5), 1 / 1.02),
    ],
)
def test_what_an_option_saves_and_what_an_example_is_worth(
    option: str, left_s: tuple[float, ...], worth: float
) -> None:
    for work_s, left in zip((3.0, 1.0), left_s, strict=True):
        sent_s = 4.0 - work_s
        found = speed_with_exchange(
            TrainingSpeed(8.0, 4.0, 77.0, sync_s=sent_s, exchange_s=sent_s), parse_exchange(option, "test"), 8
        )
        assert (found.step_s, found.exchange_s, found.sync_s) == pytest.approx((work_s + left, left, left))
        assert found.rate == pytest.approx(8.0 * 4.0 / (work_s + left) * worth) and found.noise_scale == 77.0


def test_replicas_that_exchange_nothing_have_no_options() -> None:
    (less,) = with_comm([job(0.3)], ALL)
    truth = less.truth
    assert {plan.exchange for plan in truth.plans(Shape("a100", 1, 4))} == {"exact"}
    plans = truth.plans(TWO_NODES)
    assert {plan.exchange for plan in plans} > {"exact", "local:8", "compressed:bf16"}
    for plan in plans:
        assert truth.executed_plan(plan) == plan and truth.pace(0, place_shape(TWO_NODES), plan) is not None
    rates = truth.best_rates(TWO_NODES)
    exact = job(0.3).truth.best_rates(TWO_NODES)
    assert rates is not None and exact is not None and rates[0] > exact[0]
    one = Plan(dp=1, micro_batch=64, global_batch=64, zero_stage=0, exchange="local:8")
    alone = PlacedGpus("a100", (1,))
    assert truth.pace(0, alone, one) == truth.pace(0, alone, replace(one, exchange="exact"))


def test_what_its_reports_tell_of_an_example() -> None:
    eight = Plan(dp=8, global_batch=64)
    told = {
        name: reported_efficiency(replace(eight, exchange=name)) for name in ("exact", "local:8", "compressed:bf16")
    }
    expected = prior_worth(parse_exchange("compressed:bf16", "test"), 8)
    assert told == {"exact": None, "local:8": None, "compressed:bf16": expected}


def test_only_jobs_of_replicas_alone_may_exchange_less() -> None:
    plain = job(0.3)
    others = [
        replace(plain, model="gpt3-1.3b"),
        replace(plain, plan=Plan(dp=8, global_batch=64)),
        replace(plain, spec=ModelSpec("m", layers=2, hidden=64, heads=2, kv_heads=2, ffn=64, vocab=64, seq=64)),
    ]
    first, second, *left = with_comm([plain, replace(plain, name="again"), *others], ("local",))
    assert first.comm == ("local",) and isinstance(first.truth, ExchangingTruth)
    assert first.truth is second.truth, "its yardsticks are made once"
    assert left == others


def run(jobs: tuple[TraceJob, ...], *, oracle: bool = True, policy: str = "synergy", **settings: Any) -> SimulatedRun:
    made: Scenario = builders.scenario(*jobs, nodes=2)
    return simulate(made, policy, Settings(**settings), oracle=oracle)


def jct_s(found: SimulatedRun) -> list[float]:
    return [one.jct_s for one in found.jobs]


@pytest.mark.parametrize("oracle", [True, False])
def test_over_slow_links_it_is_taken_and_pays(oracle: bool) -> None:
    jobs = (job(0.25),)
    exact, less = run(jobs, oracle=oracle), run(with_comm(jobs, ALL), oracle=oracle)
    assert jct_s(less)[0] < 0.9 * jct_s(exact)[0]
    # the yardsticks know of it too: nobody is faster than the bound
    assert compute_lower_bound(less.scenario, Ideals(less.scenario)).average_s <= jct_s(less)[0]


# who has measured nothing may try an option first, which brings less than the exchange takes: 2 % of a step
@pytest.mark.parametrize(("oracle", "near"), [(True, 0.0), (False, 1e-2)])
def test_where_the_exchange_is_short_nothing_changes(oracle: bool, near: float) -> None:
    jobs = (job(0.02), job(0.02, 4, 900.0, 60.0))
    assert jct_s(run(with_comm(jobs, ALL), oracle=oracle)) == pytest.approx(jct_s(run(jobs, oracle=oracle)), rel=near)


def test_who_may_not_take_it_does_not() -> None:
    jobs = (job(0.25),)
    exact, less = run(jobs), with_comm(jobs, ALL)
    assert jct_s(run(less, comm_options=("exact",))) == jct_s(exact)
    assert jct_s(run(less, policy="first-fit")) == jct_s(run(jobs, policy="first-fit")), "as submitted"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ["generate:2", "--comm", "locally"],
            "--comm: 'locally' is not right; some of exact, local, compressed, with commas between",
        ),
        (["gavel:x.trace", "--comm", "local"], "--comm: nobody measured what these jobs send; leave it out"),
    ],
)
def test_a_mistake_is_one_line(arguments: list[str], said: str) -> None:
    done = CliRunner().invoke(simulate_verb, ["--trace", *arguments])
    assert done.exit_code == 2 and said in done.output and "Traceback" not in done.output


def test_the_command_line_shows_what_it_brings() -> None:
    common = [
        "--trace",
        "generate:8,1",
        "--nodes",
        "4",
        "--contention",
        "10gbe",
        "--oracle",
        "--seed",
        "1",
        "--json",
        "-",
    ]
    found = []
    for more in ([], ["--comm", "local,compressed"]):
        done = CliRunner().invoke(simulate_verb, [*common, *more])
        assert (done.exit_code, done.exception) == (0, None)
        found.append(json.loads(done.stdout)["policies"]["synergy"]["avg_jct_s"])
    without, with_it = found
    assert with_it < 0.95 * without
