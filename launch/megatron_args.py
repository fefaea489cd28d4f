"""Megatron-LM's command-line arguments with a plan's degrees in them."""

from __future__ import annotations

import re
from collections.abc import Sequence

from synergyd.records import Plan

KNOWN = ("--num-layers", "--tensor-model-parallel-size", "--micro-batch-size", "--num-attention-heads")
_FLAGS_WITH_VALUE = (
    "--tensor-model-parallel-size", "--pipeline-model-parallel-size", "--micro-batch-size", "--global-batch-size",
    "--recompute-granularity", "--recompute-method", "--recompute-num-layers", "--ckpt-format", "--rampup-batch-size",
)  # fmt: skip
_FLAGS = (
    "--sequence-parallel", "--use-distributed-optimizer", "--recompute-activations", "--dist-ckpt-optim-fully-reshardable",
    "--override-opt_param-scheduler", "--ckpt-fully-parallel-load", "--exit-signal-handler", "--use-mp-args-from-checkpoint-args",
)  # fmt: skip


_OPTION = re.compile(r"--|-[A-Za-z]")  # a value such as -1 or -1e-5 is none


def is_megatron(arguments: Sequence[str]) -> bool:
    """Whether a script's arguments are Megatron-LM's."""
    return sum(any(a == k or a.startswith(k + "=") for a in arguments) for k in KNOWN) >= 2


def with_plan(arguments: Sequence[str], plan: Plan, checkpoint: str = "") -> list[str]:
    """`arguments` with the plan's degrees and what a later reshard needs; all else as the user wrote it.

    The vocabulary is padded to the same size on every plan: Megatron pads to a multiple of (divisor x tp), so the divisor
    shrinks as tp grows.
    """
    rest, divisor, tp_before = _without(arguments), 128, 1
    for i, word in enumerate(arguments):
        key, _, value = word.partition("=")
        value = value or (arguments[i + 1] if i + 1 < len(arguments) else "")
        # Megatron refuses 0 itself
        if key == "--make-vocab-size-divisible-by" and value.isdecimal():
            divisor = int(value) or divisor
        if key == "--tensor-model-parallel-size" and value.isdecimal():
            tp_before = int(value) or tp_before
    padded = divisor * tp_before
    out = [
        *_drop(rest, ("--make-vocab-size-divisible-by",) if padded % plan.tp == 0 else ()),
        "--tensor-model-parallel-size", str(plan.tp), "--pipeline-model-parallel-size", str(plan.pp),
        "--micro-batch-size", str(plan.micro_batch), "--global-batch-size", str(plan.global_batch),
    ]  # fmt: skip
    if padded % plan.tp == 0:
        out += ["--make-vocab-size-divisible-by", str(padded // plan.tp)]
    if plan.sequence_parallel and plan.tp > 1:
        out.append("--sequence-parallel")
    if plan.recompute == "full":
        out += ["--recompute-granularity", "full", "--recompute-method", "uniform", "--recompute-num-layers", "1"]
    elif plan.recompute == "selective":
        out += ["--recompute-granularity", "selective"]
    if plan.distributed_optimizer:
        out += ["--use-distributed-optimizer", "--dist-ckpt-optim-fully-reshardable"]
    out += ["--ckpt-format", "torch_dist", "--override-opt_param-scheduler", "--exit-signal-handler"]
    if checkpoint:
        out = [*_drop(out, ("--save", "--load")), "--save", checkpoint, "--load", checkpoint]
    return out


def _without(arguments: Sequence[str]) -> list[str]:
    return [a for a in _drop(list(arguments), _FLAGS_WITH_VALUE) if a not in _FLAGS]


def _drop(arguments: Sequence[str], names: Sequence[str]) -> list[str]:
    """Removes `--name value...` and `--name=value` of each name; values are what follows up to the next option."""
    out: list[str] = []
    skipping = False
    for word in arguments:
        if _OPTION.match(word):
            skipping = word.partition("=")[0] in names
            if skipping:
                continue
        elif skipping:
            continue
        out.append(word)
    return out
