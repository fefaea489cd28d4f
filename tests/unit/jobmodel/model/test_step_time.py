"""Step time and memory: independent scalar computations, limits and monotony."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from synergy_core.records import ModelSpec, Plan

from synergyd.jobmodel.model.arrays import from_plans
from synergyd.jobmodel.model.counts import flops_per_step, parameters
from synergyd.jobmodel.model.dims import dims
from synergyd.jobmodel.model.group_links import group_links
from synergyd.jobmodel.model.hardware import GpuFigures, figures
from synergyd.jobmodel.model.memory import peak_memory
from synergyd.jobmodel.model.spec import load_model
from synergyd.jobmodel.model.step_time import step_parts, step_time

GPT = load_model("gpt3-6.7b")
A100 = figures("a100-80")
NO_EXTRAS = replace(A100, fragmentation=0.0, base_gib=0.0)
PLANS = [
    Plan(1, 1, 8, 2, 64),
    Plan(8, 1, 1, 4, 64, "full", True),
    Plan(2, 4, 1, 1, 64, "none", True, False),
    Plan(1, 8, 1, 8, 64, "selective"),
]


def seconds(plan: Plan, gpus_per_node: int = 8, gpu: GpuFigures = A100, model: ModelSpec = GPT) -> dict[str, float]:
    return step_time(model, gpu, from_plans([plan], gpus_per_node)).parts(0)


def test_an_array_gives_what_its_plans_give_alone() -> None:
    together = step_time(GPT, A100, from_plans(PLANS, 8))
    memory = peak_memory(GPT, A100, from_plans(PLANS, 8))
    for i, plan in enumerate(PLANS):
        assert together.parts(i) == pytest.approx(seconds(plan), rel=1e-12)
        alone = peak_memory(GPT, A100, from_plans([plan], 8))
        assert memory.parts(i) == pytest.approx(alone.parts(0), rel=1e-12)
        assert together.total[i] == pytest.approx(sum(together.parts(i).values()), rel=1e-12)


@pytest.mark.parametrize("name", ["gpt3-6.7b", "deepseek-v3", "deepseek-moe-16b", "qwen3-235b-a22b", "gpt-oss-120b"])
def test_compute_alone_is_flops_over_peak(name: str) -> None:
    """With nothing but GEMMs of perfect efficiency and full attention left, MFU is 1, whatever attention and experts are like."""
    model = load_model(name)
    ideal = replace(
        A100,
        gemm_efficiency=1.0,
        attention_efficiency=1.0,
        bandwidth_gbs=1e12,
        kernel_s=0.0,
        launch_s=0.0,
        fixed_s=0.0,
        micro_s=0.0,
        optimizer_s=0.0,
        flash=False,
    )
    parts = seconds(Plan(1, 1, 1, 4, 32), gpu=ideal, model=model)
    assert sum(parts.values()) == pytest.approx(flops_per_step(model, 32) / (ideal.peak_tflops * 1e12), rel=1e-6)


def test_a_layer_of_multi_token_prediction_is_the_last_stages() -> None:
    with_mtp = replace(load_model("deepseek-v3"), layers=64)  # 61 leave the last of four stages room for it
    without = replace(with_mtp, mtp_layers=0)
    gpu, plan = figures("h100"), Plan(8, 4, 1, 1, 16, "none", True)
    longer = seconds(plan, gpu=gpu, model=with_mtp), seconds(plan, gpu=gpu, model=without)
    assert longer[0]["compute"] > longer[1]["compute"] and longer[0]["bubble"] == longer[1]["bubble"]
    one = replace(plan, pp=1)
    peaks = [peak_memory(m, gpu, from_plans([one], 8)) for m in (with_mtp, without)]
    layer = (with_mtp.experts + 1) * 3 * with_mtp.hidden * with_mtp.ffn / 8
    assert (
        17 * layer
        < (peaks[0].weights + peaks[0].optimizer - peaks[1].weights - peaks[1].optimizer)[0]
        < 18 * 1.1 * layer
    )


def test_latent_attention_needs_less_memory_for_weights_than_whole_heads() -> None:
    """DeepSeek-V3's attention has 187 million weights a layer; whole heads of its width would have 587 million."""
    model = load_model("deepseek-v3")
    whole = replace(model, kv_lora=0, q_lora=0, rope_dim=0, value_dim=0, head_dim=160)
    gpu, plan = figures("h100"), from_plans([Plan(8, 1, 1, 1, 8, "none", True)], 8)
    less, more = (peak_memory(m, gpu, plan) for m in (model, whole))
    saved = (more.weights + more.optimizer - less.weights - less.optimizer)[0] / 18 * 8 / 62
    down = 7168 * (1536 + 512 + 64)  # on each of the 8 tensor ranks
    assert saved == pytest.approx(4 * 7168 * 128 * 160 - 187.1e6 - 7 * down, rel=0.001)
    assert step_time(model, gpu, plan).compute[0] < step_time(whole, gpu, plan).compute[0]


def test_every_tensor_rank_holds_latent_attentions_projections_down_whole() -> None:
    """Megatron-LM's linear_q_down_proj and linear_kv_down_proj are duplicated, not divided by tp."""
    model = replace(load_model("deepseek-v3"), mtp_layers=0)
    down = 61 * 7168 * (1536 + 512 + 64)
    gpu = figures("h100")
    one, eight = (from_plans([Plan(tp, 1, 1, 1, 8, "none", zero_stage=0)], 8) for tp in (1, 8))
    held = [peak_memory(model, gpu, plan).optimizer[0] / (12 * gpu.state_scale) for plan in (one, eight)]
    assert held[1] - held[0] / 8 == pytest.approx(7 / 8 * down, rel=1e-6)
    plain = load_model("llama3-8b")
    whole = [peak_memory(plain, gpu, plan).optimizer[0] for plan in (one, eight)]
    assert whole[1] == pytest.approx(whole[0] / 8)


def test_parts_vanish_with_their_degree() -> None:
    assert {k for k, v in seconds(Plan(1, 1, 1, 1, 8)).items() if v == 0} == {"bubble", "tp", "pp", "dp"}
    assert {k for k, v in seconds(Plan(2, 1, 1, 1, 8)).items() if v == 0} == {"bubble", "pp", "dp"}
    assert {k for k, v in seconds(Plan(1, 2, 1, 1, 8)).items() if v == 0} == {"tp", "dp"}
    assert {k for k, v in seconds(Plan(1, 1, 2, 1, 8)).items() if v == 0} == {"bubble", "tp", "pp"}


def test_bubble_is_p_minus_one_of_m() -> None:
    """SC'21 section 2.2: bubble over ideal time is (p-1)/m; the logits are not in it."""
    small_vocab = replace(GPT, vocab=1)
    few, many = (seconds(Plan(1, 4, 1, 1, m), model=small_vocab) for m in (8, 32))
    assert few["bubble"] == pytest.approx(many["bubble"])
    assert few["bubble"] / (few["compute"] + few["pp"]) == pytest.approx(3 / 8, rel=1e-3)


def test_tp_traffic_is_that_of_the_all_reduces() -> None:
    """Shoeybi et al.: 4 all-reduces of 2*T*h bytes a layer, and here one more for the logits."""
    gpu = replace(A100, intra_latency_s=0.0)
    plan = Plan(4, 1, 1, 2, 8)
    size = 2 * 2 * GPT.seq * GPT.hidden
    wanted = 4 * (4 * GPT.layers + 1) * 2 * (3 / 4) * size / (300e9 * 0.75)
    assert seconds(plan, gpu=gpu)["tp"] == pytest.approx(wanted, rel=1e-9)
    recomputed = seconds(replace(plan, recompute="full"), gpu=gpu)["tp"]
    assert recomputed / wanted == pytest.approx((6 * GPT.layers + 1) / (4 * GPT.layers + 1))


def test_a_group_that_leaves_the_node_takes_the_network() -> None:
    for plan, part in ((Plan(8, 1, 1, 1, 8), "tp"), (Plan(1, 8, 1, 1, 8), "pp"), (Plan(1, 1, 8, 1, 8), "dp")):
        slow = replace(A100, inter_gbs=5.0)
        inside, outside = seconds(plan, 8, slow)[part], seconds(plan, 2, slow)[part]
        assert outside > 2 * inside
        assert seconds(plan, 8, replace(A100, inter_gbs=1.0))[part] == inside
    # tensor groups that fit stay on NVLink however many nodes the job has
    assert seconds(Plan(8, 1, 2, 1, 8), 8)["tp"] == pytest.approx(seconds(Plan(8, 1, 1, 1, 4), 8)["tp"])


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from([1, 2, 4, 8]),
    st.sampled_from([1, 2, 4, 8]),
    st.sampled_from([1, 2, 4]),
    st.sampled_from([1, 2, 4]),
    st.sampled_from([1, 2, 4]),
    st.booleans(),
    st.sampled_from(["a100", "v100", "cpu"]),
)
def test_recompute_trades_time_for_memory(
    tp: int, pp: int, dp: int, micro: int, passes: int, sequence_parallel: bool, gpu_type: str
) -> None:
    """The search relies on it: less recompute is never slower."""
    gpu = figures(gpu_type)
    plan = Plan(tp, pp, dp, micro, dp * micro * passes, "none", sequence_parallel)
    plans = from_plans([replace(plan, recompute=r) for r in ("none", "selective", "full")], 4)
    time, memory = step_time(GPT, gpu, plans).total, peak_memory(GPT, gpu, plans).total
    assert np.all(np.diff(time) >= -1e-12 * time[0])
    assert time[0] > 0 and np.all(np.isfinite(memory))
    assert memory[1] <= memory[0] * (1 + 1e-12)


def test_selective_checkpointing_of_pytorch_lies_between_none_and_full() -> None:
    """It keeps half of the GEMMs' outputs, and no scores: more work than Megatron's kind where attention is fused."""
    plan = Plan(dp=8, micro_batch=2, global_batch=64, zero_stage=3)
    kinds = [replace(plan, recompute=r) for r in ("none", "selective", "operators", "full")]
    time = step_time(GPT, A100, from_plans(kinds, 8)).compute
    memory = peak_memory(GPT, A100, from_plans(kinds, 8)).activations
    assert time[0] < time[1] < time[2] < time[3]
    assert memory[0] == memory[1] > memory[2] > memory[3]
    # half of the forward's GEMMs again, and what is not GEMMs
    again = (time[2] - time[0]) / (time[3] - time[0])
    assert 0.4 < again < 0.7


def test_no_fast_kernel_of_fused_attention_takes_fp32() -> None:
    unfused = replace(A100, flash=False)
    for precision, same in (("fp32", True), ("bf16", False)):
        plan = Plan(dp=8, micro_batch=2, global_batch=64, precision=precision)
        assert (seconds(plan) == seconds(plan, gpu=unfused)) is same
        peaks = [peak_memory(GPT, gpu, from_plans([plan], 8)).total[0] for gpu in (A100, unfused)]
        # PyTorch's memory-efficient one does, and keeps no scores
        assert peaks[0] < peaks[1]


def test_a_cost_for_each_data_parallel_rank() -> None:
    """Where the optimizer is shared out, and no other part of the step."""
    costly = replace(A100, dp_rank_s=2e-3, jitter=0.0)
    for stage, more in ((0, 0.0), (1, 63 * 2e-3), (3, 0.0)):
        plan = Plan(dp=64, micro_batch=1, global_batch=64, zero_stage=stage)
        first, second = (seconds(plan, gpu=gpu)["dp"] for gpu in (replace(A100, jitter=0.0), costly))
        assert second - first == pytest.approx(more, abs=1e-9)


def test_a_smaller_shard_group_keeps_more_and_pays_for_fewer_ranks() -> None:
    """Groups of 8 in nodes of 8: the weights go over NVLink alone, gradients twice over the network in eighths; the optimizer is held
    64 / 8 times as often."""
    plans = from_plans([Plan(dp=64, micro_batch=1, global_batch=64)] * 2, 8)
    plans = replace(plans, shard=np.array([64, 8]))
    time, memory = step_time(GPT, replace(A100, dp_rank_s=2.5e-3), plans), peak_memory(GPT, A100, plans)
    assert memory.optimizer[1] == pytest.approx(8 * memory.optimizer[0])
    assert time.dp[1] < time.dp[0] and time.optimizer[1] > time.optimizer[0]
    # one rank a group shares out nothing: gradients are all-reduced, as without ZeRO
    alone = replace(plans, shard=np.array([1, 1]))
    plain = replace(alone, zero_stage=np.zeros(2, dtype=np.int64))
    assert peak_memory(GPT, A100, alone).optimizer == pytest.approx(peak_memory(GPT, A100, plain).optimizer)
    assert step_time(GPT, A100, alone).dp == pytest.approx(step_time(GPT, A100, plain).dp, rel=0.3)


def test_fsdp_whose_shards_stay_in_the_node() -> None:
    """HSDP: weights go over NVLink alone and are held whole in each node; gradients once more between nodes, in eighths."""
    plans = from_plans([Plan(dp=64, micro_batch=1, global_batch=64, zero_stage=3, shard=shard) for shard in (0, 8)], 8)
    quiet = replace(A100, jitter=0.0, zero3_overlap=0.0)
    time, memory = step_time(GPT, quiet, plans), peak_memory(GPT, NO_EXTRAS, plans)
    assert memory.optimizer[1] == pytest.approx(8 * memory.optimizer[0]) and memory.weights[1] > memory.weights[0]
    assert time.dp[1] < time.dp[0]
    # both have traffic between nodes
    fast = step_time(GPT, replace(quiet, inter_gbs=100 * quiet.inter_gbs, inter_latency_s=0.0), plans).dp
    assert fast[0] < time.dp[0] and fast[1] < time.dp[1]


def test_a_shard_group_spans_context_ranks_too() -> None:
    """tp 2, cp 2, dp 16 in nodes of 8: four ranks of the node's context and data groups share out."""
    plan = Plan(2, 1, 16, 1, 64, "none", True, cp=2)
    found = peak_memory(GPT, NO_EXTRAS, from_plans([plan, replace(plan, shard=4)], 8)).optimizer
    assert found[1] == pytest.approx(8 * found[0])
    links = group_links(A100, from_plans([replace(plan, shard=4)], 8))
    assert links["shard"].rate[0] > links["replicas"].rate[0]


def test_memory_of_a_whole_gpt_on_one_gpu() -> None:
    """Rajbhandari et al.: 18 bytes a parameter; Korthikanti et al.: 34*s*b*h a layer."""
    s, h, b = GPT.seq, GPT.hidden, 2
    peak = peak_memory(GPT, NO_EXTRAS, from_plans([Plan(1, 1, 1, b, 8)], 8))
    assert peak.weights[0] + peak.optimizer[0] == pytest.approx(18 * parameters(GPT))
    assert peak.activations[0] == pytest.approx(34 * s * b * h * GPT.layers)
    assert peak.logits[0] == pytest.approx(8 * s * b + s * b * h + 4 * s * b * h * (1 + GPT.vocab / h))
    unfused = peak_memory(GPT, replace(NO_EXTRAS, flash=False), from_plans([Plan(1, 1, 1, b, 8)], 8))
    # with the attention term: s*b*h*(34 + 5*a*s/h)
    assert unfused.activations[0] == pytest.approx(s * b * h * (34 + 5 * GPT.heads * s / h) * GPT.layers)


def test_memory_under_tensor_and_sequence_parallel() -> None:
    """Korthikanti et al.: s*b*h*(10 + 24/t), and 34*s*b*h/t with sequence parallel."""
    t, b = 8, 1
    base = GPT.seq * b * GPT.hidden * GPT.layers
    plans = from_plans([Plan(t, 1, 1, b, 8), Plan(t, 1, 1, b, 8, "none", True)], 8)
    assert peak_memory(GPT, NO_EXTRAS, plans).activations == pytest.approx([base * (10 + 24 / t), base * 34 / t])


def test_distributed_optimizer_and_pipeline_memory() -> None:
    plans = from_plans([Plan(1, 1, 8, 1, 64), Plan(1, 1, 8, 1, 64, zero_stage=0)], 8)
    states = peak_memory(GPT, NO_EXTRAS, plans)
    assert (states.weights + states.optimizer) / parameters(GPT) == pytest.approx([6 + 12 / 8, 18])
    # 1F1B: the first stage keeps min(m, p) micro-batches, so its activations do not shrink with p
    deep = peak_memory(GPT, NO_EXTRAS, from_plans([Plan(1, 4, 1, 1, m) for m in (2, 4, 16)], 8)).activations
    assert deep == pytest.approx([deep[1] / 2, deep[1], deep[1]])


def test_gated_model_with_query_groups() -> None:
    model = load_model("llama3-8b")
    peak = peak_memory(model, NO_EXTRAS, from_plans([Plan(1, 1, 1, 1, 1)], 8))
    # norms, q k v (k = 1/4) and core output, gate, up and their product
    per_layer = 10 + 4 + 4 / 4 + 6 * 14336 / 4096
    assert peak.activations[0] == pytest.approx(per_layer * model.seq * model.hidden * model.layers)
    assert math.isfinite(seconds(Plan(8, 1, 1, 1, 8, sequence_parallel=True), model=model)["compute"])


def test_small_work_is_launch_bound() -> None:
    mini = load_model("gpt-mini")
    one, four = (seconds(Plan(1, 1, 1, b, 4 * b), gpu=A100, model=mini)["compute"] for b in (1, 4))
    assert one == pytest.approx(four, rel=0.05)
    assert one >= 4 * 4 * 2 * A100.launch_s


def test_weights_that_every_tensor_rank_holds_whole_are_reduced_whole() -> None:
    """Multi-head latent attention's way down: of twice the tensor ranks each has as much of it as before."""
    whole = dims(load_model("deepseek-v3"))
    assert np.all(whole.replicated_parameters > 0)
    for tp, more in ((1, False), (8, True)):
        plans = from_plans([Plan(tp, 1, 8, 1, 64)], 8)
        parts = [
            step_parts(m, figures("h100"), plans) for m in (whole, replace(whole, replicated_parameters=np.zeros(1)))
        ]
        for name in ("dp", "optimizer"):
            first, second = (float(getattr(part, name)[0]) for part in parts)
            assert first > second if more else first == second, name


def test_sharing_the_optimizer_over_more_ranks_is_no_gain() -> None:
    """Among 8 of 256 ranks it is faster: a hop at each rank for each bucket. Measured so by InternEvo (zero1=8)."""
    plan = Plan(dp=256, micro_batch=1, global_batch=512, zero_stage=1)
    assert seconds(replace(plan, shard=8))["dp"] < seconds(plan)["dp"]
