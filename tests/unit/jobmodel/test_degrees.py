"""Time and memory of virtual stages, context and expert parallel ranks, ZeRO stages, precisions, MoE and encoders: each
against what its own paper or plain arithmetic says."""

from dataclasses import replace

import numpy as np
import pytest
from synergy_core.records import ModelSpec, Plan

from synergyd.jobmodel.model.arrays import from_plans
from synergyd.jobmodel.model.dims import dims, stack_dims
from synergyd.jobmodel.model.hardware import GpuFigures, figures
from synergyd.jobmodel.model.memory import PeakMemory, peak_memory, peak_parts
from synergyd.jobmodel.model.spec import load_model
from synergyd.jobmodel.model.step_time import StepTime, step_parts, step_time

GPT = load_model("gpt3-6.7b")
A100 = replace(figures("a100-80"), fragmentation=0.0, base_gib=0.0)
# nothing but FLOPs, perfectly efficient
IDEAL = replace(
    A100,
    gemm_efficiency=1.0,
    attention_efficiency=1.0,
    bandwidth_gbs=1e12,
    kernel_s=0.0,
    launch_s=0.0,
    tp_launch_s=0.0,
    micro_s=0.0,
    optimizer_s=0.0,
    fixed_s=0.0,
    jitter=0.0,
)
MOE = ModelSpec("moe", 16, 2048, 16, 16, 5632, 32000, 2048, gated=True, tied_embeddings=False, experts=8, top_k=2)


def time(plan: Plan, model: ModelSpec = GPT, gpu: GpuFigures = A100) -> StepTime:
    return step_time(model, gpu, from_plans([plan], 8))


def memory(plan: Plan, model: ModelSpec = GPT, gpu: GpuFigures = A100) -> PeakMemory:
    return peak_memory(model, gpu, from_plans([plan], 8))


def test_virtual_stages_shrink_the_bubble_and_keep_more() -> None:
    """Narayanan et al. SC'21, section 2.2: bubble by v, p2p times v, activations times 1 + (p-1)/(p*v)."""
    one, four = Plan(1, 8, 1, 1, 64), Plan(1, 8, 1, 1, 64, vpp=4)
    slow = replace(A100, inter_latency_s=0.0, intra_latency_s=0.0)
    assert time(four).bubble[0] < 0.3 * time(one).bubble[0]
    stages = (time(one, gpu=slow).pp - time(Plan(1, 1, 1, 1, 64), gpu=slow).pp)[0]
    assert time(four, gpu=slow).pp[0] > 2 * stages
    kept = memory(four).activations[0] / memory(one).activations[0]
    assert kept == pytest.approx(1 + 7 / (8 * 4))


def test_the_last_stage_alone() -> None:
    plans = from_plans([Plan(1, 4, 1, 1, 16)], 8)
    fullest = peak_parts(dims(GPT), A100, plans).activations[0]
    last = peak_parts(dims(GPT), A100, plans, np.array([True])).activations[0]
    assert last == pytest.approx(fullest / 4)


def test_experts_state_is_shared_out_among_the_ranks_that_hold_the_same_ones() -> None:
    """Megatron-Core's intra_expt_dp_group: of dp * cp ranks, or of `shard`, one in ep. So whatever ep is, an expert's optimizer state
    lies on each rank as much as another parameter's."""
    alone = Plan(1, 1, 16, 1, 64, zero_stage=1)
    for plan in (alone, replace(alone, dp=8, cp=2), replace(alone, shard=8)):
        divided = replace(plan, ep=4)
        assert memory(divided, MOE).weights[0] < 0.4 * memory(plan, MOE).weights[0]
        assert memory(divided, MOE).optimizer[0] == pytest.approx(memory(plan, MOE).optimizer[0])
    by_node = replace(alone, ep=4, shard=8)
    assert memory(by_node, MOE).optimizer[0] == pytest.approx(2 * memory(replace(by_node, shard=0), MOE).optimizer[0])
    # a stage of many, and Adam's own time
    stages = Plan(1, 8, 16, 1, 64, zero_stage=1)
    assert memory(replace(stages, ep=4), MOE).optimizer[0] == pytest.approx(memory(stages, MOE).optimizer[0])
    assert time(replace(alone, ep=4), MOE).optimizer[0] == pytest.approx(time(alone, MOE).optimizer[0])


def test_context_ranks_share_the_tokens() -> None:
    whole, halved = Plan(1, 1, 1, 1, 4), Plan(1, 1, 1, 1, 4, cp=2)
    assert memory(halved).activations[0] == pytest.approx(memory(whole).activations[0] / 2)
    assert time(halved, gpu=IDEAL).compute[0] == pytest.approx(time(whole, gpu=IDEAL).compute[0] / 2)
    # keys and values go round behind the scores of a long sequence, and not of a short one
    slow = replace(A100, intra_gbs=20.0)
    short, long = replace(GPT, seq=512), replace(GPT, seq=65536)
    assert time(halved, short, slow).tp[0] / time(halved, short, slow).total[0] > 0.01
    assert time(halved, long, slow).tp[0] == 0
    # they count as data-parallel ranks to the gradients and the optimizer
    assert time(halved).dp[0] > 0 and memory(halved).optimizer[0] == pytest.approx(memory(whole).optimizer[0] / 2)


def test_experts_cost_what_is_routed_and_hold_all() -> None:
    dense = replace(MOE, experts=0, top_k=0)
    h, f = MOE.hidden, MOE.ffn
    assert dims(MOE).expert_parameters == 8 * 3 * h * f
    assert dims(MOE).dense_parameters == pytest.approx(dims(dense).dense_parameters - 3 * h * f + 8 * h)
    plan = Plan(1, 1, 8, 1, 8)
    extra = time(plan, MOE, IDEAL).compute[0] - time(plan, dense, IDEAL).compute[0]
    # one more MLP a token, forward and twice backward
    assert extra == pytest.approx(16 * 3 * 6 * 2048 * h * f / 312e12, rel=1e-6)
    every_other = replace(MOE, moe_every=2)
    assert time(plan, every_other, IDEAL).compute[0] == pytest.approx(time(plan, dense, IDEAL).compute[0] + extra / 2)
    assert time(plan, replace(MOE, shared_ffn=f), IDEAL).compute[0] > time(plan, MOE, IDEAL).compute[0]


def test_expert_ranks_share_the_experts_and_talk() -> None:
    alone, four = Plan(1, 1, 8, 1, 8), Plan(1, 1, 8, 1, 8, ep=4)
    held = (memory(alone, MOE).weights - memory(four, MOE).weights)[0]
    assert held == pytest.approx(6 * 16 * float(dims(MOE).expert_parameters) * 3 / 4)
    assert time(alone, MOE).tp[0] == 0 < time(four, MOE).tp[0]
    assert time(four).tp[0] == 0  # a dense model has none


def test_zero_stages_share_out_more_and_more() -> None:
    """Rajbhandari et al. 2020, figure 1, with fp32 gradients: 18, 6 + 12/d, 2 + 16/d, 18/d bytes a parameter."""
    states = [memory(Plan(1, 1, 8, 1, 8, zero_stage=stage)) for stage in range(4)]
    total = [float((s.weights + s.optimizer)[0]) for s in states]
    number = total[0] / 18
    layer = float(dims(GPT).dense_parameters)
    assert total[1:3] == pytest.approx([number * (6 + 12 / 8), number * (2 + 16 / 8)])
    assert total[3] == pytest.approx(number * 18 / 8 + (2 * 2 + 4) * layer * 7 / 8)


def test_fsdp_traffic_hides_behind_compute_until_links_are_slow() -> None:
    plan = Plan(1, 1, 16, 4, 256, zero_stage=3)
    assert time(plan).dp[0] < 0.01 * time(plan).total[0]
    slow = replace(A100, inter_gbs=1.0)
    assert time(plan, gpu=slow).dp[0] > time(plan, gpu=slow).compute[0]
    # once a micro-batch: twice as many, twice the traffic
    more = replace(plan, global_batch=512)
    assert time(more, gpu=slow).dp[0] == pytest.approx(2 * time(plan, gpu=slow).dp[0])


def test_precisions() -> None:
    plan = Plan(1, 1, 8, 1, 64)
    h100 = figures("h100")
    fp8, bf16, fp32 = (time(replace(plan, precision=p), gpu=h100).compute[0] for p in ("fp8", "bf16", "fp32"))
    assert 1.2 < bf16 / fp8 < 2 and 1.5 < fp32 / bf16 < 4
    zero = Plan(1, 1, 1, 1, 8, zero_stage=0)
    number = (memory(zero).weights + memory(zero).optimizer)[0] / 18
    for precision, per_parameter in (("fp16", 20), ("fp32", 16)):
        held = memory(replace(zero, precision=precision))
        assert (held.weights + held.optimizer)[0] == pytest.approx(number * per_parameter)
    # PyTorch's memory-efficient kernel takes fp32, and keeps no scores either
    fused = memory(zero).activations[0]
    assert memory(replace(zero, precision="fp32")).activations[0] == pytest.approx(2 * fused)


def test_encoders_see_all_tokens_and_head_widths_count() -> None:
    plan = Plan(1, 1, 1, 1, 1)
    seen = replace(GPT, causal=False)
    core = 32 * 4 * GPT.seq**2 * GPT.hidden / 312e12
    assert (time(plan, seen, IDEAL).compute - time(plan, GPT, IDEAL).compute)[0] == pytest.approx(
        core * 3.5 / 2, rel=1e-6
    )
    wide = replace(GPT, head_dim=256)
    assert dims(wide).query == 2 * GPT.hidden
    assert dims(wide).dense_parameters - dims(GPT).dense_parameters == pytest.approx(4 * GPT.hidden**2 + 3 * GPT.hidden)
    assert time(plan, wide).total[0] > time(plan).total[0] and memory(plan, wide).total[0] > memory(plan).total[0]


def test_a_gpt_layer_has_the_parameters_it_should() -> None:
    """12 h^2 + 13 h: weights, biases and two norms."""
    assert dims(GPT).dense_parameters == 12 * 4096**2 + 13 * 4096


def test_unfused_attention_reads_its_scores_and_long_sequences_have_none() -> None:
    old = replace(A100, flash=False)
    plan = Plan(1, 1, 1, 1, 8)
    assert time(plan, gpu=old).compute[0] > 1.05 * time(plan).compute[0]
    assert time(plan, gpu=replace(A100, unfused=1.0)).total[0] == pytest.approx(time(plan, gpu=old).total[0])
    long = replace(GPT, seq=65536)
    assert time(plan, long, old).total[0] < 1.05 * time(plan, long).total[0]


def test_rows_of_many_models_are_what_they_are_alone() -> None:
    models = [GPT, MOE, load_model("llama3-8b"), load_model("bert-large")]
    plans = [
        Plan(2, 2, 2, 1, 16),
        Plan(1, 1, 8, 1, 16, ep=2, zero_stage=3),
        Plan(1, 1, 4, 1, 16, cp=2),
        Plan(8, 1, 1, 4, 16),
    ]
    together = from_plans(plans, 8)
    times, peaks = step_parts(stack_dims(models), A100, together), peak_parts(stack_dims(models), A100, together)
    for i, (model, plan) in enumerate(zip(models, plans, strict=True)):
        assert times.total[i] == pytest.approx(time(plan, model).total[0])
        assert peaks.total[i] == pytest.approx(memory(plan, model).total[0])


BARE = replace(A100, overlap=0.0, zero3_overlap=0.0, inter_latency_s=0.0, intra_latency_s=0.0, jitter=0.0)
WITHOUT_EXPERTS = replace(dims(MOE), expert_parameters=np.zeros(()))


def of_experts(plan: Plan, gpu: GpuFigures = BARE) -> float:
    """Seconds of data-parallel traffic that the experts' gradients and weights take."""
    plans = from_plans([plan], 8)
    whole, without = (step_parts(sizes, gpu, plans).dp[0] for sizes in (dims(MOE), WITHOUT_EXPERTS))
    return float(whole - without)


def test_experts_gradients_are_reduced_by_the_ranks_that_hold_the_same_ones() -> None:
    """Megatron-Core's expert data-parallel group: dp * cp / ep ranks (parallel_state.py, core_v0.16)."""
    alone, two, four = (of_experts(Plan(1, 1, 8, 1, 64, ep=ep, zero_stage=0)) for ep in (8, 4, 2))
    assert alone == pytest.approx(0.0, abs=1e-12)
    # a quarter of the experts over 2 ranks, half of them over 4: 1/4 * 1/2 against 1/2 * 3/4
    assert two > 0 and four == pytest.approx(3 * two)
    # context ranks hold the same experts
    assert of_experts(Plan(1, 1, 4, 1, 64, ep=4, cp=2, zero_stage=0)) == pytest.approx(two)
    # an expert's ranks in one node are fewer than all: they use fewer of its ports
    apart = replace(BARE, dp_inter_efficiency=1.0, dp_partial_efficiency=1.0, rail_use=1.0, intra_gbs=1e6)
    one_port, ports = (of_experts(Plan(1, 1, 16, 1, 64, ep=ep, zero_stage=0), apart) for ep in (8, 1))
    # 1/8 of the experts over 2 ranks on one port; all over 16 on eight
    assert one_port == pytest.approx(ports * (1 / 8 * 1 / 2) / (15 / 16 / 8))


def test_experts_are_gathered_by_the_ranks_that_hold_the_same_ones() -> None:
    """The same where the parameters are shared out (ZeRO-3), and where groups of ranks share out by themselves."""
    assert of_experts(Plan(1, 1, 8, 1, 64, ep=8, zero_stage=3)) == pytest.approx(0.0, abs=1e-12)
    two, four = (of_experts(Plan(1, 1, 8, 1, 64, ep=ep, zero_stage=3)) for ep in (4, 2))
    assert two > 0 and four == pytest.approx(3 * two)
    # two groups of 8 ranks, and in each all experts: nothing inside, a sum of two between them
    plans = [Plan(1, 1, 16, 1, 64, ep=8, zero_stage=zero, shard=8) for zero in (1, 3)]
    assert all(of_experts(plan) > 0 for plan in plans)
    slow_inside = replace(BARE, intra_gbs=BARE.intra_gbs / 2)
    flat = [replace(gpu, rail_use=0.0, zero3_rail_use=0.0) for gpu in (BARE, slow_inside)]
    for plan in plans:
        fast, slow = (of_experts(plan, gpu) for gpu in flat)
        assert fast == pytest.approx(slow)


def test_a_shared_expert_is_computed_by_all_tokens_and_held_by_every_expert_rank() -> None:
    """Dai et al. 2024 (DeepSeekMoE), section 3.2: FLOPs and weights of an MLP beside the routed experts, whatever ep is."""
    width = 1024
    with_it = replace(MOE, shared_ffn=width)
    plain = replace(IDEAL, overlap=0.0)
    for ep in (1, 8):
        plan = Plan(1, 1, 8, 1, 8, ep=ep, zero_stage=0)
        weights = 3 * MOE.hidden * width * MOE.layers
        compute = time(plan, with_it, plain).compute[0] - time(plan, MOE, plain).compute[0]
        assert compute == pytest.approx(6 * weights * MOE.seq / (A100.peak_tflops * 1e12), rel=1e-3)
        more, before = memory(plan, with_it), memory(plan, MOE)
        assert more.weights[0] - before.weights[0] == pytest.approx(6 * weights)
        assert more.optimizer[0] - before.optimizer[0] == pytest.approx(12 * weights)
        kept = more.activations[0] - before.activations[0]
        # what both halves of the gated unit, and its product, read and write, in 2 bytes
        assert kept == pytest.approx(2 * 3 * width * MOE.seq * MOE.layers)
