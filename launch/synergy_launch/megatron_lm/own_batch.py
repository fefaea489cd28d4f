"""The global batch that a Megatron-LM script has by itself, kept under a plan whose batch nobody chose."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from synergy_core.records import Plan, Shape

from synergy_launch.agent.settings import micro_batch
from synergy_launch.megatron_lm.options import option_number, option_values

RAMP = "--rampup-batch-size"  # START INCREMENT SAMPLES


def own_batch(arguments: Sequence[str], requested_shape: Shape | None) -> int:
    """Return the global batch of a user's own `arguments` on the GPUs of the sbatch line; 0 where they do not say.

    Without --global-batch-size Megatron-LM has one micro-batch a replica.
    """
    if batch := option_number(arguments, "--global-batch-size", 0):
        return batch
    kinds = ("tensor-model", "pipeline-model", "context")
    degrees = math.prod(option_number(arguments, f"--{kind}-parallel-size", 1) for kind in kinds)
    replicas, rest = divmod(requested_shape.gpus if requested_shape else 0, degrees)
    return 0 if rest else replicas * option_number(arguments, "--micro-batch-size", 0)


def at_own_batch(plan: Plan, arguments: Sequence[str], requested_shape: Shape | None) -> tuple[Plan | None, str]:
    """Return `plan` with the script's own global batch, and a micro-batch that divides it and each step of its ramp.

    Return None, and why, where the plan's replicas can't share that out. Virtual stages go where they do not divide it.
    """
    batch = own_batch(arguments, requested_shape)
    if not batch:
        return None, "the script's global batch is not known: its own degrees are used"
    ramp = [int(word) for word in _ramp(arguments)[:2] if word.isascii() and word.isdecimal() and len(word) < 10]
    shared = math.gcd(batch, *ramp)
    stages = plan.pp if plan.vpp > 1 else 1
    micro = micro_batch(shared, plan.dp * stages, plan.micro_batch)
    if micro is not None:
        return replace(plan, global_batch=batch, micro_batch=micro), ""
    micro = micro_batch(shared, plan.dp, plan.micro_batch)
    if micro is not None:
        return replace(plan, global_batch=batch, micro_batch=micro, vpp=1), ""
    return None, f"the script's global batch {batch} can't be shared out to dp={plan.dp}: its own degrees are used"


def at_own_micro_batch(plan: Plan, arguments: Sequence[str]) -> Plan | None:
    """Return `plan` with the micro-batch of the user's `arguments`; None where its replicas can't do the batch so.

    Virtual stages go where the micro-batches are no multiple of the stages.
    """
    micro = option_number(arguments, "--micro-batch-size", 0)
    if not micro or plan.global_batch % (plan.dp * micro):
        return None
    plan = replace(plan, micro_batch=micro)
    return replace(plan, vpp=1) if plan.vpp > 1 and plan.micro_batches % plan.pp else plan


def _ramp(arguments: Sequence[str]) -> list[str]:
    """Return the words of --rampup-batch-size."""
    if not option_values(arguments, RAMP):
        return []
    last = max(i for i, word in enumerate(arguments) if word.partition("=")[0] == RAMP)
    return [*filter(None, [arguments[last].partition("=")[2]]), *arguments[last + 1 : last + 4]]
