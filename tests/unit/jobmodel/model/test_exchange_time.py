"""Less communication's part of a step, beside independent scalar computations, and its prior worth."""

import math
from dataclasses import replace

import pytest
from synergy_core.exchange import EXACT, KINDS, Exchange, parse_exchange
from synergy_core.records import Measurement, Plan, Shape

from synergyd.jobmodel.model import exchange_cost
from synergyd.jobmodel.model.arrays import from_plans
from synergyd.jobmodel.model.exchange_cost import example_worth, options, prior_worth, slow_links
from synergyd.jobmodel.model.hardware import figures
from synergyd.jobmodel.model.spec import load_model
from synergyd.jobmodel.model.step_time import step_time
from synergyd.jobmodel.model.throughput import ThroughputModel, fit

GPT = load_model("gpt3-1.3b")
SLOW = replace(figures("a100-80"), inter_gbs=0.5, overlap=0.0, jitter=0.0)
PLAN = Plan(dp=16, micro_batch=2, global_batch=64, zero_stage=0)
SHAPE = Shape("a100-80", 2, 8)


def dp_s(text: str, plan: Plan = PLAN, gpu: object = SLOW) -> float:
    plans = from_plans([replace(plan, exchange=text)], 8)
    return float(step_time(GPT, gpu, plans).dp[0])  # type: ignore[arg-type]


def test_local_steps_divide_the_exchange_by_their_period() -> None:
    # of fp32 gradients and fp32 parameters, nothing of it hidden: an H-th
    assert dp_s("local:8") == pytest.approx(dp_s("exact") / 8)


def test_bf16_halves_fp32_gradients_and_nothing_of_fp16_ones() -> None:
    assert dp_s("compressed:bf16") == pytest.approx(dp_s("exact") / 2, rel=1e-3)  # but for the latencies
    half = replace(PLAN, precision="fp16")
    assert dp_s("compressed:bf16", half) == dp_s("exact", half)


def test_plans_keep_their_exchange_as_arrays() -> None:
    plans = [PLAN, replace(PLAN, exchange="local:8")]
    arrays = from_plans(plans, 8)
    assert [arrays.plan(i) for i in range(2)] == plans
    assert [arrays.take(arrays.dp > 0).plan(i) for i in range(2)] == plans
    assert from_plans(plans[:1], 8).exchange is None


@pytest.mark.parametrize("text", ["local:8", "compressed:bf16"])
def test_a_plain_job_steps_faster_over_a_slow_link(text: str) -> None:
    own, option = ThroughputModel(network_bytes=1e9), parse_exchange(text, "here")
    exact = own.step_s(SLOW, SHAPE, 16, 8, 2)
    assert own.step_s(SLOW, SHAPE, 16, 8, 2, option) < exact
    alone = Shape("a100-80", 1, 1)
    assert own.step_s(SLOW, alone, 1, 8, 2, EXACT) <= own.step_s(SLOW, alone, 1, 8, 2, option)


def test_a_plain_job_s_formulas() -> None:
    own = ThroughputModel(network_bytes=1e9, network_hop_s=1e-9)
    sync = 1e9 / (0.5e9 * SLOW.link_efficiency)
    grad = own.step_s(SLOW, Shape("a100-80", 1, 1), 1, 8, 1)
    assert own.step_s(SLOW, SHAPE, 16, 8, 2, Exchange("local", period=8)) == pytest.approx(2 * grad + sync / 8)


def test_a_measured_step_belongs_to_its_exchange() -> None:
    truth = ThroughputModel(network_bytes=2e9)
    plans = [Plan(dp=16, micro_batch=8, global_batch=128, zero_stage=0, exchange=text) for text in ("exact", "local:8")]
    seen = tuple(
        Measurement(p, SHAPE, truth.step_s(SLOW, SHAPE, 16, 8, 1, parse_exchange(p.exchange, "here"))) for p in plans
    )
    # the step of local:8 alone tells what an exact one takes, and is not taken for one
    learnt = fit(seen[1:], (SLOW,)).model
    assert learnt.step_s(SLOW, SHAPE, 16, 8, 1) > 2 * seen[1].step_s
    both = fit(seen, (SLOW, SLOW)).model
    assert both.step_s(SLOW, SHAPE, 16, 8, 1) == pytest.approx(seen[0].step_s, rel=0.1)
    assert both.step_s(SLOW, SHAPE, 16, 8, 1, Exchange("local", period=8)) == pytest.approx(seen[1].step_s, rel=0.1)


def test_every_kind_has_options_and_exact_none() -> None:
    assert {option.kind for option in options(KINDS)} == set(KINDS) - {"exact"}
    assert options(("exact",)) == () and options(("compressed",)) == (Exchange("compressed"),)


def test_priors_cost_more_the_less_is_exchanged() -> None:
    for option in options(KINDS):
        assert 0.05 < prior_worth(option, 16) < 1 and prior_worth(option, 1) == 1
    local = [prior_worth(Exchange("local", period=p), 8) for p in (4, 8, 16)]
    assert local == sorted(local, reverse=True)
    assert prior_worth(Exchange("local", period=8), 32) < prior_worth(Exchange("local", period=8), 2)


@pytest.mark.parametrize(
    ("text", "steps"),
    [("local:8", 48), ("compressed:bf16", 40)],
)
def test_priors_promise_no_more_than_was_measured(text: str, steps: int) -> None:
    """Steps where 40 exact ones suffice, of two replicas, two seeds of 64 steps."""
    assert prior_worth(parse_exchange(text, "test"), 2) <= 40 / steps + 1e-3


@pytest.mark.parametrize(
    ("text", "steps"),
    [("local:8", 154), ("compressed:bf16", 157)],
)
def test_nor_than_longer_runs_did(text: str, steps: int) -> None:
    """The same where 155 exact steps suffice, the first 24 of each run exact, five seeds: docs/design/communication.md."""
    assert prior_worth(parse_exchange(text, "test"), 2) <= (155 - 24) / (steps - 24)


def test_what_was_measured_takes_the_prior_s_place() -> None:
    eight, sixteen = Exchange("local", period=8), Exchange("local", period=16)
    plan = replace(PLAN, exchange="local:8")

    def seen(value: float, samples: int) -> tuple[Measurement, ...]:
        return (Measurement(plan, SHAPE, 1.0, samples, value),)

    prior = prior_worth(eight, 16)
    assert example_worth(eight, 16, (Measurement(plan, SHAPE, 1.0, 9),)) == prior
    assert example_worth(eight, 16, seen(0.98, 1000)) == pytest.approx(0.98, abs=0.01)
    assert prior < example_worth(eight, 16, seen(0.98, 4)) < example_worth(eight, 16, seen(0.98, 64))
    # others of its kind lose as much more or less than they were expected to
    assert (
        prior_worth(sixteen, 16)
        < example_worth(sixteen, 16, seen(0.98, 1000))
        < example_worth(eight, 16, seen(0.98, 1000))
    )
    assert example_worth(sixteen, 16, seen(0.3, 1000)) < example_worth(eight, 16, seen(0.3, 1000)) < prior
    assert example_worth(Exchange("compressed"), 16, seen(0.3, 1000)) == prior_worth(Exchange("compressed"), 16)
    assert example_worth(EXACT, 16, seen(0.3, 1000)) == 1.0
    assert math.isfinite(example_worth(eight, 16, seen(1.0, 1000))) and example_worth(eight, 16, seen(1.0, 1000)) > 0.99


@pytest.mark.parametrize(("nodes", "gbs", "slow"), [(1, 300, False), (1, 32, True), (2, 900, True)])
def test_only_links_that_may_be_slow_are_a_reason(nodes: int, gbs: float, slow: bool) -> None:
    assert slow_links(nodes, gbs) is slow
    assert exchange_cost.UNMEASURED_GAIN > 1
