"""Pollux's throughput model: its limits, and what a few measured steps teach it."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np
import pytest
from synergy_core.records import Cell, Cluster, Directive, Job, JobState, Measurement, Node, Plan, Profile, Shape

from synergyd.jobmodel.job_planner import JobPlanner
from synergyd.jobmodel.model import throughput
from synergyd.jobmodel.model.hardware import figures
from synergyd.jobmodel.model.throughput import ThroughputModel, fit, fit_throughput

GPU = figures("v100")
SHAPES = [Shape("v100", nodes, per) for nodes, per in ((1, 1), (1, 2), (1, 4), (2, 1), (2, 4), (4, 4))]
TRUE = ThroughputModel(4e10, 0.05, 3e9, 5e8, 2e-3, 8e-3, 2.0)


def steps(
    constants: ThroughputModel, shapes: list[Shape], batches: tuple[int, ...] = (16, 64)
) -> tuple[Measurement, ...]:
    return tuple(
        Measurement(
            Plan(1, 1, s.gpus, b, s.gpus * b, zero_stage=0), s, constants.step_s(GPU, s, s.gpus, b, 1)
        )
        for s in shapes
        for b in batches
    )  # fmt: skip


def error(found: ThroughputModel, known: tuple[Measurement, ...]) -> float:
    off = [abs(found.step_s(GPU, m.shape, m.plan.dp, m.plan.micro_batch, 1) / m.step_s - 1) for m in known]
    return sum(off) / len(off)


def test_limits_of_the_formula() -> None:
    one = Shape("v100", 1, 1)
    rate = GPU.peak_tflops * 1e12 * 0.3
    alone = TRUE.step_s(GPU, one, 1, 32, 1)
    assert alone == pytest.approx(0.05 + 4e10 * 32 / rate)
    # passes before the last are not waited for by anyone else
    assert TRUE.step_s(GPU, one, 1, 32, 3) == pytest.approx(3 * alone)
    two, grad = Shape("v100", 2, 1), alone
    sync = 5e8 / (GPU.inter_gbs * 1e9 * GPU.link_efficiency)
    assert replace(TRUE, gamma=1.0).step_s(GPU, two, 2, 32, 1) == pytest.approx(grad + sync, rel=1e-4)
    assert replace(TRUE, gamma=10.0).step_s(GPU, two, 2, 32, 1) == pytest.approx(max(grad, sync), rel=0.1)
    # Pollux: T_sync grows with K - 2
    many = replace(TRUE, gamma=1.0).step_s(GPU, Shape("v100", 4, 4), 16, 32, 1)
    assert many == pytest.approx(grad + sync + 14 * 8e-3, rel=1e-4)


def test_a_few_measured_steps_tell_the_rest() -> None:
    everything = steps(TRUE, SHAPES)
    few = steps(TRUE, [SHAPES[0], SHAPES[2], SHAPES[4]])
    assert error(ThroughputModel(), everything) > 0.3
    assert error(fit_throughput(few, (GPU,) * len(few)), everything) < 0.1
    assert fit_throughput((), ()) == ThroughputModel()


def test_traffic_that_may_not_be_hidden_is_no_certainty() -> None:
    """Only one node was reported, and the usual gradients would hide behind these computations: ten times as many would not."""
    true = ThroughputModel(sample_flops=2e11, network_bytes=1.5e9, node_bytes=8e8, gamma=3.0)
    known = steps(true, [SHAPES[0], SHAPES[1], SHAPES[2]])
    found = fit(known, (GPU,) * len(known))
    far = steps(true, [SHAPES[3], SHAPES[4], SHAPES[5]], (16,))
    counts = np.array([(m.shape.gpus, m.shape.nodes, m.plan.dp, m.plan.micro_batch, 1) for m in far]).T
    off = np.abs(np.log([m.step_s for m in far]) - np.log(found.model.steps_s(GPU, counts)))
    assert np.all(off > 0.3)
    assert np.all(off < 2 * found.sigmas(GPU, counts))
    # what was measured stays sure
    near = np.array([(m.shape.gpus, m.shape.nodes, m.plan.dp, m.plan.micro_batch, 1) for m in known]).T
    assert np.all(found.sigmas(GPU, near) < 0.05)


@pytest.mark.parametrize("gpu_type", ["a100", "h100", "cpu"])
@pytest.mark.parametrize("step_s", [0.1, 0.5, 2.0])
def test_a_loop_whose_model_nobody_named_grows_by_its_own_speed(gpu_type: str, step_s: float) -> None:
    """On one GPU nothing shows whether a step is computation: so long a one is, by what scripts do in general."""
    one = Shape(gpu_type, 1, 1)
    directive = Directive(max_gpus=4, checkpoint="/x", loop="gpu:--batch_size")
    job = Job(1, "n", "u", 1, "main", JobState.RUNNING, "", 0.0, 0.0, None, 0, one, one, directive=directive)
    plan = Plan(dp=1, micro_batch=8, global_batch=8)
    profile = Profile(samples=4, global_batch=8, measured=(Measurement(plan, one, step_s, 4),))
    cells = JobPlanner(job, profile, None, {}, plan).cells(Cluster((Node("n", gpu_type, 4),)))
    goodput = {cell.shape.gpus: cell.goodput for cell in cells}
    assert goodput[2] > 1.3 * goodput[1] and goodput[4] > 1.7 * goodput[1]
    assert {cell.plan.global_batch for cell in cells} == {8}


def test_one_odd_step_breaks_nothing() -> None:
    few = steps(TRUE, SHAPES[:5])
    odd = (*few[:3], replace(few[3], step_s=20 * few[3].step_s), *few[4:])
    assert error(fit_throughput(odd, (GPU,) * len(odd)), few) < 0.1


def test_what_was_learnt_on_one_type_carries_over() -> None:
    few = steps(TRUE, SHAPES[:3])
    found = fit_throughput(few, (GPU,) * len(few))
    a100, one = figures("a100"), Shape("a100", 1, 1)
    assert found.step_s(a100, one, 1, 64, 1) == pytest.approx(TRUE.step_s(a100, one, 1, 64, 1), rel=0.1)


def test_a_plain_jobs_cells_follow_its_reports() -> None:
    """The network is slow for this job: what it measured across nodes keeps it inside one."""
    usual = replace(TRUE, sample_flops=4e10)
    slow = replace(usual, network_bytes=5e10)
    held = Shape("v100", 1, 4)
    job = Job(1, "n", "u", 1, "main", JobState.PENDING, "", 0.0, None, None, 0, held, held,
              directive=Directive(global_batch=(256, 256)))  # fmt: skip
    nodes = Cluster(tuple(Node(f"n{i}", "v100", 4) for i in range(4)))

    def best(profile: Profile) -> Shape:
        return max(JobPlanner(job, profile, None, {"v100": GPU}).cells(nodes), key=lambda c: c.goodput).shape

    known = steps(slow, [SHAPES[0], SHAPES[2], SHAPES[4]])
    assert best(Profile(samples=6, measured=steps(usual, SHAPES[:1]))).gpus == 16
    assert best(Profile(samples=6, measured=known)) == held
    told = JobPlanner(job, Profile(samples=6, speed=0.1, measured=known), None, {"v100": GPU}).cells(nodes)
    assert {c.step_s for c in told} == {
        c.step_s for c in JobPlanner(job, Profile(samples=6, measured=known), None, {"v100": GPU}).cells(nodes)
    }


def test_a_larger_batch_on_the_same_gpus_follows_the_steps_measured_there() -> None:
    """Steps of cifar10 on 16 T4 of Pollux's traces, which hardly grow with the batch: the formula alone takes them to be computation."""
    shape, gpu = Shape("t4", 4, 4), figures("t4")
    times = {8: 0.152, 29: 0.152, 53: 0.174}
    measured = tuple(
        Measurement(Plan(dp=16, micro_batch=micro, global_batch=16 * micro, zero_stage=0), shape, step_s, 8)
        for micro, step_s in times.items()
    )
    job = Job(1, "n", "u", 1, "main", JobState.RUNNING, "", 0.0, 0.0, None, 0, shape, shape,
              directive=Directive(global_batch=(128, 4096), max_micro_batch=1024))  # fmt: skip
    nodes = Cluster(tuple(Node(f"n{i}", "t4", 4) for i in range(4)))

    def present(measured: tuple[Measurement, ...]) -> Cell:
        profile = Profile(samples=8, measured=measured, noise_scale=730.0, global_batch=848)
        cells = JobPlanner(job, profile, None, {"t4": gpu}).cells(nodes)
        return max((c for c in cells if c.shape == shape), key=lambda c: c.goodput)

    cell = present(measured)
    assert 848 < cell.plan.global_batch <= 2 * 848 and cell.step_s < 0.22
    # two micro-batches that hardly differ tell no line: the formula's growth from the nearest that was measured
    near = tuple(replace(m, plan=replace(m.plan, micro_batch=50, global_batch=800)) for m in measured[:1])
    learnt = fit((*near, measured[2]), (gpu, gpu)).model
    micro = present((*near, measured[2])).plan.micro_batch
    growth = learnt.step_s(gpu, shape, 16, micro, 1) / learnt.step_s(gpu, shape, 16, 50, 1)
    assert micro < 50 and present((*near, measured[2])).step_s == pytest.approx(near[0].step_s * growth, rel=1e-6)


def test_fitting_is_quick_and_remembered() -> None:
    known = steps(TRUE, SHAPES)
    began = time.process_time()
    first = fit_throughput(known, (GPU,) * len(known))
    assert time.process_time() - began < 2.0
    assert fit_throughput(known, (GPU,) * len(known)) is first


def test_jobs_that_are_fitted_together_get_what_each_gets_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(throughput, "_fits", {})
    wanted: list[throughput.FitOf] = []
    for n in range(1, 7):  # 2 to 12 measurements, and as many as need two widths of padding
        known = steps(replace(TRUE, sample_flops=n * 1e9), SHAPES[:n], batches=(8, 16, 64) if n == 6 else (16, 64))
        wanted.append((known, (GPU,) * len(known), throughput.PRIOR))
    odd = tuple(replace(m, step_s=m.step_s * 1e30) for m in wanted[2][0])
    worst = (replace(odd[0], plan=Plan(1, 1, 1, 10**30, 10**30)),)  # no array holds its batch
    throughput.fit_ahead([*wanted, (odd, (GPU,) * len(odd), throughput.PRIOR), (worst, (GPU,), throughput.PRIOR)])
    ahead = dict(throughput._fits)
    keys = {throughput._key(*one) for one in wanted}
    assert keys <= set(ahead) and throughput._key(worst, (GPU,), throughput.PRIOR) not in ahead
    monkeypatch.setattr(throughput, "_fits", {})
    for one in wanted:
        alone, key = throughput.fit(*one), throughput._key(*one)
        assert (alone.theta == ahead[key].theta).all() and (alone.covariance == ahead[key].covariance).all()
        assert throughput.fit(*one) is alone
    with pytest.raises(OverflowError):
        throughput.fit(worst, (GPU,))


def test_fits_that_nobody_asks_for_any_more_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(throughput, "_fits", {})
    monkeypatch.setattr(throughput, "_KEPT", 4)
    wanted = [(steps(replace(TRUE, overhead_s=n / 100), SHAPES[:1]), (GPU,) * 2, throughput.PRIOR) for n in range(1, 8)]
    for one in wanted[:4]:
        throughput.fit(*one)
    first = throughput.fit(*wanted[0])  # asked for again: it stays
    throughput.fit_ahead(wanted[4:])
    kept = [throughput._key(*wanted[i]) for i in (3, 0, 4, 5)]
    assert list(throughput._fits) == kept  # half of them at most are made ahead
    assert throughput.fit(*wanted[0]) is first
