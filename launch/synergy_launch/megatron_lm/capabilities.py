"""Which degrees beyond tp, pp and dp a job's script can take, read from its command line.

A script with Synergy's agent takes tp, pp and dp. Megatron-LM's own scripts take the others through their options
(synergy_launch.megatron_lm.arguments sets them), if the rest of the options allows: the checks are those of Megatron-LM's
arguments.py, core_v0.16.1.
"""

from __future__ import annotations

from collections.abc import Sequence

from synergy_launch.megatron_lm.arguments import NEWEST, overlaps
from synergyd.records import NOTHING_MORE, Accepts

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


def accepts(argv: Sequence[str], version: tuple[int, int] = NEWEST, may_overlap: bool = True) -> Accepts:
    """What a training command line takes: a complete one of Megatron-LM's takes every degree, any other tp, pp and dp alone.

    cp and fp8 need Transformer Engine, so `--transformer-impl local` rules cp out; ep needs experts. The precision is
    the user's own and never changed: another one is another training. `version`: Megatron-LM's. `may_overlap`: see arguments.py.
    """
    words = [word.partition("=") for word in argv]
    keys = {key for key, _, _ in words}
    if not all(name in keys for name in _TRAINING) or "--use-legacy-models" in keys:
        return NOTHING_MORE
    given = {
        key: value if has else (argv[i + 1] if i + 1 < len(argv) else "") for i, (key, has, value) in enumerate(words)
    }
    fsdp = "--use-torch-fsdp2" in keys or "--use-megatron-fsdp" in keys
    precision = "bf16" if "--bf16" in keys else "fp16" if "--fp16" in keys else "fp32"
    return Accepts(
        vpp=not fsdp and not keys & set(_OWN_LAYOUT),
        cp=not fsdp and given.get("--transformer-impl") != "local",
        ep=not fsdp and "--num-experts" in keys,
        precision="fp8" if "--fp8-format" in keys else precision,
        uneven=not fsdp
        and not keys & set(_OWN_LAYOUT)
        and version >= _UNEVEN_FROM
        and not any(key.startswith(_OTHER_BLOCKS) for key in keys),
        overlap=may_overlap and overlaps(argv, version),
        exact_only=True,
    )
