"""The run's own choice of its batch."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from synergy_core.errors import UsageError
from synergy_core.records import Plan
from synergy_launch.batch.tuner import STEPS_BETWEEN, BatchTuner, choose_plan, fit_batch, parse_batch_range


@given(
    dp=st.integers(1, 64),
    batch=st.floats(1, 1e5),
    limit=st.integers(1, 128),
    pipe=st.sampled_from([(1, 1), (2, 2), (4, 1)]),
)
def test_what_fits_divides(dp: int, batch: float, limit: int, pipe: tuple[int, int]) -> None:
    plan = fit_batch(Plan(dp=dp, pp=pipe[0], vpp=pipe[1]), batch, limit)
    if plan is None:
        assert batch < dp * pipe[0]
        return
    assert plan.global_batch % (dp * plan.micro_batch) == 0 and plan.global_batch <= batch
    assert plan.micro_batch <= limit
    if plan.vpp > 1:
        assert plan.micro_batches % plan.pp == 0


def run(noise: float, fixed: float, slope: float, limits: tuple[int, int] = (16, 4096), steps: int = 2000) -> Plan:
    """A run whose steps take exactly fixed + slope * batch seconds."""
    tuner, plan = BatchTuner(limits, 16), Plan(dp=4, micro_batch=4, global_batch=16)
    for _ in range(steps):
        plan = tuner.after_step(plan, fixed + slope * plan.global_batch, noise)
    return plan


@pytest.mark.parametrize(("noise", "fixed", "slope"), [(1000, 1.0, 0.01), (200, 0.2, 0.001), (50, 0.01, 0.01)])
def test_it_finds_the_batch_of_best_goodput(noise: float, fixed: float, slope: float) -> None:
    best = max(16.0, math.sqrt(fixed / slope * noise))  # synergyd.jobmodel.model.efficiency.best_batch
    found = run(noise, fixed, slope).global_batch

    def goodput(batch: float) -> float:
        return batch / (noise + batch) / (fixed + slope * batch)

    assert goodput(found) >= 0.95 * goodput(best)


def test_it_stays_in_its_range_and_never_leaps() -> None:
    assert run(1e6, 10.0, 0.001, (16, 64)).global_batch == 64
    assert run(1e6, 10.0, 0.001, (16, 4096), steps=STEPS_BETWEEN).global_batch == 32
    assert run(1e6, 10.0, 0.001, (16, 4096), steps=2 * STEPS_BETWEEN).global_batch <= 64


def test_little_noise_or_none_known_changes_nothing() -> None:
    plan = Plan(dp=4, micro_batch=4, global_batch=16)
    assert choose_plan(plan, (16, 1024), 16, None, {16: 1.0}, 4) is plan
    assert choose_plan(plan, (16, 1024), 16, 1.0, {16: 1.0}, 4) is plan  # twice the batch is worth 1.06 times
    assert choose_plan(plan, (16, 1024), 16, 1e4, {}, 4) is plan


@pytest.mark.parametrize("text", ["16", "64:16", "0:8", "a:b", "16:64:2", "", "16:999999999"])
def test_a_range_that_is_none(text: str) -> None:
    with pytest.raises(UsageError):
        parse_batch_range(text)


def test_a_range() -> None:
    assert parse_batch_range("16:64") == (16, 64)


def test_a_micro_batch_that_has_run_comes_back() -> None:
    tuner = BatchTuner((8, 4096), 8)
    tuner.after_step(Plan(micro_batch=8, global_batch=64), 1.0, None)
    plan = Plan(micro_batch=6, global_batch=72)  # it divided no better
    for _ in range(STEPS_BETWEEN - 1):
        found = tuner.after_step(plan, 1.0, 1e5)
    assert found.global_batch == 144 and found.micro_batch == 8


def test_micro_batches_grow_as_far_as_memory_surely_allows() -> None:
    tuner = BatchTuner((8, 4096), 8, device_bytes=100)
    tuner.after_step(Plan(micro_batch=4, global_batch=8), 1.0, None, 20)
    assert tuner.micro_limit(20) == 17  # 17 / 4 times 20 are 85, even if nothing of them were fixed
    assert tuner.micro_limit(99) == 4  # what has run is known to fit
    assert tuner.micro_limit(None) == 4
    assert BatchTuner((8, 4096), 8).micro_limit(20) == 1


@given(fixed=st.integers(0, 80), each=st.integers(1, 20), micro=st.integers(1, 16))
def test_no_micro_batch_is_allowed_that_would_not_fit(fixed: int, each: int, micro: int) -> None:
    device = 200
    if fixed + each * micro > device:
        return  # it would not have run
    tuner = BatchTuner((1, 4096), 8, device_bytes=device)
    tuner.after_step(Plan(micro_batch=micro, global_batch=micro), 1.0, None)
    assert fixed + each * tuner.micro_limit(fixed + each * micro) <= device
