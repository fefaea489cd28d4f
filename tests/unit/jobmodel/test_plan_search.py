"""Plan search against a brute-force enumeration; batches; contradictions; plan_table."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from synergy_core.errors import UsageError
from synergy_core.records import ModelSpec, Plan, Shape

from synergyd.jobmodel.cell_search import rank
from synergyd.jobmodel.memory_belief import MemoryBelief
from synergyd.jobmodel.model.arrays import from_plans
from synergyd.jobmodel.model.efficiency import batch_points, efficiency, goodput
from synergyd.jobmodel.model.hardware import GpuFigures, figures
from synergyd.jobmodel.model.memory import peak_memory
from synergyd.jobmodel.model.spec import load_model
from synergyd.jobmodel.model.step_time import step_time
from synergyd.jobmodel.plan_limits import LEAVES_NODE, TOO_BIG, PlanLimits, check_fixed, tensor_degrees
from synergyd.jobmodel.plan_space import enumerate_plans
from synergyd.jobmodel.plan_table import plan_table

H100 = figures("h100")
V100 = figures("v100")


def brute(model: ModelSpec, gpu: GpuFigures, shape: Shape, batch: int) -> dict[tuple[int, int, int, int], str]:
    """(tp, pp, dp, micro-batch) -> least recompute that fits, by trying every number."""
    result = {}
    k = shape.gpus
    for tp, pp, micro in itertools.product(range(1, k + 1), range(1, k + 1), range(1, 65)):
        if k % (tp * pp) or model.heads % tp or model.ffn % tp or model.layers % pp or shape.gpus_per_node % tp:
            continue
        if model.kv_heads % tp and tp % model.kv_heads:
            continue
        dp = k // (tp * pp)
        if batch % (dp * micro):
            continue
        for recompute in ("none", "selective", "full"):
            plan = Plan(tp, pp, dp, micro, batch, recompute, tp > 1)
            peak = peak_memory(model, gpu, from_plans([plan], shape.gpus_per_node)).total[0]
            if peak <= gpu.usable_bytes:
                result[tp, pp, dp, micro] = recompute
                break
    return result


@pytest.mark.parametrize(
    ("name", "gpu", "shape", "batch"),
    [
        ("gpt3-13b", V100, Shape("v100", 4, 8), 96),
        ("llama3-8b", H100, Shape("h100", 1, 8), 48),
        ("llama3-8b", H100, Shape("h100", 3, 4), 24),
        ("gpt2-xl", V100, Shape("v100", 2, 6), 60),
    ],
)
def test_the_search_finds_what_trying_everything_finds(name: str, gpu: GpuFigures, shape: Shape, batch: int) -> None:
    model = load_model(name)
    found = enumerate_plans(model, gpu, [shape], PlanLimits(batch, batch))
    plans = [found.plans.plan(i) for i in range(len(found.plans))]
    keys = {(p.tp, p.pp, p.dp, p.micro_batch): p.recompute for p in plans}
    assert len(keys) == len(plans)
    assert keys == brute(model, gpu, shape, batch)
    assert len(keys) > 3


def test_ranking_is_by_goodput_and_times_are_those_of_the_model() -> None:
    model = load_model("gpt3-6.7b")
    ranked = rank(
        model,
        H100,
        [Shape("h100", 2, 8)],
        PlanLimits(64, 1024),
        noise_scale=300.0,
        speed=0.5,
        memory=MemoryBelief(1.1),
        samples=3,
    )
    good = ranked.goodput[ranked.order]
    assert np.all(np.diff(good) <= 0)
    cell = ranked.cell(int(ranked.order[0]))
    alone = float(step_time(model, H100, from_plans([cell.plan], 8)).total[0])
    assert cell.step_s == pytest.approx(2 * alone)
    assert cell.throughput == pytest.approx(cell.plan.global_batch / cell.step_s)
    assert cell.efficiency == pytest.approx((300 + 64) / (300 + cell.plan.global_batch))
    assert cell.goodput == pytest.approx(cell.throughput * cell.efficiency)
    peak = peak_memory(model, H100, from_plans([cell.plan], 8)).total[0]
    assert cell.memory_bytes == pytest.approx(1.1 * peak, rel=1e-6)
    assert all(m <= H100.usable_bytes for m in ranked.candidates.memory)
    best = {c.plan.pp: c for c in ranked.best_cells()}
    for i in range(len(ranked.candidates.plans)):
        assert best[int(ranked.candidates.plans.pp[i])].goodput >= ranked.goodput[i]


def test_more_noise_wants_larger_batches() -> None:
    def chosen(noise: float) -> int:
        ranked = rank(load_model("gpt2"), H100, [Shape("h100", 1, 8)], PlanLimits(8, 4096), noise_scale=noise)
        return ranked.cell(int(ranked.order[0])).plan.global_batch

    assert chosen(1.0) < chosen(1000.0) <= chosen(100_000.0)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("noise", "limits", "gib"),
    [
        (40.0, PlanLimits(8, 400), 79.6),
        (900.0, PlanLimits(30, 500, vpp=None), 79.6),
        (90.0, PlanLimits(8, 300, tp=1), 12.0),
    ],
)
def test_plan_and_batch_together_are_as_good_as_trying_every_batch(
    noise: float, limits: PlanLimits, gib: float
) -> None:
    model, shape, gpu = load_model("gpt3-1.3b"), Shape("h100", 1, 8), replace(H100, memory_gib=gib)
    ranked = rank(model, gpu, [shape], limits, noise_scale=noise)
    assert len(set(ranked.candidates.plans.global_batch.tolist())) > 5
    found: dict[tuple[int, ...], float] = {}
    for i, good in enumerate(ranked.goodput):
        plan = ranked.candidates.plans.plan(i)
        key = (plan.tp, plan.pp, plan.vpp, plan.dp, plan.micro_batch)
        found[key] = max(found.get(key, 0.0), float(good))
    recomputes = set()
    for tp, pp, vpp, dp, micro in found:
        step = dp * micro * (pp if vpp > 1 else 1)
        batches = [b for b in range(step, limits.high + 1, step) if b >= limits.low]
        best = 0.0
        for recompute in ("none", "full"):
            every = from_plans([Plan(tp, pp, dp, micro, b, recompute, tp > 1, vpp=vpp) for b in batches], 8)
            fits = peak_memory(model, gpu, every).total <= gpu.usable_bytes
            rate = every.global_batch / step_time(model, gpu, every).total
            good = np.where(fits, goodput(rate, every.global_batch, noise, limits.low)[0], 0.0).max()
            recomputes |= {recompute} if good else set()
            best = max(best, float(good))
        assert found[tp, pp, vpp, dp, micro] == pytest.approx(best, rel=1e-9)
    assert recomputes == ({"none", "full"} if gib < 40 else recomputes)


def test_batch_points() -> None:
    assert batch_points(7, 7, 50).tolist() == [7.0]
    points = batch_points(10, 1000, 5)
    assert (points[0], points[-1]) == pytest.approx((10, 1000)) and len(points) == 5


def test_statistical_efficiency() -> None:
    assert efficiency(np.array([32, 132]), 100.0, 32) == pytest.approx([1.0, 132 / 232])
    rate = np.array([4.0])
    assert goodput(rate, np.array([64]), None, 1)[0] is rate


def test_tensor_parallel_leaves_the_node_only_when_nothing_else_fits() -> None:
    wide = ModelSpec("wide", 1, 16384, 64, 64, 65536, 1024, 1024)  # one layer: no pipeline can split it
    tight = replace(H100, memory_gib=8.5)
    found = enumerate_plans(wide, tight, [Shape("h100", 4, 4)], PlanLimits(16, 16))
    assert len(found.plans) and found.plans.tp.min() > 4
    roomy = enumerate_plans(wide, replace(H100, memory_gib=500.0), [Shape("h100", 4, 4)], PlanLimits(16, 16))
    assert set(roomy.plans.tp.tolist()) == {1, 2, 4}
    assert roomy.ruled_out[LEAVES_NODE] > 0
    both = enumerate_plans(wide, tight, [Shape("h100", 1, 1), Shape("h100", 4, 4)], PlanLimits(16, 16))
    assert set(both.shape.tolist()) == {1} and both.ruled_out[TOO_BIG] > 0


def test_tensor_degrees_follow_heads_and_query_groups() -> None:
    assert tensor_degrees(load_model("llama3-70b")) == [1, 2, 4, 8, 16, 32, 64]
    assert tensor_degrees(ModelSpec("x", 2, 96, 12, 4, 384, 10, 96)) == [1, 2, 4, 12]


@pytest.mark.parametrize(
    ("limits", "says"),
    [
        (PlanLimits(8, 8, tp=3), "tp=3 does not divide .*32 heads.*tp may be 1, 2, 4, 8, 16, 32"),
        (PlanLimits(8, 8, pp=5), "pp=5 does not divide .*32 layers; pp may be 1, 2, 4, 8, 16, 32"),
        (
            PlanLimits(8, 8, micro_batch=3),
            "micro_batch=3 does not divide global_batch=8; micro_batch may be 1, 2, 4, 8",
        ),
        (PlanLimits(8, 9, micro_batch=5), "no multiple of micro_batch=5"),
        (PlanLimits(8, 8, tp=8, pp=4), "tp=8 x pp=4 needs 32 GPUs, more than the 16 allowed"),
        (PlanLimits(8, 8, tp=0), "tp=0"),
        (PlanLimits(9, 8), "global_batch=9:8"),
        (PlanLimits(0, 8), "global_batch=0:8"),
        (PlanLimits(8, 10**15), "too large; at most 10000000"),
    ],
)
def test_contradictions_name_the_key_and_what_is_right(limits: PlanLimits, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        check_fixed(load_model("llama3-8b"), limits, "job 7", 16)


def test_plan_table() -> None:
    table = plan_table(load_model("gpt3-13b"), "a100-40", [1, 8, 12, 16], 8, (64, 64), top=3)
    counts = {c.gpus: c for c in table.counts}
    assert "does not fit a100-40" in counts[1].why_none and not counts[1].rows
    assert "not whole nodes" in counts[12].why_none
    for gpus in (8, 16):
        count = counts[gpus]
        assert [r.rank for r in count.rows] == [1, 2, 3]
        assert count.fitting >= 3 and count.ruled_out[TOO_BIG] > 0
        for row in count.rows:
            assert row.cell.plan.gpus == gpus == row.cell.shape.gpus
            assert sum(row.time.values()) == pytest.approx(row.cell.step_s)
            assert sum(row.memory.values()) == pytest.approx(row.cell.memory_bytes, rel=1e-6)
            assert 0.1 < row.mfu < 0.8
            assert row.tokens_per_s == pytest.approx(64 * 2048 / row.cell.step_s)
    assert counts[16].rows[0].cell.goodput > 1.5 * counts[8].rows[0].cell.goodput


def test_plan_table_of_an_unknown_type_says_so_and_follows_overrides() -> None:
    table = plan_table(load_model("gpt2"), "tpu", [1], 1, (8, 8))
    assert "not known" in table.note
    faster = plan_table(load_model("gpt2"), "tpu", [1], 1, (8, 8), gpu=figures("tpu", {"tpu": {"peak_tflops": 1000}}))
    assert faster.counts[0].rows[0].cell.step_s < table.counts[0].rows[0].cell.step_s
