"""A plan's degrees in Megatron-LM's arguments."""

from __future__ import annotations

import argparse
from dataclasses import replace

import pytest

from launch.megatron_args import is_megatron, with_plan
from synergyd.records import Plan

PLAN = Plan(tp=2, pp=4, dp=2, micro_batch=3, global_batch=12, sequence_parallel=True)
USER = ["--num-layers", "8", "--num-attention-heads", "4", "--data-path", "w1", "p1", "w2", "p2", "--lr=-1e-5"]


def value(arguments: list[str], name: str) -> str | None:
    """What argparse, which takes the last one, makes of `name`."""
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument(name)
    found: str | None = getattr(parser.parse_known_args(arguments)[0], name.strip("-").replace("-", "_"))
    return found


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
    assert made[: len(USER)] == USER


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


def test_flags_follow_the_plan() -> None:
    user = [*USER, "--sequence-parallel", "--use-distributed-optimizer", "--recompute-activations"]
    made = with_plan(user, Plan(dp=2, global_batch=2, zero_stage=0))
    assert not {"--sequence-parallel", "--use-distributed-optimizer", "--recompute-activations"} & set(made)
    made = with_plan(user, PLAN)
    assert made.count("--sequence-parallel") == made.count("--use-distributed-optimizer") == 1
    assert value(made, "--ckpt-format") == "torch_dist"


def test_is_megatron() -> None:
    assert is_megatron(USER) and is_megatron(["--num-layers=2", "--micro-batch-size=1"])
    assert not is_megatron(["--num-layers", "2"]) and not is_megatron(["--num-layers-x", "--micro-batch-sizes"])
