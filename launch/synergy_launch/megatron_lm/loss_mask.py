"""A check whether Megatron-LM's loss depends on the micro-batch. Pure.

Without --calculate-per-token-loss it is the mean over micro-batches of each one's mean over its unmasked tokens (core_v0.16.1, loss_func
in pretrain_gpt.py and forward_step_calc_loss in schedules.py). Where tokens are masked, micro-batches of another size weigh them otherwise:
another training. Where none is, all are alike.
"""

from __future__ import annotations

from collections.abc import Sequence

from synergy_launch.megatron_lm.options import has_option, option_real, option_values

_PER_TOKEN = "--calculate-per-token-loss"
# The only script whose mask is known to be all ones, except with these options and their like.
_UNMASKED = "pretrain_gpt.py"
_MASKING = (
    "--eod-mask-loss", "--reset-position-ids", "--reset-attention-mask", "--sft", "--fim-data", "--variable-seq-lengths",
    "--pad-token-id", "--hybrid-context-parallel", "--sequence-packing",
)  # fmt: skip
# The balance of experts is counted within a micro-batch too, and so is their capacity.
_PER_MICRO_BATCH = ("--moe-aux-loss-coeff", "--moe-expert-capacity-factor")


def is_bound_to_micro_batch(script: str, arguments: Sequence[str]) -> bool:
    """Return whether another micro-batch might be another training for `script` with a user's `arguments`."""
    if not option_values(arguments, "--micro-batch-size"):
        return False
    if has_option(arguments, "--num-experts") and any(option_real(arguments, name, 0.0) for name in _PER_MICRO_BATCH):
        return True
    if has_option(arguments, _PER_TOKEN):
        return False
    masked = any(word.startswith(_MASKING) for word in arguments)
    return script.rpartition("/")[2] != _UNMASKED or masked
