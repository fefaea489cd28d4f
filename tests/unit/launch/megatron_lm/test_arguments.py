"""A plan's degrees in Megatron-LM's arguments."""

from __future__ import annotations

import argparse
from dataclasses import replace

import pytest
from synergy_core.records import Plan
from synergy_launch.megatron_lm.arguments import is_megatron, read_plan, with_plan
from synergy_launch.megatron_lm.batch_arguments import Trained
from synergy_launch.megatron_lm.capabilities import accepts

PLAN = Plan(tp=2, pp=4, dp=2, micro_batch=3, global_batch=12, sequence_parallel=True)
USER = ["--num-layers", "8", "--num-attention-heads", "4", "--data-path", "w1", "p1", "w2", "p2", "--lr=-1e-5"]
OVERLAPS = ["--overlap-grad-reduce", "--overlap-param-gather"]
GATHER_IN_STEP = "--overlap-param-gather-with-optimizer-step"


def value(arguments: list[str], name: str) -> str | None:
    """What argparse, which takes the last one, makes of `name`."""
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument(name)
    found: str | None = getattr(parser.parse_known_args(arguments)[0], name.strip("-").replace("-", "_"))
    return found


@pytest.mark.parametrize("form", ["two words", "equals"])
def test_local_layers_get_sequence_parallelism_where_the_user_has_it(form: str) -> None:
    local = [*USER, *(["--transformer-impl", "local"] if form == "two words" else ["--transformer-impl=local"])]
    assert "--sequence-parallel" in with_plan(USER, PLAN)
    assert "--sequence-parallel" not in with_plan(local, PLAN)
    assert with_plan([*local, "--sequence-parallel"], PLAN).count("--sequence-parallel") == 1


@pytest.mark.parametrize("form", ["two words", "equals", "both", "none"])
def test_degrees_replace_the_users(form: str) -> None:
    old = {"--tensor-model-parallel-size": "8", "--pipeline-model-parallel-size": "1", "--micro-batch-size": "9",
           "--global-batch-size": "99"}  # fmt: skip
    pairs = [word for k, v in old.items() for word in (k, v)] if form in ("two words", "both") else []
    joined = [f"{k}={v}" for k, v in old.items()] if form in ("equals", "both") else []
    made = with_plan([*pairs, *USER, *joined], PLAN)
    expected = {"--tensor-model-parallel-size": "2", "--pipeline-model-parallel-size": "4", "--micro-batch-size": "3",
                "--global-batch-size": "12"}  # fmt: skip
    assert {k: value(made, k) for k in old} == expected
    for name in old:
        assert sum(w == name or w.startswith(name + "=") for w in made) == 1
    assert made[: len(USER) - 1] == USER[:-1]  # the learning rate follows the batch


def test_values_of_many_words_stay_together_and_in_order() -> None:
    made = with_plan(
        ["--data-path", "w1", "p1", "w2", "p2", "--rampup-batch-size", "1", "2", "3", "-v", "--x", "-1"], PLAN
    )
    at = made.index("--data-path")
    assert made[at : at + 8] == ["--data-path", "w1", "p1", "w2", "p2", "-v", "--x", "-1"]
    assert "--rampup-batch-size" not in made


@pytest.mark.parametrize("tp", [1, 2, 4, 8])
@pytest.mark.parametrize(
    ("given", "padded"),
    [
        ([], 128),
        (["--make-vocab-size-divisible-by", "64"], 64),
        (["--make-vocab-size-divisible-by=64"], 64),
        (["--make-vocab-size-divisible-by=64", "--tensor-model-parallel-size", "4"], 256),
        (["--make-vocab-size-divisible-by", "²"], 128),
        (["--make-vocab-size-divisible-by", "0", "--tensor-model-parallel-size=0"], 128),
    ],
)
def test_vocabulary_is_padded_alike_on_every_plan(tp: int, given: list[str], padded: int) -> None:
    made = with_plan([*USER, *given], replace(PLAN, tp=tp))
    assert int(value(made, "--make-vocab-size-divisible-by") or 0) * tp == padded


@pytest.mark.parametrize("checkpoint", ["", "/ckpt dir"])
@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
@pytest.mark.parametrize("given", [[], ["--save", "/old", "--load=/old"], ["--make-vocab-size-divisible-by", "48"]])
def test_idempotent(checkpoint: str, recompute: str, given: list[str]) -> None:
    plan = replace(PLAN, recompute=recompute)
    once = with_plan([*USER, *given], plan, checkpoint)
    assert with_plan(once, plan, checkpoint) == once
    assert value(once, "--save") == (checkpoint or ("/old" if "--save" in given else None))
    assert value(once, "--recompute-granularity") == (None if recompute == "none" else recompute)


def test_recompute_of_layers_and_of_modules_there_and_back() -> None:
    own = [*USER, "--recompute-activations", "--recompute-modules", "mlp", "moe", "--moe-layer-recompute"]
    for what, text in (
        ({"recompute": "full"}, "full uniform 1"),
        ({"recompute": "full", "recompute_layers": 1}, "full block 1"),
        ({"recompute": "layernorm+moe_act"}, "selective None None layernorm moe_act"),
        ({"recompute": "selective"}, "selective None None"),
    ):
        plan = replace(PLAN, **what)
        made = with_plan([*own, "--seq-length", "8"], plan)
        names = ("--recompute-granularity", "--recompute-method", "--recompute-num-layers")
        at = made.index("--recompute-modules") if "--recompute-modules" in made else 0
        modules = made[at + 1 : at + 3] if at else []
        assert " ".join([*(str(value(made, name)) for name in names), *modules]) == text
        assert not {"--recompute-activations", "--moe-layer-recompute"} & set(made) and with_plan(made, plan) == made
        found = read_plan(made, plan.gpus)
        assert found is not None and replace(found, zero_stage=1, precision="bf16") == plan
    # as many as the stage has, are all
    block = ["--recompute-granularity", "full", "--recompute-method=block", "--recompute-num-layers", "2"]
    assert (found := read_plan([*with_plan(USER, PLAN), *block], PLAN.gpus)) is not None and found.recompute_layers == 0


def test_instances_of_the_distributed_optimizer() -> None:
    plan = Plan(tp=2, dp=32, cp=2, global_batch=32, shard=4, sequence_parallel=True)
    made = with_plan([*USER, "--num-distributed-optimizer-instances", "2", "--bf16"], plan)
    assert value(made, "--num-distributed-optimizer-instances") == "16" and with_plan(made, plan) == made
    assert read_plan(made, 128) == plan
    hybrid = replace(plan, zero_stage=3)
    assert value(with_plan(made, hybrid), "--num-distributed-optimizer-instances") == "16"
    assert read_plan(with_plan(made, hybrid), 128) == hybrid
    whole = replace(plan, shard=0)
    assert read_plan(with_plan([*USER, "--bf16"], whole), 128) == whole


@pytest.mark.parametrize(
    ("plan", "kept"),
    [
        (Plan(tp=2, dp=8, global_batch=32), "4"),
        (Plan(tp=2, dp=2, cp=2, global_batch=32), "4"),
        (Plan(tp=2, dp=6, global_batch=36), None),
        # of the ranks that hold the same experts there must be as many groups
        (Plan(tp=2, dp=8, ep=4, global_batch=32), None),
        # Megatron-Core: no groups without a distributed optimizer
        (Plan(tp=2, dp=8, global_batch=32, zero_stage=0), None),
    ],
)
def test_the_users_own_instances_stay_while_they_divide(plan: Plan, kept: str | None) -> None:
    for form in (["--num-distributed-optimizer-instances", "4"], ["--num-distributed-optimizer-instances=4"]):
        made = with_plan([*USER, *form], plan)
        assert value(made, "--num-distributed-optimizer-instances") == kept and with_plan(made, plan) == made
        found = read_plan(made, plan.gpus)
        assert found is not None and found.shard == (plan.dp * plan.cp // 4 if kept else 0)


@pytest.mark.parametrize("version", [None, (0, 9), (0, 15)])
def test_no_young_degree_where_the_version_may_not_know_it(version: tuple[int, int] | None) -> None:
    """A flag that a checkout does not know ends the job at its start."""
    young = {"--num-distributed-optimizer-instances", "--cp-comm-type", "--recompute-modules"}
    plan = Plan(tp=2, dp=8, cp=2, global_batch=32, shard=4, cp_comm="a2a", recompute="layernorm+mlp")
    made = with_plan(USER, plan, version=version)
    assert not young & set(made) and young < set(with_plan(USER, plan))
    # whole layers take less memory than their modules
    assert value(made, "--recompute-granularity") == "full"
    # what the user gives himself is known
    known = [*USER, "--num-distributed-optimizer-instances", "2", "--cp-comm-type", "p2p", "--recompute-modules", "mlp"]
    told = with_plan(known, plan, version=version)
    assert [value(told, name) for name in sorted(young)] == ["a2a", "4", "layernorm"]
    light = replace(plan, recompute="selective")
    assert value(with_plan(USER, light, version=version), "--recompute-granularity") == "selective"


@pytest.mark.parametrize(
    ("own", "cp", "made_of"),
    [
        ([], 2, {"p2p": None, "a2a": "a2a"}),
        (["--cp-comm-type", "a2a"], 2, {"p2p": None, "a2a": "a2a"}),
        # what no plan knows stays while cp does
        (["--cp-comm-type=allgather"], 2, {"p2p": "allgather", "a2a": "a2a"}),
        (
            ["--cp-comm-type", "a2a+p2p", "--hierarchical-context-parallel-sizes", "2", "1"],
            4,
            {"p2p": None, "a2a": "a2a"},
        ),
        (["--cp-comm-type", "a2a+p2p", "--hierarchical-context-parallel-sizes", "2", "1"], 2, {"p2p": "a2a+p2p"}),
    ],
)
def test_how_context_parallel_ranks_exchange(own: list[str], cp: int, made_of: dict[str, str | None]) -> None:
    for kind, expected in made_of.items():
        plan = Plan(dp=4, cp=cp, global_batch=4, cp_comm=kind)
        made = with_plan([*USER, "--context-parallel-size", "2", *own, "--bf16"], plan)
        assert value(made, "--cp-comm-type") == expected and with_plan(made, plan) == made
        assert ("--hierarchical-context-parallel-sizes" in made) == (expected == "a2a+p2p")
        assert read_plan(made, plan.gpus) == (plan if expected in (None, "a2a") else replace(plan, cp_comm="p2p"))


def test_flags_follow_the_plan() -> None:
    user = [*USER, "--sequence-parallel", "--use-distributed-optimizer", "--recompute-activations"]
    made = with_plan(user, Plan(dp=2, global_batch=2, zero_stage=0))
    assert not {"--sequence-parallel", "--use-distributed-optimizer", "--recompute-activations"} & set(made)
    made = with_plan(user, PLAN)
    assert made.count("--sequence-parallel") == made.count("--use-distributed-optimizer") == 1
    assert value(made, "--ckpt-format") == "torch_dist"


BIG = ["--num-layers", "32", "--num-attention-heads", "32", "--num-experts=8"]


def test_virtual_stages_context_and_expert_parallel() -> None:
    plan = Plan(tp=2, pp=4, dp=4, cp=2, ep=4, vpp=2, micro_batch=1, global_batch=32, sequence_parallel=True)
    made = with_plan([*BIG, "--context-parallel-size", "4", "--num-virtual-stages-per-pipeline-rank=4"], plan)
    # experts with biases are not cut by tp, so that ep is twice as large
    assert value(made, "--context-parallel-size") == "2" and value(made, "--expert-model-parallel-size") == "8"
    assert value(made, "--expert-tensor-parallel-size") == "1"
    # 32 layers over 4 stages of 2 virtual ones: 4 layers each
    assert value(made, "--num-layers-per-virtual-pipeline-stage") == "4"
    assert value(made, "--num-virtual-stages-per-pipeline-rank") is None
    assert with_plan(made, plan) == made
    unknown = with_plan(["--micro-batch-size", "1"], plan)
    assert value(unknown, "--num-virtual-stages-per-pipeline-rank") == "2"


def test_the_users_own_degrees_stay_while_they_divide() -> None:
    own = [*BIG, "--context-parallel-size", "2", "--expert-model-parallel-size=4"]
    own += ["--num-layers-per-virtual-pipeline-stage", "4"]
    kept = with_plan(own, Plan(tp=1, pp=4, dp=4, micro_batch=1, global_batch=16))
    assert (value(kept, "--context-parallel-size"), value(kept, "--expert-model-parallel-size")) == ("2", "4")
    assert value(kept, "--num-layers-per-virtual-pipeline-stage") == "4"
    # one replica is no multiple of cp or ep; five micro-batches are none of pp
    gone = with_plan(own, Plan(tp=1, pp=4, dp=1, micro_batch=1, global_batch=5))
    for name in ("--context-parallel-size", "--expert-model-parallel-size", "--num-layers-per-virtual-pipeline-stage"):
        assert value(gone, name) is None
    assert value(with_plan(own, Plan(pp=1, dp=2, global_batch=2)), "--num-layers-per-virtual-pipeline-stage") is None


def test_fp8_and_shared_parameters() -> None:
    plan = Plan(dp=8, global_batch=8, zero_stage=3, precision="fp8")
    made = with_plan(USER, plan)
    assert value(made, "--fp8-format") == "hybrid" and "--use-megatron-fsdp" in made
    assert value(made, "--data-parallel-sharding-strategy") == "optim_grads_params"
    assert value(made, "--ckpt-format") == "fsdp_dtensor"
    assert with_plan(made, plan) == made
    assert value(with_plan([*USER, "--fp8-format", "e4m3"], plan), "--fp8-format") == "e4m3"
    # Megatron refuses the distributed optimizer beside FSDP2
    own = with_plan([*USER, "--use-torch-fsdp2"], Plan(dp=8, global_batch=8))
    assert "--use-distributed-optimizer" not in own and value(own, "--ckpt-format") == "torch_dist"
    own = with_plan([*USER, "--use-megatron-fsdp"], Plan(dp=8, global_batch=8))
    assert value(own, "--ckpt-format") == "fsdp_dtensor"


def test_is_megatron() -> None:
    assert is_megatron(USER) and is_megatron(["--num-layers=2", "--micro-batch-size=1"])
    assert not is_megatron(["--num-layers", "2"]) and not is_megatron(["--num-layers-x", "--micro-batch-sizes"])


def test_weights_of_another_run_are_loaded_at_the_first_start_only() -> None:
    user = [*USER, "--load", "/base", "--finetune", "--no-load-optim", "--save", "/mine"]
    first = with_plan(user, PLAN, "/run")
    assert (value(first, "--load"), value(first, "--save")) == ("/base", "/run") and "--finetune" in first
    later = with_plan(user, PLAN, "/run", Trained(100, ((0, 12),)))
    assert (value(later, "--load"), value(later, "--save")) == ("/run", "/run")
    assert not {"--finetune", "--no-load-optim", "/base"} & set(later)
    assert later.count("--load") == 1
    own = with_plan([*USER, "--load=/run", "--save", "/run", "--no-load-rng"], PLAN, "/run", Trained(100, ((0, 12),)))
    assert value(own, "--load") == "/run" and "--no-load-rng" in own


@pytest.mark.parametrize(
    ("given", "plan", "flags"),
    [
        ([], PLAN, ["--overlap-grad-reduce", "--overlap-param-gather"]),
        (["--overlap-grad-reduce"], PLAN, ["--overlap-grad-reduce", "--overlap-param-gather"]),
        ([], replace(PLAN, zero_stage=0), ["--overlap-grad-reduce"]),  # there is nothing to gather
        ([], replace(PLAN, dp=1), []),
        (["--overlap-grad-reduce"], replace(PLAN, dp=1), []),
        (["--optimizer", "dist_muon"], PLAN, []),
        (["--use-torch-fsdp2"], PLAN, []),
        (
            ["--use-megatron-fsdp", "--overlap-param-gather"],
            PLAN,
            ["--overlap-param-gather"],
        ),  # another thing, the user's own
        (["--delay-wgrad-compute"], PLAN, []),
        (["--save-params-interval", "5"], PLAN, ["--overlap-grad-reduce"]),  # Megatron-LM 0.20 takes no other
        ([GATHER_IN_STEP], replace(PLAN, pp=2, vpp=2), OVERLAPS),  # not with a checkpoint that reshards
        ([GATHER_IN_STEP], replace(PLAN, dp=1, pp=2, vpp=2), []),
    ],
)
def test_data_parallel_traffic_is_overlapped_where_the_script_can(
    given: list[str], plan: Plan, flags: list[str]
) -> None:
    made = with_plan([*USER, *given], plan)
    assert [word for word in made if word.startswith("--overlap-")] == flags
    assert with_plan(made, plan) == made


def test_before_0_8_traffic_is_overlapped_as_the_user_says() -> None:
    """There Megatron-LM gathers so for one of its two kinds of models only."""
    given = [*USER, "--overlap-grad-reduce"]
    assert [w for w in with_plan(given, PLAN, version=(0, 7)) if w.startswith("--overlap-")] == [
        "--overlap-grad-reduce"
    ]
    assert not any(w.startswith("--overlap-") for w in with_plan(USER, PLAN, version=(0, 7)))
    whole = [*given, "--seq-length", "8", "--micro-batch-size", "1", "--hidden-size", "8"]
    assert accepts(whole).overlap and not accepts(whole, (0, 7)).overlap


def test_an_uneven_layout_leaves_the_last_stage_room_for_multi_token_prediction() -> None:
    """61 layers on 16 stages are 3, 14 times 4, 2; with one more on the last stage 4, 14 times 4, 1."""
    plan = replace(PLAN, pp=16, global_batch=96)
    for given, first, last in (([], "3", "2"), (["--mtp-num-layers", "1"], "4", "1")):
        made = with_plan(["--num-layers", "61", "--num-attention-heads", "4", *given], plan)
        names = ("--decoder-first-pipeline-num-layers", "--decoder-last-pipeline-num-layers")
        assert [value(made, name) for name in names] == [first, last]
