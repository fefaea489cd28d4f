"""What a node runs: the plan fitted to what Slurm gave, the command and the environment made of it."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from synergy_core.records import Plan, Shape
from synergy_core.wire.plan_file import PlanFile
from synergy_launch.agent.settings import AgentSettings
from synergy_launch.launcher.commands.start import NodeCommand, fit_plan, node_command, plan_of_run
from synergy_launch.launcher.job.allocation import JobAllocation

PLAN = Plan(tp=2, pp=2, dp=2, micro_batch=4, global_batch=16)
NODES = JobAllocation(job_id=9, restarts=1, nodes=("n1", "n2"), node_rank=1, gpus=4, in_step=True, leader=False)


def test_fit_keeps_a_plan_that_fits() -> None:
    assert fit_plan(PLAN, 8) == (PLAN, "") and fit_plan(None, 8) == (None, "")


def test_an_optimizer_that_is_not_sharded_stays_so() -> None:
    """Megatron-LM does not load its checkpoint into one that is, whoever has chosen."""
    options = ("--num-layers", "--hidden-size", "--num-attention-heads", "--seq-length", "--micro-batch-size")
    words = [f"{option}=4" for option in options]

    def optimizer(*more: str, given: PlanFile | None = None) -> tuple[bool, bool]:
        said = json.loads(start(["pretrain_gpt.py", *words, *more], given=given).environment["SYNERGY_ACCEPTS_JSON"])
        return said.get("whole_optimizer", False), said.get("shard", False)

    assert optimizer() == (True, False)
    assert optimizer("--use-distributed-optimizer") == (False, True)
    assert optimizer(given=PlanFile(9, PLAN, "", "/given")) == (False, True)
    assert optimizer(given=PlanFile(9, replace(PLAN, zero_stage=0), "", "/given")) == (True, False)


@pytest.mark.parametrize(("world", "dp", "micro"), [(4, 1, 4), (16, 4, 4), (32, 8, 2), (64, 16, 1)])
def test_fit_changes_dp_alone(world: int, dp: int, micro: int) -> None:
    plan, remark = fit_plan(PLAN, world)
    assert plan == replace(PLAN, dp=dp, micro_batch=micro) and plan.gpus == world
    assert plan.global_batch % (plan.dp * plan.micro_batch) == 0 and f"there are {world}" in remark


def test_fit_keeps_virtual_stages_and_experts_whole() -> None:
    plan = Plan(tp=2, pp=2, vpp=2, cp=2, dp=4, ep=2, micro_batch=2, global_batch=32)
    smaller, remark = fit_plan(plan, 16)
    assert smaller == replace(plan, dp=2) and "dp is 2" in remark
    # one replica is no multiple of ep
    assert fit_plan(plan, 8)[0] is None
    # 16 micro-batches of 2, but 64 replicas would leave less than one for each pair of stages
    assert fit_plan(plan, 8 * 64)[0] is None


@pytest.mark.parametrize("world", [1, 2, 6, 12, 128])
def test_fit_gives_up_rather_than_changing_the_batch(world: int) -> None:
    plan, remark = fit_plan(PLAN, world)
    assert plan is None and "own degrees" in remark


def start(script: list[str], where: JobAllocation = NODES, given: PlanFile | None = None, **more: str) -> NodeCommand:
    settings = {"checkpoint": "", "runner": "torchrun", "master": "n1", **more}
    return node_command(script, where, given, run_dir=Path("/run/x"), **settings)  # type: ignore[arg-type]


def test_start_on_several_nodes_without_plan() -> None:
    made = start(["train.py", "--a b", "$(x)"])
    assert made.argv == (
        sys.executable, "-P", "-m", "synergy_launch.launcher.torchrun", "--nnodes", "2", "--nproc-per-node", "4", "--node-rank", "1",
        "--master-addr", "n1", "--master-port", "15073", "train.py", "--a b", "$(x)",
    )  # fmt: skip
    assert made.environment["SYNERGY_RUN_DIR"] == "/run/x" and made.environment["SYNERGY_RESTARTS"] == "1"
    assert "SYNERGY_PLAN_JSON" not in made.environment and "SYNERGY_CHECKPOINT_DIR" not in made.environment
    assert made.remarks == ()


def test_start_alone_and_by_module() -> None:
    made = start(
        ["module:pkg.train", "-x"],
        JobAllocation(job_id=None, restarts=0, nodes=("here",), node_rank=0, gpus=0, in_step=True, leader=True),
    )
    assert made.argv[4:] == ("--nnodes", "1", "--nproc-per-node", "1", "--standalone", "-m", "pkg.train", "-x")
    assert start(["t.py", "-x"], runner="python").argv == (sys.executable, "t.py", "-x")


def test_start_with_a_plan() -> None:
    made = start(["t.py"], given=PlanFile(9, PLAN, "", "/given"))
    assert json.loads(made.environment["SYNERGY_PLAN_JSON"])["tp"] == 2
    assert (
        made.environment["SYNERGY_CHECKPOINT_DIR"] == "/given"
        and made.environment["CUDA_DEVICE_MAX_CONNECTIONS"] == "1"
    )
    assert made.environment["SYNERGY_STEP_LOG"] == "/given/steps.jsonl" and made.environment["OMP_NUM_THREADS"] == "1"
    own = start(["t.py"], given=PlanFile(9, PLAN, "", "/given"), checkpoint="/own", threads="6")
    assert own.environment["SYNERGY_CHECKPOINT_DIR"] == "/own" and own.environment["OMP_NUM_THREADS"] == "6"


def test_what_a_megatron_script_accepts_reaches_its_agent() -> None:
    options = ("--num-layers", "--hidden-size", "--num-attention-heads", "--seq-length", "--micro-batch-size")
    words = [*(f"{option}=4" for option in options), "--bf16", "--use-distributed-optimizer"]
    told = start(["pretrain_gpt.py", *words]).environment["SYNERGY_ACCEPTS_JSON"]
    assert json.loads(told) == {
        "vpp": True,
        "cp": True,
        "ep": False,
        "precision": "bf16",
        "uneven": True,
        "overlap": True,
        "single_stage": False,
        "exact_only": True,
        "blocks": True,
        "modules": "layernorm",
        "shard": True,
        "a2a": True,
    }
    assert AgentSettings.from_environment({"SYNERGY_ACCEPTS_JSON": told}).accepts == json.loads(told)
    other = json.loads(start(["train.py", *words[1:]]).environment["SYNERGY_ACCEPTS_JSON"])
    assert [name for name, able in other.items() if able] == ["own_micro"], "nothing is known of its loss mask"
    assert "SYNERGY_ACCEPTS_JSON" not in start(["train.py", "--bf16"]).environment
    assert AgentSettings.from_environment({"SYNERGY_ACCEPTS_JSON": "[1"}).accepts is None


@pytest.mark.parametrize(
    ("script", "more", "overlaps"),
    [("/opt/m/pretrain_gpt.py", [], True), ("mine.py", [], False), ("mine.py", ["--overlap-grad-reduce"], True)],
)
def test_overlap_is_asked_of_scripts_that_are_known_to_take_it(script: str, more: list[str], overlaps: bool) -> None:
    """Megatron's overlapped reduce asserts that every parameter gets a gradient: a script of the user's may have others."""
    arguments = [
        "--num-layers",
        "4",
        "--hidden-size",
        "64",
        "--num-attention-heads",
        "4",
        "--seq-length",
        "32",
        "--micro-batch-size",
        "1",
    ]
    given = PlanFile(73, plan=Plan(tp=1, pp=1, dp=8, micro_batch=1, global_batch=8), checkpoint="/ck")
    made = start([script, *arguments, *more], given=given)
    assert ("--overlap-grad-reduce" in made.argv) is overlaps


def test_node_command_megatron_by_its_arguments_or_by_word() -> None:
    megatron = ["t.py", "--num-layers", "2", "--micro-batch-size", "1"]
    given = PlanFile(9, PLAN)
    assert "--pipeline-model-parallel-size" in start(megatron, given=given).argv
    assert "--pipeline-model-parallel-size" not in start(megatron, given=given, style="env").argv
    assert "--pipeline-model-parallel-size" in start(["t.py"], given=given, style="megatron").argv
    misfit = start(megatron, given=PlanFile(9, replace(PLAN, tp=3, dp=1)))
    assert misfit.argv[-5:] == tuple(megatron) and "own degrees" in misfit.remarks[0]


MEGATRON = ["pretrain_gpt.py", "--num-layers", "8", "--num-attention-heads", "8", "--seq-length", "32"]
ASSUMED = Plan(tp=2, pp=2, dp=2, micro_batch=4, global_batch=64)


def option(made: NodeCommand, name: str) -> str:
    return made.argv[made.argv.index(name) + 1]


@pytest.mark.parametrize("own", [["--global-batch-size", "24", "--micro-batch-size", "1"], ["--micro-batch-size", "3"]])
def test_a_megatron_script_keeps_its_own_batch(own: list[str]) -> None:
    """Without --global-batch-size it is what Megatron-LM makes of the GPUs of the sbatch line: 16 x 3 / tp."""
    script = [*MEGATRON, *own, "--tensor-model-parallel-size", "2", "--train-iters", "100", "--lr", "1e-4"]
    given = PlanFile(9, ASSUMED, asked=Shape("a100", 2, 8), own_batch=True)
    made = start(script, given=given)
    assert option(made, "--global-batch-size") == "24" and option(made, "--micro-batch-size") == "4"
    assert option(made, "--pipeline-model-parallel-size") == "2", "its degrees are Synergy's"
    assert option(made, "--train-iters") == "100" and option(made, "--lr") == "1e-4"
    plan = AgentSettings.from_environment({**made.environment, "WORLD_SIZE": "8", "SYNERGY_RUN_DIR": ""}).plan
    assert plan == replace(ASSUMED, global_batch=24)
    assert plan_of_run(given, script, 8)[0] == plan == made.plan, "what the launcher reports"
    assert option(start(script, given=replace(given, own_batch=False)), "--global-batch-size") == "64"


MASKED = [*MEGATRON, "--global-batch-size", "64", "--micro-batch-size", "2", "--eod-mask-loss"]


@pytest.mark.parametrize(
    ("script", "micro"),
    [
        (MASKED[:-1], "4"),
        (MASKED, "2"),
        ([*MASKED, "--calculate-per-token-loss"], "4"),
        (["mine.py", *MASKED[1:-1]], "2"),
        ([*MASKED[:-1], "--num-experts", "8", "--moe-aux-loss-coeff", "1e-2"], "2"),
        ([*MASKED[:-1], "--num-experts", "8"], "4"),
    ],
)
def test_the_micro_batch_changes_where_the_loss_does_not_depend_on_it_alone(script: list[str], micro: str) -> None:
    """Masked tokens weigh otherwise in micro-batches of another size, without --calculate-per-token-loss."""
    made = start(script, given=PlanFile(9, ASSUMED))
    assert option(made, "--micro-batch-size") == micro and made.plan is not None
    assert made.plan.micro_batch == int(micro), "what the launcher reports"
    said = json.loads(made.environment.get("SYNERGY_ACCEPTS_JSON", "{}"))
    assert said.get("own_micro", False) is (micro == "2")


def test_a_micro_batch_that_does_not_make_up_the_batch_leaves_the_script_as_it_is() -> None:
    script = [
        "pretrain_gpt.py",
        "--num-layers",
        "2",
        "--eod-mask-loss",
        "--micro-batch-size",
        "5",
        "--global-batch-size",
    ]
    made = start([*script, "40"], given=PlanFile(9, Plan(dp=8, micro_batch=2, global_batch=48)))
    assert made.plan is None and "own degrees" in made.remarks[0]
    # on this many processes its own degrees do not add up: the run goes on
    made = start([*script, "45"], given=PlanFile(9, Plan(dp=8, micro_batch=2, global_batch=48)))
    assert option(made, "--micro-batch-size") == "2" and "weighs masked tokens otherwise" in made.remarks[0]


def test_a_megatron_script_keeps_its_own_ramp() -> None:
    script = [*MEGATRON, "--micro-batch-size", "1", "--global-batch-size", "48", "--rampup-batch-size", "8", "4", "900"]
    made = start(script, given=PlanFile(9, ASSUMED, own_batch=True))
    at = made.argv.index("--rampup-batch-size")
    assert made.argv[at : at + 4] == ("--rampup-batch-size", "8", "4", "900")
    assert option(made, "--micro-batch-size") == "2", "8, 4 and 48 are multiples of dp 2 x 2"
    chosen = start(script, given=PlanFile(9, ASSUMED))
    assert "--rampup-batch-size" not in chosen.argv


@pytest.mark.parametrize("own", [["--global-batch-size", "5"], []])
def test_a_megatron_script_whose_own_batch_does_not_divide_keeps_its_degrees(own: list[str]) -> None:
    script = [*MEGATRON, "--micro-batch-size", "1", *own]
    made = start(script, given=PlanFile(9, ASSUMED, own_batch=True))
    assert made.argv[-len(script) + 1 :] == tuple(script[1:]) and "SYNERGY_PLAN_JSON" not in made.environment
    assert "its own degrees are used" in made.remarks[0]


def test_virtual_stages_go_where_the_own_batch_does_not_divide_into_them() -> None:
    plan = replace(ASSUMED, vpp=2)
    own = [*MEGATRON, "--micro-batch-size", "1", "--global-batch-size", "6"]
    made = start(own, given=PlanFile(9, plan, own_batch=True))
    assert not any("virtual" in word for word in made.argv) and option(made, "--micro-batch-size") == "3"
    own[-1] = "24"
    made = start(own, given=PlanFile(9, plan, own_batch=True))
    assert option(made, "--num-layers-per-virtual-pipeline-stage") == "2" and option(made, "--micro-batch-size") == "3"


def test_another_script_is_told_that_the_batch_is_its_own() -> None:
    made = start(["t.py"], given=PlanFile(9, ASSUMED, own_batch=True))
    settings = AgentSettings.from_environment({**made.environment, "WORLD_SIZE": "8", "SYNERGY_RUN_DIR": ""})
    assert settings.plan == ASSUMED and settings.own_batch
    plain = start(["t.py"], given=PlanFile(9, ASSUMED)).environment
    assert "SYNERGY_OWN_BATCH" not in plain
    assert not AgentSettings.from_environment({**plain, "WORLD_SIZE": "8", "SYNERGY_RUN_DIR": ""}).own_batch
    assert not AgentSettings.from_environment({"SYNERGY_OWN_BATCH": "1"}).own_batch, "there is no plan"


REPLICAS = Plan(dp=8, micro_batch=1, global_batch=16, exchange="local:8")


def test_what_replicas_exchange_is_told_beside_the_plan() -> None:
    made = start(["train.py"], given=PlanFile(9, REPLICAS))
    assert made.environment["SYNERGY_COMM"] == "local:8" and not made.remarks
    # an adapter of before this word reads the plan too
    assert "exchange" not in json.loads(made.environment["SYNERGY_PLAN_JSON"])
    assert "SYNERGY_COMM" not in start(["train.py"], given=PlanFile(9, replace(REPLICAS, exchange="exact"))).environment


def test_one_replica_has_nobody_to_exchange_with() -> None:
    alone = JobAllocation(job_id=9, restarts=1, nodes=("n1",), node_rank=0, gpus=1, in_step=True, leader=False)
    assert "SYNERGY_COMM" not in start(["train.py"], alone, PlanFile(9, REPLICAS)).environment


def test_megatron_lm_is_not_asked_for_it_and_that_is_said() -> None:
    given = PlanFile(9, replace(REPLICAS, zero_stage=0))
    script = ["pretrain_gpt.py", "--num-layers", "4", "--num-attention-heads", "4", "--tensor-model-parallel-size", "1"]
    made = start(script, given=given, style="megatron")
    assert "SYNERGY_COMM" not in made.environment
    assert any("can't exchange by local:8" in remark for remark in made.remarks)
