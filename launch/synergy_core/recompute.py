"""The values of a plan's `recompute`: none, selective, full, or modules of a layer, as `layernorm+moe_act`.

The modules are those of Megatron-Core's recompute_modules (transformer_config.py, core_v0.16.1). `selective` is its default, the
core of the attention alone (Korthikanti et al. 2022).
"""

from __future__ import annotations

import math
from typing import Protocol

NONE, SELECTIVE, FULL = "none", "selective", "full"
CORE = "core_attn"
#: in the order in which they are written
MODULES = (CORE, "layernorm", "mla_up_proj", "mlp", "moe", "moe_act", "shared_experts")
#: they need an fp8 recipe other than the delayed one, Megatron's default
NOT_WITH_FP8 = ("layernorm", "moe_act")
KINDS = (NONE, SELECTIVE, FULL)


class _Recomputes(Protocol):
    """The fields of a Plan (records.py) about recomputation."""

    @property
    def recompute(self) -> str: ...
    @property
    def recompute_layers(self) -> int: ...


def list_modules(recompute: str) -> tuple[str, ...]:
    """Return the modules that a plan's `recompute` computes again, () for none and full."""
    if recompute == SELECTIVE:
        return (CORE,)
    return () if recompute in KINDS else tuple(recompute.split("+"))


def of_modules(modules: tuple[str, ...] | frozenset[str]) -> str:
    """Return a plan's `recompute` for `modules` of MODULES."""
    written = "+".join(name for name in MODULES if name in modules)
    return {"": NONE, CORE: SELECTIVE}.get(written, written)


def is_recompute(text: str) -> bool:
    """Return whether `text` is a plan's `recompute`, written as `of_modules` does."""
    return text in KINDS or (set(text.split("+")) <= set(MODULES) and of_modules(tuple(text.split("+"))) == text)


def keeps_as_much(plan: _Recomputes, than: _Recomputes) -> bool:
    """Return whether `plan` surely keeps what `than` keeps of a layer's activations.

    It does if it computes no modules and layers again that `than` does not.
    """
    if plan.recompute == FULL:
        every = math.inf  # layers where 0 is said
        return than.recompute == FULL and (plan.recompute_layers or every) <= (than.recompute_layers or every)
    if than.recompute == FULL and than.recompute_layers:
        return plan.recompute == NONE
    return than.recompute == FULL or set(list_modules(plan.recompute)) <= set(list_modules(than.recompute))


def format_recompute(recompute: str, layers: int) -> str:
    """Return a text such as `none`, `full`, `full of 3 layers`, `layernorm+moe_act`."""
    return f"{recompute} of {layers} layers" if layers else recompute
