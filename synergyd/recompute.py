"""What a plan's `recompute` says: none, selective, full, or modules of a layer, as `layernorm+moe_act`.

The modules are those of Megatron-Core's recompute_modules (transformer_config.py, core_v0.16.1). `selective` is its default, the
core of the attention alone (Korthikanti et al. 2022).
"""

from __future__ import annotations

NONE, SELECTIVE, FULL = "none", "selective", "full"
CORE = "core_attn"
#: in the order in which they are written
MODULES = (CORE, "layernorm", "mla_up_proj", "mlp", "moe", "moe_act", "shared_experts")
#: they need an fp8 recipe other than the delayed one, Megatron's default
NOT_WITH_FP8 = ("layernorm", "moe_act")
KINDS = (NONE, SELECTIVE, FULL)


def modules_of(recompute: str) -> tuple[str, ...]:
    """The modules that a plan's `recompute` computes again, () for none and full."""
    if recompute == SELECTIVE:
        return (CORE,)
    return () if recompute in KINDS else tuple(recompute.split("+"))


def of_modules(modules: tuple[str, ...] | frozenset[str]) -> str:
    """A plan's `recompute` for `modules` of MODULES."""
    written = "+".join(name for name in MODULES if name in modules)
    return {"": NONE, CORE: SELECTIVE}.get(written, written)


def is_recompute(text: str) -> bool:
    """Whether `text` is a plan's `recompute`, written as `of_modules` does."""
    return text in KINDS or (set(text.split("+")) <= set(MODULES) and of_modules(tuple(text.split("+"))) == text)


def recompute_words(recompute: str, layers: int) -> str:
    """`none`, `full`, `full of 3 layers`, `layernorm+moe_act`."""
    return f"{recompute} of {layers} layers" if layers else recompute
