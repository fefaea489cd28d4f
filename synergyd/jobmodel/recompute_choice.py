"""Which activations plans compute again so that they fit: the least work that does, kind by kind and layer by layer.

Not every number of layers is tried: memory falls with each layer that is computed again, so the fewest that fit are found by bisection.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from synergy_core.recompute import CORE, list_modules
from synergy_core.records import ModelSpec

from synergyd.jobmodel.memory_belief import WORTH_LESS, MemoryBelief
from synergyd.jobmodel.model.alignment import fuses
from synergyd.jobmodel.model.arrays import (
    FULL,
    NONE,
    SELECTIVE,
    Bools,
    Floats,
    Ints,
    PlanArrays,
    modules_mask,
    recompute_code,
)
from synergyd.jobmodel.model.dims import dims
from synergyd.jobmodel.model.hardware import GpuFigures
from synergyd.jobmodel.model.memory import peak_memory, stage_memory
from synergyd.jobmodel.plan_limits import PlanLimits

# sigmas below the limit for which the fewest layers are looked for beside the plan that may fail; the next is where it is safe
_SAFER_SIGMAS = 1.0


@dataclass(frozen=True)
class Choices:
    """Kinds of recompute, least work first, with `codes` and `modules` as in PlanArrays.

    The last kind is full recompute. The `either` kinds before it take no less work than a few layers. `blocks`: full recompute of
    some layers may be chosen.
    """

    codes: tuple[int, ...]
    modules: tuple[int, ...]
    either: int
    blocks: bool

    @property
    def nothing(self) -> int:
        """Return the number that stands for no kind of recompute. It is above that of any kind."""
        return len(self.codes)

    def apply_choice(self, plans: PlanArrays, kind_numbers: Ints) -> PlanArrays:
        """Return `plans` with the kinds numbered `kind_numbers`, (N,)."""
        layers = np.zeros(len(plans), dtype=np.int64)
        codes, modules = np.array(self.codes, np.int64), np.array(self.modules, np.int64)
        return replace(plans, recompute=codes[kind_numbers], modules=modules[kind_numbers], recompute_layers=layers)


def choices(model: ModelSpec, gpu: GpuFigures, plans: PlanArrays, limits: PlanLimits) -> Choices:
    """Return what may be computed again.

    Fused attention keeps no scores, so its core frees nothing. Norms are apart from the GEMM behind them only before experts and
    latent attention (Transformer Engine's layer specs).
    """
    if limits.recompute is not None:
        mask = modules_mask(list_modules(limits.recompute))
        return Choices((recompute_code(limits.recompute),), (mask,), 0, False)
    may = set(limits.modules)
    core = [] if gpu.flash and fuses(model, plans) else [CORE]
    has = {
        "layernorm": bool(model.experts or model.kv_lora),
        "mla_up_proj": bool(model.kv_lora),
        "moe_act": bool(model.experts),
    }
    light = [name for name, there in has.items() if there and name in may]
    # modules of the layers without experts, and of those with; Megatron can't do it to an MLP with biases (capabilities.py)
    heavy = ["mlp"] * (model.gated and (not model.experts or model.dense_layers > 0)) + ["moe"] * (
        model.gated and model.experts > 0
    )
    heavy = [name for name in heavy if name in may]
    kinds = [(NONE, 0)]
    for some in (core, [*core, *light] if light else [], [*core, *light, *heavy] if heavy else []):
        if some and (kind := (SELECTIVE, modules_mask(some))) not in kinds:
            kinds.append(kind)
    kinds.append((FULL, 0))
    return Choices(tuple(code for code, _ in kinds), tuple(mask for _, mask in kinds), int(bool(heavy)), limits.blocks)


def least_recompute(
    model: ModelSpec, gpu: GpuFigures, plans: PlanArrays, limit: float, kinds: Choices, below: Ints | None = None
) -> tuple[Bools, Floats, Ints]:
    """Return (whether it fits, peak bytes, number of its kind) of each plan with the least recompute that fits, else the most.

    `below`: only kinds of lower numbers than these, (N,), are tried.
    """
    memory = np.zeros(len(plans))
    kind_numbers = np.zeros(len(plans), dtype=np.int64)
    fitted: Bools = np.zeros(len(plans), dtype=np.bool_)
    open_: Ints = np.arange(len(plans), dtype=np.int64)
    some, shared = plans, stage_memory(dims(model), gpu, plans)
    at = open_  # where those that are open stand in `some`
    for number in range(kinds.nothing):
        if below is not None:
            more = below[open_] > number
            open_, at = open_[more], at[more]
        if not len(open_):
            break
        if 2 * len(open_) < len(some):
            some, at = plans.take(open_), np.arange(len(open_), dtype=np.int64)
            shared = stage_memory(dims(model), gpu, some)
        peak = shared.peak(some.recomputing(kinds.codes[number], kinds.modules[number])).total
        peak = peak if len(open_) == len(some) else peak[at]
        memory[open_], kind_numbers[open_] = peak, number
        fits = peak <= limit
        fitted[open_[fits]] = True
        open_, at = open_[~fits], at[~fits]
    return fitted, memory, kind_numbers


def with_fewer_layers(
    model: ModelSpec, gpu: GpuFigures, plans: PlanArrays, memory: Floats, limit: float | Floats, kinds: Choices
) -> tuple[PlanArrays, Floats]:
    """Return `plans`, which fit into `limit` with `memory` bytes.

    Where they compute all layers again, they get the fewest that still fit.
    """
    index = np.flatnonzero((plans.recompute == FULL) & (plans.recompute_layers == 0)) if kinds.blocks else ()
    if not len(index):
        return plans, memory
    some, limits = plans.take(np.asarray(index)), np.broadcast_to(limit, memory.shape)[index]
    # layers of a virtual stage
    most = -(-model.layers // (some.pp * some.vpp))
    good, bad, peaks = most.copy(), np.zeros_like(most), memory[index]
    while len(open_ := np.flatnonzero(good - bad > 1)):
        middle = (good[open_] + bad[open_]) // 2
        peak = peak_memory(model, gpu, replace(some.take(open_), recompute_layers=middle)).total
        fits = peak <= limits[open_]
        good[open_], bad[open_] = np.where(fits, middle, good[open_]), np.where(fits, bad[open_], middle)
        peaks[open_] = np.where(fits, peak, peaks[open_])
    layers, all_peaks = plans.recompute_layers.copy(), memory.copy()
    layers[index], all_peaks[index] = np.where(good < most, good, 0), peaks
    return replace(plans, recompute_layers=layers), all_peaks


def other_ways(
    model: ModelSpec, gpu: GpuFigures, plans: PlanArrays, kind_numbers: Ints, limit: float, kinds: Choices
) -> list[tuple[Ints, PlanArrays, Floats]]:
    """Return (index, plan, peak) of further plans that compute a few layers again.

    They stand beside those of `plans` that fit by modules which take no less work than a few layers.
    """
    index = np.flatnonzero((kind_numbers == kinds.nothing - 2) & (kinds.either > 0))
    if not len(index) or not kinds.blocks:
        return []
    some = plans.take(index).recomputing(FULL)
    peaks = peak_memory(model, gpu, some).total
    fits = peaks <= limit
    some, peaks = with_fewer_layers(model, gpu, some.take(fits), peaks[fits], limit, kinds)
    return [(index[fits], some, peaks)] if len(some) else []


def with_more(
    model: ModelSpec, gpu: GpuFigures, plans: PlanArrays, risk: Floats, belief: MemoryBelief, kinds: Choices
) -> list[tuple[Ints, PlanArrays, Floats]]:
    """Return (index, plan, peak) of those of `plans` that may run out of memory, with each kind of recompute that takes more work.

    Full recompute comes with the fewest layers that are safer by a sigma, and with the fewest that are safe.
    """
    result: list[tuple[Ints, PlanArrays, Floats]] = []
    number = np.zeros(len(plans), dtype=np.int64)
    for i, (code, modules) in enumerate(zip(kinds.codes, kinds.modules, strict=True)):
        number[(plans.recompute == code) & (plans.modules == modules)] = i
    unsure = risk > WORTH_LESS
    for i in range(1, kinds.nothing):
        last = i == kinds.nothing - 1
        index = np.flatnonzero(unsure & ((number < i) | (last & (plans.recompute_layers > 0))))
        if not len(index):
            continue
        some = plans.take(index).recomputing(kinds.codes[i], kinds.modules[i])
        peaks = peak_memory(model, gpu, some).total
        if not last or not kinds.blocks:
            result.append((index, some, peaks))
            continue
        last_layers = np.where(plans.recompute[index] == FULL, plans.recompute_layers[index], -1)
        for limit in belief.safer_limits(gpu, _SAFER_SIGMAS):
            # where all layers are not enough, they are the safest there is
            fewer, less = with_fewer_layers(model, gpu, some, peaks, np.maximum(limit, peaks), kinds)
            new = fewer.recompute_layers != last_layers
            result.append((index[new], fewer.take(new), less[new]))
            last_layers = fewer.recompute_layers
    return [entry for entry in result if len(entry[0])]
