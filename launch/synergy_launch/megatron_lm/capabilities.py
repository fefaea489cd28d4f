"""The degrees beyond tp, pp and dp that a job's script can take, read from its command line.

A script with Synergy's agent takes tp, pp and dp. Megatron-LM's own scripts take the others through their options
(synergy_launch.megatron_lm.arguments sets them), if the rest of the options allows: the checks are those of Megatron-LM's
arguments.py, core_v0.16.1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet

from synergy_core.accepts import NOTHING_MORE, Accepts
from synergy_core.recompute import MODULES, NOT_WITH_FP8

from synergy_launch.megatron_lm.arguments import NEWEST, YOUNG_DEGREES_FROM, can_overlap
from synergy_launch.megatron_lm.fsdp2_checkpoint import is_bound_to_size
from synergy_launch.megatron_lm.refused_options import (
    has_whole_optimizer,
    is_bound_to_experts,
    is_bound_to_one_stage,
    is_bound_to_recompute,
    is_bound_to_tp,
)

# Without them a command line is not one of Megatron-LM's training scripts, which know all of the degrees.
_TRAINING = ("--num-layers", "--hidden-size", "--num-attention-heads", "--seq-length", "--micro-batch-size")
# The user lays the layers out by hand: no uniform split into virtual stages.
_OWN_LAYOUT = (
    "--pipeline-model-parallel-layout",
    "--decoder-first-pipeline-num-layers",
    "--decoder-last-pipeline-num-layers",
    "--account-for-embedding-in-pipeline-split",
    "--account-for-loss-in-pipeline-split",
    "--no-overlap-p2p-communication",
)
# Uneven stages came with core_v0.9, the flags by which the ends count as layers later; this one has all of them.
_UNEVEN_FROM = (0, 12)
# Options of models with other blocks: Mamba's put layers // pp on each stage before core_v0.16, and leave the rest out without a
# word; of an encoder and a decoder each has its own layers.
_OTHER_BLOCKS = ("--hybrid-", "--is-hybrid-model", "--mamba-", "--spec", "--encoder-", "--decoder-", "--standalone-")

# The user's own groups stay as they are; gradients that are sent in half and added up in fp32 go with no groups.
_OWN_SHARDING = ("--num-distributed-optimizer-instances", "--ddp-reduce-scatter-with-fp32-accumulation")
# Overlapped all-to-alls restrict what can be computed again, by more options than are known here.
_BOUND_RECOMPUTE = "--overlap-moe-expert-parallel-comm"


def _modules(keys: AbstractSet[str], options: Mapping[str, str]) -> list[str]:
    """Return the modules of the layers that can be computed again, by the checks of transformer_config.py."""
    there = {
        "layernorm": True,
        "mla_up_proj": "--multi-latent-attention" in keys,
        # a bias that the MLP hands on beside its output makes core_v0.16.1's backward pass call itself without end
        "mlp": "--disable-bias-linear" in keys,
        "moe": "--num-experts" in keys and "--disable-bias-linear" in keys,
        "moe_act": "--num-experts" in keys and "--moe-grouped-gemm" in keys,
    }
    delayed = "--fp8-format" in keys and options.get("--fp8-recipe", "delayed") == "delayed"
    return [name for name in MODULES if there.get(name) and not (delayed and name in NOT_WITH_FP8)]


def accepts(argv: Sequence[str], version: tuple[int, int] | None = NEWEST, may_overlap: bool = True) -> Accepts:
    """Return what a training command line takes: a complete one of Megatron-LM's takes every degree, any other tp, pp and dp alone.

    cp and fp8 need Transformer Engine, so `--transformer-impl local` rules cp out; ep needs experts. The precision is
    the user's own and never changed: another one is another training. `version`: Megatron-LM's; None where it
    is not known: then none of the youngest degrees. `may_overlap`: see arguments.py.
    """
    words = [word.partition("=") for word in argv]
    keys = {key for key, _, _ in words}
    if not all(name in keys for name in _TRAINING) or "--use-legacy-models" in keys:
        return NOTHING_MORE
    options = {
        key: value if has else (argv[i + 1] if i + 1 < len(argv) else "") for i, (key, has, value) in enumerate(words)
    }
    fsdp = "--use-torch-fsdp2" in keys or "--use-megatron-fsdp" in keys
    cp = not fsdp and options.get("--transformer-impl") != "local" and "--experimental-attention-variant" not in keys
    own_recompute, whole = is_bound_to_recompute(argv), has_whole_optimizer(argv)
    bound = own_recompute or _BOUND_RECOMPUTE in keys
    young = version is not None and version >= YOUNG_DEGREES_FROM
    version = version or NEWEST
    precision = "bf16" if "--bf16" in keys else "fp16" if "--fp16" in keys else "fp32"
    return Accepts(
        vpp=not fsdp and not keys & set(_OWN_LAYOUT),
        cp=cp,
        ep=not fsdp and "--num-experts" in keys and not is_bound_to_experts(argv),
        precision="fp8" if "--fp8-format" in keys else precision,
        uneven=not fsdp
        and not keys & set(_OWN_LAYOUT)
        and version >= _UNEVEN_FROM
        and not any(key.startswith(_OTHER_BLOCKS) for key in keys),
        overlap=may_overlap and can_overlap(argv, version),
        exact_only=True,
        single_stage=is_bound_to_one_stage(argv),
        blocks=not bound,
        a2a=cp and young,
        shard=not fsdp and young and not whole and not keys & set(_OWN_SHARDING),
        modules="" if bound or not young else "+".join(_modules(keys, options)),
        own_recompute=own_recompute,
        whole_optimizer=whole,
        own_tp=is_bound_to_tp(argv),
        own_size=is_bound_to_size(argv),
    )
