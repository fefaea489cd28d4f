"""`synergyctl plan --render`: the script that the plan stands for."""

from __future__ import annotations

import shlex
import subprocess

import pytest
from click.testing import CliRunner
from synergy_core.errors import UsageError
from synergy_core.records import ModelSpec, Plan
from synergy_launch.megatron_lm.arguments import read_plan, with_plan

from synergyd.cli.planning.plan import plan as plan_verb
from synergyd.cli.planning.script import model_arguments
from synergyd.jobmodel.model.spec import load_model, presets
from synergyd.jobmodel.plan_table import plan_table

LLAMA = ("--model", "llama3-8b", "--gpus", "8:16", "--gpu-type", "h100", "--global-batch", "64")


def run(*words: str) -> str:
    result = CliRunner().invoke(plan_verb, words)
    assert result.exit_code == 0, result.output
    return result.output


def test_the_script_is_the_best_plans() -> None:
    text = run(*LLAMA, "--zero", "1", "--render")
    subprocess.run(["bash", "-n"], input=text, text=True, check=True)
    best = plan_table(load_model("llama3-8b"), "h100", [16], 8, (64, 64), zero=1).counts[0].rows[0]
    assert "#SBATCH --nodes=2" in text and "#SBATCH --gres=gpu:h100:8" in text
    assert f"# why: predicted: {best.cell.step_s:.3g} s a step, +- 30 %" in text and "--mock-data" in text
    command = text[text.index("pretrain_gpt.py") :].replace("\\\n", " ")
    words = shlex.split(command)
    found = read_plan(words, 16)
    plan = best.cell.plan
    assert found is not None
    assert (found.tp, found.pp, found.dp, found.micro_batch, found.global_batch, found.recompute) == (
        plan.tp, plan.pp, plan.dp, plan.micro_batch, plan.global_batch, plan.recompute,
    )  # fmt: skip
    assert " ".join(words).startswith("pretrain_gpt.py --num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 ")


def test_megatron_starts_with_tp_on_hopper() -> None:
    """validate_args wants CUDA_DEVICE_MAX_CONNECTIONS=1 with tp or cp on compute capability below 10, but with FSDP."""
    export = "export CUDA_DEVICE_MAX_CONNECTIONS=1\n"
    assert export in run(*LLAMA, "--zero", "1", "--tp", "2", "--cp", "1", "--render")
    assert export in run(*LLAMA, "--zero", "1", "--tp", "1", "--cp", "2", "--render")
    assert export not in run(*LLAMA, "--zero", "1", "--tp", "1", "--cp", "1", "--render")
    sharded = run(*LLAMA, "--zero", "3", "--tp", "2", "--cp", "1", "--render")
    assert export not in sharded and "fsdp" in sharded


def test_latent_attention_and_experts_have_megatrons_options() -> None:
    words = " ".join(model_arguments(load_model("deepseek-v3"), "fp8"))
    assert (
        "--q-lora-rank 1536 --kv-lora-rank 512 --qk-head-dim 128 --qk-pos-emb-head-dim 64 --v-head-dim 128 "
        "--normalization RMSNorm --position-embedding-type rope --num-experts 256 --moe-router-topk 8 "
        "--moe-ffn-hidden-size 2048 --moe-shared-expert-intermediate-size 2048 --moe-token-dispatcher-type alltoall "
        "--moe-layer-freq ([0]*3+[1]*58) --mtp-num-layers 1"
    ) in words
    assert "--ffn-hidden-size 18432" in words and "--multi-latent-attention" in words and "--bf16" in words
    assert "--kv-channels" not in words and "--group-query-attention" not in words


@pytest.mark.parametrize("name", [name for name, model in presets().items() if model.causal])
def test_each_preset_makes_a_command(name: str) -> None:
    plan = Plan(dp=8, micro_batch=1, global_batch=8)
    words = with_plan(model_arguments(load_model(name), "bf16"), plan)
    options = [word for word in words if word.startswith("--")]
    assert len(options) == len(set(options)) and read_plan(words, 8) == plan


def test_what_it_does_not_train_is_refused() -> None:
    for words, says in (
        (("--model", "bert-large", "--gpus", "8", "--gpu-type", "h100", "--render"), "bert-large is an encoder"),
        ((*LLAMA, "--render", "--json"), "--render: with --json; one of them"),
        (
            ("--model", "llama3-405b", "--gpus", "1", "--gpu-type", "h100", "--global-batch", "8", "--render"),
            "does not fit",
        ),
    ):
        result = CliRunner().invoke(plan_verb, words)
        assert result.exit_code == 2 and says in result.output and result.output.count("\n") == 1
    mixed = ModelSpec("m", 8, 64, 4, 4, 64, 100, 32, experts=4, top_k=1, dense_layers=1, moe_every=2)
    with pytest.raises(UsageError, match="before and between"):
        model_arguments(mixed, "bf16")
