"""Widths that GPU kernels take badly: nothing for those that they take well, the H100's measured table, and what the search makes of it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from synergy_core.records import ModelSpec, Plan, Shape

from synergyd.jobmodel.cell_search import rank
from synergyd.jobmodel.model.alignment import fused_slowdown, gemm_slowdown
from synergyd.jobmodel.model.arrays import from_plans
from synergyd.jobmodel.model.dims import dims, stack_dims
from synergyd.jobmodel.model.hardware import figures, known_types
from synergyd.jobmodel.model.memory import peak_memory
from synergyd.jobmodel.model.spec import load_model
from synergyd.jobmodel.model.step_time import step_parts, step_time
from synergyd.jobmodel.plan_limits import PlanLimits

H100, A100 = figures("h100"), figures("a100")
LLAMA = load_model("llama2-7b")


def step_s(model: ModelSpec, plan: Plan, gpu_type: str = "h100") -> float:
    return float(step_time(model, figures(gpu_type), from_plans([plan], 8)).total[0])


@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@given(
    st.sampled_from(known_types()),
    st.sampled_from([1, 2, 4, 8]),
    st.integers(1, 40),
    st.integers(1, 200),
    st.sampled_from([64, 96, 128, 192, 256]),
    st.sampled_from(["bf16", "fp16", "fp32"]),
)
def test_multiples_of_eight_cost_nothing(
    gpu_type: str, tp: int, heads: int, ffn: int, head_dim: int, precision: str
) -> None:
    gpu, hidden = figures(gpu_type), 8 * heads * head_dim
    model = ModelSpec("m", 2, hidden, 8 * heads, 8 * heads, 64 * ffn, 1024, 512)
    plans = from_plans([Plan(tp, 1, 1, 2, 8, "none", tp > 1, precision=precision)], 8)
    without = replace(gpu, misaligned_gemm=1.0, odd_gemm=1.0)
    assert step_time(model, gpu, plans).total[0] == step_time(model, without, plans).total[0]
    assert fused_slowdown(dims(model)) == 1.0


@given(st.integers(1, 100_000), st.sampled_from([1.0, 2.0, 4.0]))
def test_a_gemm_is_slower_the_narrower_its_loads(width: int, operand: float) -> None:
    found = float(gemm_slowdown(np.array([width]), np.array([operand]), H100)[0])
    again = float(gemm_slowdown(np.array([2 * width]), np.array([operand]), H100)[0])
    assert 1.0 <= again <= found <= H100.odd_gemm
    assert (found == 1.0) == (width * operand % 16 == 0)


@pytest.mark.parametrize(
    ("width", "kernel", "slower"),
    [  # docs/design/measurements/gpu.md, attention forward and 2.5 times that backward: time a FLOP over the next kernel's own width
        (72, 96, 1.37),
        (80, 96, 1.14),
        (88, 96, 1.15),
        (104, 128, 1.19),
        (108, 128, 2.46),
        (112, 128, 1.06),
        (120, 128, 1.11),
        (136, 192, 1.33),
        (144, 192, 1.31),
        (160, 192, 1.19),
    ],
)
def test_heads_between_kernels_meet_the_h100s_table(width: int, kernel: int, slower: float) -> None:
    def of(head_dim: int) -> float:
        return float(fused_slowdown(dims(replace(LLAMA, head_dim=head_dim))))

    assert of(kernel) == 1.0
    assert of(width) == pytest.approx(slower, rel=0.1)


def test_a_head_that_no_kernel_takes_writes_its_scores_out() -> None:
    """The same parameters in 128 heads of 108 and in 96 of 144: a Megatron plan is slower and keeps the scores, FSDP pads."""
    model = ModelSpec("x", 40, 13824, 96, 96, 55296, 51200, 2048)
    narrow = replace(model, heads=128, kv_heads=128)
    megatron, fsdp = Plan(8, 1, 1, 1, 8, "none", True), Plan(1, 1, 8, 1, 8, zero_stage=3)
    assert 1.05 < step_s(narrow, megatron, "a100") / step_s(model, megatron, "a100") < 1.5
    assert 0.98 < step_s(narrow, fsdp, "a100") / step_s(model, fsdp, "a100") < 1.05

    def peak(spec: ModelSpec, plan: Plan) -> float:
        return float(peak_memory(spec, A100, from_plans([plan], 8)).activations[0])

    assert peak(narrow, megatron) > 1.3 * peak(model, megatron)
    assert peak(narrow, fsdp) == pytest.approx(peak(model, fsdp), rel=1e-9)


def test_scores_that_are_written_out_may_be_recomputed_alone() -> None:
    narrow = replace(LLAMA, hidden=4320, heads=40, kv_heads=40)
    tight = replace(H100, memory_gib=60.0)
    ranked = rank(narrow, tight, [Shape("h100", 1, 8)], PlanLimits(64, 64))
    assert 1 in ranked.candidates.plans.recompute.tolist()
    assert 1 not in rank(LLAMA, tight, [Shape("h100", 1, 8)], PlanLimits(64, 64)).candidates.plans.recompute.tolist()


def test_many_models_at_once_are_what_each_is_alone() -> None:
    models = [LLAMA, replace(LLAMA, ffn=11010), replace(LLAMA, heads=40, kv_heads=40, hidden=4320)]
    plan = Plan(2, 1, 4, 1, 8, "none", True)
    together = step_parts(stack_dims(models), H100, from_plans([plan] * 3, 8)).total
    assert together == pytest.approx([step_s(model, plan) for model in models], rel=1e-12)


def test_the_search_leaves_a_tensor_degree_that_makes_odd_shards() -> None:
    """ffn 11016 is 8 x 1377: eight ranks have 1377 columns each, one rank 11016, which are aligned."""

    def best(ffn: int) -> Plan:
        ranked = rank(replace(LLAMA, ffn=ffn), H100, [Shape("h100", 8, 8)], PlanLimits(32, 32))
        return ranked.cell(int(ranked.order[0])).plan

    assert best(11008).tp > 1 == best(11016).tp
