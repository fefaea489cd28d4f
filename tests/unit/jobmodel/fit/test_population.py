"""What jobs of a cluster teach about the next one."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from synergy_core.records import Measurement, Plan, Shape

from synergyd.jobmodel.fit.population import compute_prior
from synergyd.jobmodel.model.hardware import GpuFigures, figures
from synergyd.jobmodel.model.throughput import PRIOR, ThroughputModel, fit

GPU = figures("a100")
#: the cluster as it is: its compute and its network are twelve and eight times as fast as the figures say
REAL = replace(GPU, peak_tflops=12 * GPU.peak_tflops, inter_gbs=8 * GPU.inter_gbs)
SIZES = (Shape("a100", 1, 1), Shape("a100", 1, 4), Shape("a100", 2, 4), Shape("a100", 4, 4))
FLOPS, NETWORK = 0, 3  # of the constants


def known(_: str) -> GpuFigures:
    return GPU


def program(number: int, sizes: tuple[Shape, ...] = SIZES) -> tuple[Measurement, ...]:
    """Steps of one of several programs, no two alike, on the cluster as it is."""
    model = ThroughputModel(sample_flops=1e12 * 1.3**number, network_bytes=4e9 * 1.2**number)
    found = []
    for shape in sizes:
        plan = Plan(dp=shape.gpus, micro_batch=64 // shape.gpus, global_batch=64, zero_stage=0)
        step_s = model.step_s(REAL, shape, plan.dp, plan.micro_batch, 1)
        found.append(Measurement(plan, shape, step_s, 9))
    return tuple(found)


def error(prior_programs: int) -> float:
    """Median |log(true / predicted)| of the steps of a program that was never measured."""
    prior = compute_prior([program(n) for n in range(prior_programs)], known)
    new = program(2)
    steps = [fit((), (), prior).model.step_s(GPU, m.shape, m.plan.dp, m.plan.micro_batch, 1) for m in new]
    return float(np.median([abs(np.log(m.step_s / s)) for m, s in zip(new, steps, strict=True)]))


def test_the_first_reports_of_others_correct_the_level_of_the_cluster() -> None:
    assert compute_prior([], known) == PRIOR == compute_prior([()], known)
    assert error(1) < 0.8 * error(0)
    assert error(4) < 0.5 * error(0)


def test_what_nobody_measured_stays_as_it_is() -> None:
    alone = compute_prior([program(n, SIZES[:1]) for n in range(4)], known)
    # a twelfth of 1 to 2 TFLOP, as it seems
    assert alone.mean[FLOPS] > PRIOR.mean[FLOPS] + 0.5 and alone.sigma[FLOPS] < PRIOR.sigma[FLOPS]
    assert alone.mean[NETWORK] == pytest.approx(PRIOR.mean[NETWORK], abs=0.1)
    assert alone.sigma[NETWORK] == pytest.approx(PRIOR.sigma[NETWORK], abs=0.05)


def test_one_odd_program_moves_little_what_others_agree_on() -> None:
    sound = [program(n) for n in range(5)]
    odd = tuple(replace(m, step_s=m.step_s * 1e4) for m in program(9))
    before, after = compute_prior(sound, known), compute_prior([*sound, odd], known)
    in_a_plain_mean = np.log(1e4) / 6
    assert abs(after.mean[FLOPS] - before.mean[FLOPS]) < 0.35 * in_a_plain_mean
    assert np.isfinite([*after.mean, *after.sigma]).all()


def test_many_programs_that_are_as_the_prior_says_do_not_move_what_they_do_not_show() -> None:
    """Only the bytes within a node are fewer: latencies, hidden behind them, are not shown."""
    draw = np.random.default_rng(1)
    own = replace(ThroughputModel(), node_bytes=ThroughputModel().node_bytes * float(np.exp(-1.5)))
    programs = []
    for _ in range(32):
        steps = []
        for gpus in (1, 2, 4):
            shape = Shape("a100", 1, gpus)
            step_s = own.step_s(GPU, shape, gpus, 32, 1) * float(np.exp(0.02 * draw.normal()))
            steps.append(Measurement(Plan(dp=gpus, micro_batch=32, global_batch=32 * gpus), shape, step_s, 4))
        programs.append(tuple(steps))
    moved = np.array(compute_prior(programs, known).mean) - np.array(PRIOR.mean)
    assert abs(moved[4]) < 0.3 and abs(moved[6]) < 0.3
