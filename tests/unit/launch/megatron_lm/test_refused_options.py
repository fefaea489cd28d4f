"""Options of the user's that Megatron-LM refuses beside a plan's degrees. tests/integration/test_megatron_lm_arguments.py asks it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from synergy_core.records import Plan
from synergy_launch.megatron_lm.arguments import read_plan, with_plan, with_users_degrees
from synergy_launch.megatron_lm.options import has_option, option_number, option_words

USER = [
    *[
        "--num-layers",
        "16",
        "--num-attention-heads",
        "8",
        "--seq-length",
        "64",
        "--micro-batch-size",
        "1",
        "--global-batch-size",
        "32",
    ]
]
PLAN = Plan(tp=2, pp=4, dp=2, global_batch=32, sequence_parallel=True)
ALONE = Plan(dp=16, global_batch=32)
BY_LAYERS, GROUP = "--num-layers-per-virtual-pipeline-stage", "--microbatch-group-size-per-virtual-pipeline-stage"
FULL = replace(PLAN, recompute="full", sequence_parallel=False)
MOE = [*["--num-experts", "8", "--disable-bias-linear"]]
OVERLAPPED = [*MOE, "--overlap-moe-expert-parallel-comm", "--delay-wgrad-compute"]


@pytest.mark.parametrize(
    ("given", "takes", "refuses"),
    [
        ("--tp-comm-overlap", PLAN, ALONE),
        ("--distribute-saved-activations", FULL, PLAN),
        ("--distribute-saved-activations", FULL, replace(ALONE, recompute="full")),
        ("--defer-embedding-wgrad-compute", PLAN, ALONE),
        ("--inference-batch-times-seqlen-threshold 512", PLAN, ALONE),
        ("--overlap-p2p-communication-warmup-flush", replace(PLAN, vpp=2), PLAN),
        ("--cpu-offloading-num-layers 2", ALONE, PLAN),
        (f"{BY_LAYERS} 2 --no-overlap-p2p-communication", PLAN, replace(PLAN, pp=2, dp=4)),
        (f"{BY_LAYERS} 2 {GROUP} 8", PLAN, replace(PLAN, pp=8, dp=1, micro_batch=8)),
        (
            f"{BY_LAYERS} 2 {GROUP} 12",
            replace(PLAN, vpp=2),
            replace(PLAN, vpp=2, global_batch=28),
        ),  # 16 = 12 + 4, 14 = 12 + 2
    ],
)
def test_an_option_goes_where_the_degrees_refuse_it(given: str, takes: Plan, refuses: Plan) -> None:
    name = given.split()[0] if GROUP not in given else GROUP
    for plan, there in ((takes, True), (refuses, False)):
        made = with_plan([*USER, *given.split()], plan)
        assert has_option(made, name) is there and with_plan(made, plan) == made
        assert ("512" in made) is (there and "512" in given)


@pytest.mark.parametrize(
    ("plan", "there"),
    [
        (replace(PLAN, ep=2, pp=1, dp=8), True),
        (replace(PLAN, ep=2, vpp=2), True),
        (replace(PLAN, ep=2), False),  # a pipeline that is not interleaved
        (replace(PLAN, pp=1, dp=8), False),
        (replace(PLAN, ep=2, pp=1, dp=8, recompute="full"), False),
    ],
)
def test_the_experts_all_to_all_is_overlapped_where_it_can_be(plan: Plan, there: bool) -> None:
    made = with_plan([*USER, *OVERLAPPED], plan)
    assert [has_option(made, name) for name in OVERLAPPED[-2:]] == [there, there]
    predicting = with_plan([*USER, *OVERLAPPED, "--mtp-num-layers", "1"], plan)
    assert has_option(predicting, OVERLAPPED[-1]) is (there and plan.pp > 1)


@pytest.mark.parametrize("step", [[BY_LAYERS, "4"], []])
def test_parameters_are_not_gathered_in_the_optimizer_s_step(step: list[str]) -> None:
    """That goes with no checkpoint that reshards."""
    flag = "--overlap-param-gather-with-optimizer-step"
    for may_overlap in (True, False):
        assert not has_option(with_plan([*USER, *step, flag], PLAN, may_overlap=may_overlap), flag)


@pytest.mark.parametrize(
    "option",
    ["--cuda-graph-impl=local", "--enable-cuda-graph", "--external-cuda-graph", "--cpu-offloading-num-layers 2"],
)
def test_what_is_computed_again_stays_where_other_options_bind_it(option: str) -> None:
    bound_by = option.split()
    own = ["--recompute-granularity", "selective", "--recompute-modules", "layernorm", "core_attn"]
    for plan in (ALONE, replace(ALONE, recompute="full")):
        made = with_plan([*USER, *own, *bound_by], plan)
        assert option_words(made, "--recompute-modules") == own[3:] and not has_option(made, "--recompute-method")
        assert with_plan(made, plan) == made
        ran = read_plan(made, 16)
        assert (
            ran is not None
            and ran.recompute == "core_attn+layernorm" == with_users_degrees(plan, [*own, *bound_by]).recompute
        )


@pytest.mark.parametrize("kind", ["muon", "dist_muon"])
def test_muon_keeps_its_optimizer_whole(kind: str) -> None:
    made = with_plan([*USER, "--optimizer", kind, "--use-distributed-optimizer"], PLAN)
    ran = read_plan(made, 16)
    assert not has_option(made, "--use-distributed-optimizer") and ran is not None and ran.zero_stage == 0


@pytest.mark.parametrize(
    ("more", "plan", "ep", "cut"),
    [
        # not cut by tp: what tp would have cut is shared out
        ("--expert-tensor-parallel-size 1 --expert-model-parallel-size 8", Plan(tp=8, dp=1, global_batch=32), 8, 1),
        ("--expert-tensor-parallel-size 1 --expert-model-parallel-size 8", Plan(tp=4, dp=2, global_batch=32), 8, 1),
        ("--expert-tensor-parallel-size 1", Plan(tp=2, dp=4, ep=4, global_batch=32), 8, 1),
        (
            "--expert-tensor-parallel-size 1",
            Plan(tp=2, dp=8, ep=8, global_batch=32),
            8,
            1,
        ),  # 16 does not divide the experts
        (
            "--expert-tensor-parallel-size 2 --expert-model-parallel-size 2",
            Plan(tp=1, dp=1, global_batch=32),
            None,
            None,
        ),
        ("--expert-model-parallel-size 4", Plan(tp=2, dp=4, global_batch=32), 4, None),
        ("--expert-model-parallel-size 8", Plan(tp=2, dp=4, global_batch=32), None, None),
        ("--expert-tensor-parallel-size 1", Plan(tp=4, dp=2, global_batch=32), 4, 1),  # nobody has said an ep
        ("--expert-tensor-parallel-size 1 --enable-cuda-graph", Plan(tp=4, dp=2, global_batch=32), None, 1),
    ],
)
def test_experts_that_are_not_cut_by_tp_are_shared_out_further(
    more: str, plan: Plan, ep: int | None, cut: int | None
) -> None:
    made = with_plan([*USER, *MOE, *more.split()], plan)
    found = [option_number(made, f"--expert-{kind}-parallel-size", 0) or None for kind in ("model", "tensor")]
    assert found == [ep, cut] and with_plan(made, plan) == made


def test_experts_with_biases_are_not_cut() -> None:
    plan = Plan(tp=2, dp=4, ep=2, global_batch=32)
    made = with_plan([*USER, "--num-experts", "8"], plan)
    assert (
        option_number(made, "--expert-tensor-parallel-size", 0) == 1
        and option_number(made, "--expert-model-parallel-size", 0) == 4
    )
    ran = read_plan(made, 8)
    assert ran is not None and ran.ep == 2
    assert not has_option(
        with_plan([*USER, "--num-experts", "8"], replace(plan, tp=1)), "--expert-tensor-parallel-size"
    )
    alone = with_plan([*USER, "--num-experts", "8"], Plan(tp=8, dp=1, global_batch=32))
    assert option_number(alone, "--expert-model-parallel-size", 0) == 8  # not all of them on every rank
    older = with_plan([*USER, "--num-experts", "8"], plan, version=(0, 14))
    assert (
        not has_option(older, "--expert-tensor-parallel-size")
        and option_number(older, "--expert-model-parallel-size", 0) == 2
    )


def test_muon_keeps_its_tp_unless_it_looks_at_whole_matrices() -> None:
    own = [*USER, "--optimizer", "muon", "--tensor-model-parallel-size", "2"]
    assert with_users_degrees(Plan(tp=8, dp=2, global_batch=32, sequence_parallel=True), own).tp == 2
    assert with_users_degrees(PLAN, [*own, "--muon-tp-mode", "duplicated"]) == replace(PLAN, zero_stage=0)
    assert with_users_degrees(PLAN, USER) == PLAN


def test_graphs_that_are_off_bind_nothing() -> None:
    off = [*USER, *["--cuda-graph-impl", "none", "--cuda-graph-warmup-steps", "3"]]
    assert has_option(with_plan(off, replace(ALONE, recompute="full")), "--recompute-method")
