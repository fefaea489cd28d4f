"""What detected kernels change in the predictions."""

from __future__ import annotations

from dataclasses import replace

import pytest
from synergy_core.kernels import LOCAL, UNKNOWN, Kernels
from synergy_core.records import ModelSpec, Plan

from synergyd.jobmodel.model.arrays import from_plans
from synergyd.jobmodel.model.hardware import GpuFigures, figures, with_kernels, with_overlap
from synergyd.jobmodel.model.memory import peak_memory
from synergyd.jobmodel.model.spec import load_model
from synergyd.jobmodel.model.step_time import StepTime, step_time

H100 = figures("h100")
GPT_1B = ModelSpec("gpt-1b", layers=20, hidden=2048, heads=16, kv_heads=16, ffn=8192, vocab=50304, seq=2048)
ONE = Plan(micro_batch=4, global_batch=8)
EIGHT = Plan(tp=8, micro_batch=1, global_batch=8, sequence_parallel=True)


def steps(gpu: GpuFigures, plan: Plan = ONE, model: ModelSpec = GPT_1B) -> StepTime:
    return step_time(model, gpu, from_plans([plan], 8))


def step_s(kernels: Kernels, plan: Plan = ONE, model: ModelSpec = GPT_1B) -> float:
    return float(steps(with_kernels(H100, kernels), plan, model).total[0])


@pytest.mark.parametrize(
    "fused", [UNKNOWN, Kernels(transformer_engine=True, attention=True, norm=True, optimizer=True)]
)
def test_fused_kernels_are_what_is_assumed(fused: Kernels) -> None:
    assert with_kernels(H100, fused) == H100


@pytest.mark.parametrize(("micro_batches", "measured_s"), [(2, 0.351), (1, 0.199)])
def test_megatron_core_without_transformer_engine_as_measured_on_an_h100(micro_batches: int, measured_s: float) -> None:
    # docs/design/measurements/gpu.md: torch's fused attention in local layers with no fusion
    kernels = replace(LOCAL, attention=True, pointwise=False)
    plan = replace(ONE, global_batch=4 * micro_batches)
    assert step_s(kernels, plan) == pytest.approx(measured_s, rel=0.05)
    assert step_s(UNKNOWN, plan) < 0.8 * measured_s


@pytest.mark.parametrize("name", ["attention", "norm", "pointwise", "accumulation", "optimizer"])
def test_each_part_takes_longer_unfused(name: str) -> None:
    assert step_s(Kernels(**{name: False})) > step_s(UNKNOWN)
    assert step_s(Kernels(**{name: True})) == step_s(UNKNOWN)


def test_the_softmax_counts_where_scores_are_stored() -> None:
    assert step_s(Kernels(softmax=False)) == step_s(UNKNOWN)
    assert step_s(Kernels(attention=False, softmax=False)) > step_s(Kernels(attention=False, softmax=True))


def test_stored_scores_of_long_sequences_count_in_full_where_they_are_known() -> None:
    long = replace(GPT_1B, seq=16384)
    unlikely = float(steps(replace(H100, flash=False), ONE, long).total[0])
    assert step_s(Kernels(attention=False), ONE, long) > 1.5 * unlikely
    plans = from_plans([ONE], 8)
    unfused = peak_memory(GPT_1B, with_kernels(H100, Kernels(attention=False)), plans).total[0]
    assert unfused > peak_memory(GPT_1B, H100, plans).total[0]


def test_what_the_compiler_fuses_needs_no_kernel_of_its_own() -> None:
    several = Kernels(norm=False, pointwise=False)
    assert step_s(replace(several, compiled=True)) == step_s(UNKNOWN) < step_s(several)
    assert step_s(Kernels(compiled=True, attention=False)) > step_s(UNKNOWN)


def test_overlapped_tensor_traffic_is_hidden_as_far_as_gemms_last() -> None:
    model = load_model("llama3-70b")
    plain, hidden = steps(H100, EIGHT, model), steps(with_kernels(H100, Kernels(tp_overlap=True)), EIGHT, model)
    assert hidden.tp[0] == pytest.approx(plain.tp[0] / 16, rel=0.3)
    assert hidden.compute[0] == pytest.approx(plain.compute[0])
    slow = replace(H100, intra_gbs=5.0)
    exposed = steps(with_kernels(slow, Kernels(tp_overlap=True)), EIGHT, model).tp[0]
    assert 0.5 * steps(slow, EIGHT, model).tp[0] < exposed < steps(slow, EIGHT, model).tp[0]


def test_nemo_on_h100_by_what_its_recipe_overlaps() -> None:
    # NVIDIA/dgxc-benchmarking v24.11.1, nemo_megatron/README_175b.md: 5.92 s on 128 H100 in fp8
    model = replace(load_model("gpt3-175b"), seq=2048)
    plan = Plan(
        tp=4, pp=8, dp=4, vpp=12, micro_batch=1, global_batch=256, sequence_parallel=True, zero_stage=1, precision="fp8"
    )
    assert steps(H100, plan, model).total[0] > 1.2 * 5.92
    recipe = with_kernels(with_overlap(H100), Kernels(tp_overlap=True))
    assert steps(recipe, plan, model).total[0] == pytest.approx(5.92, rel=0.1)
