"""The whole plan space against trying every number, what dominance leaves out, and what jobs' scripts accept."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from synergy_core.accepts import NOTHING_MORE, Accepts
from synergy_core.errors import UsageError
from synergy_core.recompute import MODULES
from synergy_core.records import (
    Cluster,
    Directive,
    Job,
    JobState,
    ModelSpec,
    Node,
    Plan,
    Profile,
    Shape,
)
from synergy_launch.megatron_lm.capabilities import accepts

from synergyd.jobmodel.cell_search import rank
from synergyd.jobmodel.job_planner import JobPlanner
from synergyd.jobmodel.model.arrays import from_plans
from synergyd.jobmodel.model.hardware import GpuFigures, figures
from synergyd.jobmodel.model.memory import peak_memory
from synergyd.jobmodel.model.spec import load_model
from synergyd.jobmodel.model.step_time import step_time
from synergyd.jobmodel.plan_limits import PlanLimits, check_fixed, context_degrees, expert_degrees
from synergyd.jobmodel.plan_space import enumerate_plans

H100 = figures("h100")
MOE = ModelSpec("moe", 8, 2048, 16, 8, 4096, 32000, 16384, True, False, experts=4, top_k=2)
FREE = PlanLimits(32, 32, vpp=None, cp=None, ep=None, zero_stages=(1, 2, 3))


def divides(model: ModelSpec, shape: Shape, plan: Plan) -> bool:
    """Megatron-LM's and DeepSpeed's own conditions, one by one."""
    return (
        plan.gpus == shape.gpus
        and model.heads % plan.tp == 0
        and model.ffn % plan.tp == 0
        and (model.kv_heads % plan.tp == 0 or plan.tp % model.kv_heads == 0)
        and shape.gpus_per_node % plan.tp == 0
        and model.layers % (plan.pp * plan.vpp) == 0
        and (plan.vpp == 1 or plan.pp > 1)
        and (plan.cp == 1 or (model.seq % (2 * plan.cp) == 0 and model.seq // plan.cp >= 4096))
        and model.seq % (plan.tp * plan.cp) == 0
        and (plan.ep == 1 or (model.experts > 0 and model.experts % plan.ep == 0 and plan.dp % plan.ep == 0))
        and (plan.zero_stage == 1 or (plan.pp == 1 and plan.dp * plan.cp > 1))
        and plan.global_batch % (plan.dp * plan.micro_batch) == 0
        and (plan.vpp == 1 or plan.micro_batches % plan.pp == 0)
        # the one that dominance leaves out: half of cp and micro-batch is never slower
        and (plan.cp == 1 or plan.micro_batch % 2 == 1)
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "gpu", "shape"),
    [
        (MOE, H100, Shape("h100", 2, 4)),
        (replace(load_model("llama3-8b"), layers=12, seq=16384), H100, Shape("h100", 3, 4)),
        (load_model("gpt3-2.7b"), figures("v100"), Shape("v100", 2, 4)),
    ],
)
def test_the_whole_space_is_what_trying_every_number_finds(model: ModelSpec, gpu: GpuFigures, shape: Shape) -> None:
    limits = replace(FREE, low=24, high=24) if shape.nodes == 3 else FREE
    found = enumerate_plans(model, gpu, [shape], limits)
    plans = [found.plans.plan(i) for i in range(len(found.plans))]
    assert len(set(plans)) == len(plans) > 20
    numbers = [range(1, shape.gpus + 1)] * 3 + [range(1, model.layers + 1), range(1, 5), (1, 2, 3), range(1, 33)]
    expected = set()
    for tp, pp, cp, vpp, ep, zero, micro in itertools.product(*numbers):
        dp, rest = divmod(shape.gpus, tp * pp * cp)
        if rest or limits.low % max(1, dp * micro):
            continue
        plan = Plan(tp, pp, dp, micro, limits.low, "none", tp > 1, zero, vpp, cp, ep)
        if not divides(model, shape, plan):
            continue
        for recompute in ("none", "selective", "full"):
            trial = replace(plan, recompute=recompute)
            if recompute == "selective" and gpu.flash:
                continue  # there is nothing that it would free
            if peak_memory(model, gpu, from_plans([trial], shape.gpus_per_node)).total[0] <= gpu.usable_bytes:
                expected.add(trial)
                break
    assert set(plans) == expected
    assert len({p.vpp for p in plans}) > 1
    if model is MOE:
        assert {p.ep for p in plans} == {1, 2, 4} and {p.cp for p in plans} == {1, 2, 4}
        assert {p.zero_stage for p in plans} == {1, 2, 3}


def test_what_is_left_out_is_never_better() -> None:
    model, shape = load_model("gpt3-6.7b"), Shape("h100", 2, 8)
    ranked = rank(model, H100, [shape], replace(FREE, low=64, high=64))
    pairs = []
    for i in ranked.order:
        kept = ranked.candidates.plans.plan(i)
        out = [replace(kept, sequence_parallel=False)] * (kept.tp > 1)
        out += [replace(kept, zero_stage=0)] * (kept.zero_stage == 1)
        out += [replace(kept, recompute="full")] * (kept.recompute == "none")
        if kept.cp == 1 and kept.dp % 2 == 0:
            out.append(replace(kept, cp=2, dp=kept.dp // 2, micro_batch=2 * kept.micro_batch))
        pairs += [(i, one) for one in out]
    assert len(pairs) > 100
    left_out = from_plans([one for _, one in pairs], 8)
    kept_s = ranked.step_s[[i for i, _ in pairs]]
    assert np.all(kept_s <= step_time(model, H100, left_out).total * (1 + 1e-9))
    kept_bytes, bytes_out = ranked.candidates.memory[[i for i, _ in pairs]], peak_memory(model, H100, left_out).total
    # recompute is there to take less memory
    same = np.array([one.recompute == ranked.candidates.plans.plan(i).recompute for i, one in pairs])
    assert np.all(kept_bytes[same] <= bytes_out[same] * (1 + 1e-9))


def test_cells_are_the_best_of_all_plans() -> None:
    model, shapes = load_model("gpt3-6.7b"), [Shape("h100", 1, 8), Shape("h100", 4, 8)]
    for limits in (replace(FREE, low=64, high=64), replace(FREE, low=32, high=900)):
        every = rank(model, H100, shapes, limits, noise_scale=200.0)
        alone = rank(model, H100, shapes, limits, noise_scale=200.0, cells_only=True)
        assert alone.best_cells() == every.best_cells()
        best: dict[tuple[int, int], float] = {}
        for i, good in enumerate(every.goodput):
            key = (int(every.candidates.shape[i]), int(every.candidates.plans.pp[i]))
            best[key] = max(best.get(key, 0.0), float(good))
        assert [c.goodput for c in every.best_cells()] == [best[key] for key in sorted(best)]


def test_degrees_of_sequences_and_experts() -> None:
    assert context_degrees(load_model("llama3-70b")) == [1, 2]
    assert context_degrees(load_model("llama3-70b", 131072)) == [1, 2, 4, 8, 16, 32]
    assert context_degrees(load_model("gpt3-175b")) == [1]
    assert context_degrees(replace(load_model("bert-large"), seq=65536)) == [1]
    assert context_degrees(replace(MOE, seq=3 * 4096)) == [1, 2]
    assert expert_degrees(MOE) == [1, 2, 4] and expert_degrees(load_model("gpt2")) == [1]


@pytest.mark.parametrize(
    ("limits", "says"),
    [
        (PlanLimits(8, 8, vpp=2, pp=1), "vpp=2 with pp=1; virtual stages need a pipeline"),
        (PlanLimits(8, 8, vpp=3, pp=2), "pp=2 x vpp=3 does not divide moe's 8 layers; vpp may be 1, 2, 4"),
        (PlanLimits(8, 8, vpp=3), "vpp=3 does not divide moe's 8 layers"),
        (PlanLimits(8, 8, cp=3), "cp=3 can't cut moe's sequence of 16384; cp may be 1, 2, 4, 8"),
        (PlanLimits(8, 8, ep=3), "ep=3 does not divide moe's 4 experts; ep may be 1, 2, 4"),
        (PlanLimits(8, 8, cp=0), "cp=0; it must be at least 1"),
        (PlanLimits(8, 8, zero_stages=(4,)), "zero stage 4; it may be 0, 1, 2 or 3"),
        (PlanLimits(8, 8, pp=2, zero_stages=(3,)), "zero stage 3 with pp=2"),
        (PlanLimits(8, 8, precisions=("int8",)), "precision int8; it may be bf16, fp16, fp32, fp8"),
        (PlanLimits(8, 8, tp=2, cp=4, ep=4), "tp=2 x pp=1 x cp=4 x ep=4 needs 32 GPUs, more than the 16 allowed"),
    ],
)
def test_contradictions_of_the_new_degrees(limits: PlanLimits, says: str) -> None:
    with pytest.raises(UsageError) as error:
        check_fixed(MOE, limits, "", 16)
    assert says in str(error.value)


def test_contradictions_with_a_dense_model_and_an_encoder() -> None:
    with pytest.raises(UsageError, match="ep=2 does not divide gpt2's experts: it has none; ep may be 1"):
        check_fixed(load_model("gpt2"), PlanLimits(8, 8, ep=2), "")
    with pytest.raises(UsageError, match=r"cp=2 with an encoder \(bert-large\); cp may be 1"):
        check_fixed(load_model("bert-large"), PlanLimits(8, 8, cp=2), "")


NO_BIAS = "--disable-bias-linear"
MEGATRON = [
    *(["--num-layers", "32", "--hidden-size", "4096", "--num-attention-heads", "32", "--seq-length", "8192"]),
    *(["--micro-batch-size=1", "--global-batch-size", "64", "--bf16"]),
]


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (MEGATRON, Accepts(True, True, False, "bf16", True, True)),
        ([*MEGATRON, "--num-experts", "8", "--fp8-format", "hybrid"], Accepts(True, True, True, "fp8", True, True)),
        ([*MEGATRON[:-1], "--fp16", "--transformer-impl=local"], Accepts(True, False, False, "fp16", True, True)),
        ([*MEGATRON, "--transformer-impl", "local"], Accepts(True, False, False, "bf16", True, True)),
        ([*MEGATRON, "--decoder-first-pipeline-num-layers", "3"], Accepts(False, True, False, "bf16", overlap=True)),
        ([*MEGATRON, "--hybrid-override-pattern=M*M-"], Accepts(True, True, False, "bf16", overlap=True)),
        ([*MEGATRON, "--encoder-seq-length", "512"], Accepts(True, True, False, "bf16", overlap=True)),
        ([*MEGATRON, "--use-torch-fsdp2"], Accepts(False, False, False, "bf16", single_stage=True)),
        ([*MEGATRON, "--use-legacy-models"], NOTHING_MORE),
        (MEGATRON[2:], NOTHING_MORE),
        (["--layers", "4", "--hidden", "64"], NOTHING_MORE),
        ([], NOTHING_MORE),
    ],
)
def test_what_a_command_line_accepts(argv: list[str], expected: Accepts) -> None:
    megatron = expected != NOTHING_MORE
    found = accepts(argv)
    shard = megatron and "--use-torch-fsdp2" not in argv
    known = replace(expected, exact_only=megatron, blocks=megatron)
    assert replace(found, modules="") == replace(known, shard=shard, a2a=expected.cp)
    assert found.modules == ("" if not megatron or expected.precision == "fp8" else "layernorm")
    # options of uneven stages are younger than the others; modules, groups and all-to-alls were run with 0.16 alone
    assert accepts(argv, (0, 11)) == replace(known, uneven=False)
    assert accepts(argv, (0, 15)) == known == accepts(argv, None)


def test_the_users_own_groups_stay() -> None:
    for own in (["--num-distributed-optimizer-instances", "2"], ["--ddp-reduce-scatter-with-fp32-accumulation"]):
        assert not accepts([*MEGATRON, *own]).shard
    present = Plan(tp=2, dp=4, micro_batch=1, global_batch=64, shard=2)
    for said, profile in ((Accepts(), Profile(resharding=True)), (Accepts(shard=True), Profile())):
        job = a_task(profile, present, said)
        assert job.limits().groups == 2 and not job.limits().shards
        plans = [c.plan for c in job.cells(CLUSTER)]
        assert plans and all(p.shard_ranks * 2 == p.dp * p.cp for p in plans if p.dp * p.cp % 2 == 0)
    free = a_task(Profile(resharding=True), present, Accepts(shard=True)).limits()
    assert free.shards and free.groups == 1


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ([NO_BIAS, "--num-experts", "8"], "layernorm+mlp+moe"),
        ([NO_BIAS, "--num-experts", "8", "--moe-grouped-gemm", "--multi-latent-attention"], "+".join(MODULES[1:6])),
        (["--num-experts", "8", "--moe-grouped-gemm"], "layernorm+moe_act"),
        ([NO_BIAS, "--fp8-format", "hybrid", "--num-experts=8", "--moe-grouped-gemm"], "mlp+moe"),
        ([NO_BIAS, "--fp8-format=e4m3", "--fp8-recipe", "blockwise"], "layernorm+mlp"),
        (["--cuda-graph-impl", "local"], ""),
    ],
)
def test_modules_that_a_command_line_can_compute_again(more: list[str], expected: str) -> None:
    found = accepts([*MEGATRON, *more])
    assert found.modules == expected and found.blocks == bool(expected)


@pytest.mark.parametrize(
    ("more", "one_stage", "own_recompute", "whole_optimizer"),
    [
        ("", False, False, False),
        ("--cuda-graph-impl transformer_engine", False, True, False),
        ("--cpu-offloading-num-layers 2", True, True, False),
        ("--cpu-offloading-num-layers 0", False, False, False),
        ("--hybrid-context-parallel", True, False, False),
        ("--optimizer dist_muon", False, False, True),
    ],
)
def test_what_other_options_bind(more: str, one_stage: bool, own_recompute: bool, whole_optimizer: bool) -> None:
    found = accepts([*MEGATRON, *more.split()])
    assert found.own_tp is whole_optimizer
    assert (found.single_stage, found.own_recompute, found.whole_optimizer) == (
        one_stage,
        own_recompute,
        whole_optimizer,
    )
    assert found.shard is not whole_optimizer and found.blocks is not own_recompute


def test_no_context_ranks_with_an_attention_that_has_none() -> None:
    found = accepts([*MEGATRON, "--experimental-attention-variant", "gated_delta_net"])
    assert not found.cp and not found.a2a and accepts(MEGATRON).cp


def test_cuda_graphs_keep_the_users_own_experts() -> None:
    experts = [*MEGATRON, "--num-experts", "8", "--enable-cuda-graph"]
    assert not accepts(experts).ep and accepts([*experts, "--moe-pad-experts-for-cuda-graph-inference"]).ep


CLUSTER = Cluster(tuple(Node(f"n{i}", "h100", 8) for i in range(4)))


def a_task(profile: Profile = Profile(), present: Plan | None = None, said: Accepts = NOTHING_MORE) -> JobPlanner:  # noqa: B008
    shape = Shape("h100", 2, 8)
    one = Job(
        7, "j", "u", 1, "gpu", JobState.PENDING, "", 0.0, None, None, 0, shape, shape, directive=Directive(global_batch=(64, 64))
    )  # fmt: skip
    return JobPlanner(one, replace(profile, accepts=said), replace(MOE, seq=32768), {}, present)


def test_a_job_gets_no_degree_that_its_script_may_not_take() -> None:
    plain = {(c.plan.vpp, c.plan.cp, c.plan.ep, c.plan.precision) for c in a_task().cells(CLUSTER)}
    assert plain == {(1, 1, 1, "bf16")}
    everything = a_task(said=Accepts(True, True, True)).limits()
    assert (everything.vpp, everything.cp, everything.ep, everything.zero_stages) == (None, None, None, (1,))
    assert a_task(said=Accepts(vpp=True, precision="fp8")).limits().precisions == ("fp8",)
    free = a_task(said=Accepts(True, True, True)).cells(CLUSTER)
    assert {c.plan.pp for c in free} >= {1, 2, 4} and all(c.plan.gpus == c.shape.gpus for c in free)


def test_a_running_job_keeps_what_it_runs_with() -> None:
    present = Plan(tp=2, pp=2, dp=2, cp=2, ep=2, vpp=2, micro_batch=1, global_batch=64, zero_stage=2, precision="fp16")
    stuck = a_task(present=present, said=Accepts(True, True, True)).limits()
    assert (stuck.tp, stuck.pp, stuck.vpp, stuck.cp, stuck.ep) == (2, 2, 2, 2, 2)
    assert stuck.zero_stages == (2,) and stuck.precisions == ("fp16",)
    # one that reshards may change tp and pp; what is not known to reach its script stays
    free = a_task(Profile(resharding=True), present).limits()
    assert (free.tp, free.pp, free.vpp, free.cp, free.ep) == (None, None, 2, 2, 2)


def test_why_nothing_fits_names_the_degrees() -> None:
    present = Plan(tp=2, pp=2, dp=1, vpp=2, micro_batch=1, global_batch=63)
    job = a_task(Profile(global_batch=63), present)
    assert job.cells(CLUSTER) == ()
    assert "vpp=2" in job.why_no_cell(CLUSTER) and "\n" not in job.why_no_cell(CLUSTER)


def test_overlap_is_that_of_the_flags_that_a_script_takes() -> None:
    """More data-parallel traffic is hidden where the launcher can write the flags; a plan of one replica has none."""
    shape = Shape("h100", 1, 8)
    plain, told = a_task(), a_task(said=Accepts(overlap=True))
    for dp, hides in ((8, True), (1, False)):
        plan = Plan(tp=8 // dp, dp=dp, micro_batch=1, global_batch=64)
        before, after = plain.predict(shape, plan), told.predict(shape, plan)
        assert before is not None and after is not None and before[1] == after[1]
        assert (after[0] < before[0]) is hides and after[0] <= before[0]


def test_what_is_shared_out_over_a_node_or_over_all() -> None:
    shape = Shape("h100", 4, 8)
    limits = PlanLimits(64, 64, ep=None, cp=None, zero_stages=(1, 3), shards=True)
    found, without = (enumerate_plans(MOE, H100, [shape], one) for one in (limits, replace(limits, shards=False)))
    plans = {found.plans.plan(i) for i in range(len(found.plans))}
    assert len(plans) == len(found.plans) and {without.plans.plan(i) for i in range(len(without.plans))} <= plans
    smaller = {plan for plan in plans if plan.shard}
    assert {plan.shard for plan in smaller} == {2, 4, 8} and {plan.zero_stage for plan in smaller} == {1, 3}
    for plan in smaller:
        ranks = plan.dp * plan.cp
        assert plan.shard == 8 // plan.tp < ranks and ranks % plan.shard == 0
        # Megatron-Core's own check: the ranks that hold the same experts are cut into as many groups
        assert ranks // plan.ep % (ranks // plan.shard) == 0
        whole, part = (peak_memory(MOE, H100, from_plans([one], 8)).total[0] for one in (replace(plan, shard=0), plan))
        assert whole < part
    assert not any(plan.shard for plan in (without.plans.plan(i) for i in range(len(without.plans))))
    alone = enumerate_plans(MOE, H100, [Shape("h100", 1, 8)], limits)
    assert (alone.plans.shard == alone.plans.dp * alone.plans.cp).all(), "in one node there is nothing smaller"


def test_context_ranks_exchange_by_ring_or_all_to_all() -> None:
    shape, limits = Shape("h100", 2, 8), PlanLimits(16, 16, cp=None, a2a=True)
    long = replace(load_model("llama3-8b"), seq=65536)
    ranked = rank(long, H100, [shape], limits)
    plans = [ranked.candidates.plans.plan(i) for i in range(len(ranked.step_s))]
    by_heads = {plan for plan in plans if plan.cp_comm == "a2a"}
    assert len(set(plans)) == len(plans) and by_heads
    for plan in plans:
        # 8 heads of keys over tp and cp (Transformer Engine's check of all-to-all)
        fits = plan.cp > 1 and 32 // plan.tp % plan.cp == 0 and max(8 // plan.tp, 1) % plan.cp == 0
        assert (replace(plan, cp_comm="a2a") in by_heads) == fits
    assert not any(
        plan.cp_comm == "a2a" for plan in (enumerate_plans(long, H100, [shape], PlanLimits(16, 16)).plans.plan(0),)
    )
    latent = replace(load_model("deepseek-v3"), layers=8, experts=0, top_k=0, dense_layers=0, moe_every=1, seq=16384)
    found = enumerate_plans(latent, H100, [Shape("h100", 16, 8)], replace(limits, low=128, high=128))
    assert len(found.plans) and (found.plans.cp > 1).any() and not found.plans.cp_comm.any()


def test_what_the_two_exchanges_take() -> None:
    """A ring hides behind the core of long sequences; all-to-alls move less where there are more keys, and hide nowhere."""

    quiet = replace(H100, overlap=1.0, jitter=0.0, intra_latency_s=0.0)
    slow = replace(quiet, intra_gbs=quiet.intra_gbs / 20)

    def exposed(model: ModelSpec, cp_comm: str, gpu: GpuFigures = quiet) -> float:
        return float(step_time(model, gpu, from_plans([Plan(global_batch=8, cp=8, cp_comm=cp_comm)], 8)).tp[0])

    short = replace(load_model("gpt3-6.7b"), seq=8192)
    long = replace(short, seq=131072)
    assert exposed(long, "p2p") == 0.0 < exposed(long, "a2a")
    # three passes of 7 chunks of keys and values against two of 7/8 of four chunks
    assert exposed(short, "a2a", slow) < exposed(short, "p2p", slow)
    # tokens a rank times h in 2 bytes: q, k, v and the output each way, forward and backward, to 7 of 8 ranks
    moved = 2 * 4 * short.seq // 8 * short.hidden * 2 * 7 / 8 * short.layers * 8
    rate = quiet.intra_gbs * 1e9 * quiet.link_efficiency
    assert exposed(short, "a2a") == pytest.approx(moved / rate, rel=1e-6)


@pytest.mark.parametrize("recompute", ["none", "selective", "full", "core_attn+layernorm"])
def test_plans_compute_again_what_the_script_is_bound_to(recompute: str) -> None:
    """Where that does not fit there is no plan, in place of one that the script would not run."""
    present = Plan(tp=2, dp=8, micro_batch=1, global_batch=64, recompute=recompute)
    plans = [c.plan for c in a_task(Profile(resharding=True), present, Accepts(own_recompute=True)).cells(CLUSTER)]
    assert plans and {(p.recompute, p.recompute_layers) for p in plans} == {(recompute, 0)}


def test_an_optimizer_that_stays_whole_is_so_in_every_plan() -> None:
    present = Plan(tp=2, dp=8, micro_batch=1, global_batch=64)
    for said, stage in ((True, 0), (False, 1)):
        cells = a_task(Profile(resharding=True), present, Accepts(whole_optimizer=said)).cells(CLUSTER)
        assert {c.plan.zero_stage for c in cells if c.plan.dp > 1} == {stage}


def test_a_script_keeps_its_tp_where_another_is_another_training() -> None:
    present = Plan(tp=2, dp=8, micro_batch=1, global_batch=64)
    plans = [c.plan for c in a_task(Profile(resharding=True), present, Accepts(own_tp=True)).cells(CLUSTER)]
    assert plans and {p.tp for p in plans} == {2} and len({p.pp for p in plans}) > 1
