"""Peak memory per GPU of transformer plans, with its parts, for whole arrays of plans at once.

Symbols as in step_time.py; bytes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from synergy_core.recompute import CORE
from synergy_core.records import ModelSpec

from synergyd.jobmodel.model.alignment import keeps_scores
from synergyd.jobmodel.model.arrays import FULL, OPERATORS, SELECTIVE, Bools, Floats, Ints, PlanArrays
from synergyd.jobmodel.model.dims import Dims, dims
from synergyd.jobmodel.model.hardware import GIB, GpuFigures
from synergyd.jobmodel.model.modules import beyond_core, find_recomputed, kept_elements
from synergyd.jobmodel.model.stages import layers_at_ends

# By precision (bf16, fp16, fp32, fp8): bytes a parameter of weights, of gradients, and of what the optimizer keeps
# besides (fp32 master weights where the weights are not, both moments; Megatron's fp16 keeps an fp32 gradient too).
_WEIGHTS = np.array([2.0, 2.0, 4.0, 2.0])
_GRADIENTS = np.array([4.0, 2.0, 4.0, 4.0])
_OPTIMIZER = np.array([12.0, 16.0, 8.0, 12.0])
_HALF = np.array([1.0, 1.0, 2.0, 1.0])  # size of an activation over that in 2 bytes


@dataclass(frozen=True)
class PeakMemory:
    """Parts of the fullest GPU's peak, bytes, (N,) each; `total` is their sum."""

    weights: Floats  # weights and gradients
    optimizer: Floats  # master weights and Adam's moments
    activations: Floats
    logits: Floats  # embedding output, output layer and loss
    other: Floats  # allocator, resident base

    @property
    def total(self) -> Floats:
        return self.weights + self.optimizer + self.activations + self.logits + self.other

    def parts(self, i: int) -> dict[str, float]:
        """Return plan `i`'s parts by name, bytes."""
        return {name: float(value[i]) for name, value in vars(self).items()}


def peak_memory(model: ModelSpec, gpu: GpuFigures, plans: PlanArrays) -> PeakMemory:
    """Return the peak of the fullest pipeline stage: the first, with most micro-batches in flight, or the last, with the logits.

    - Bytes a parameter with Adam: bf16 weights 2, fp32 gradients 4 and 12 for the optimizer (fp16: 2, 2 and 16; fp32: 4,
      4 and 8). ZeRO 1, 2 and 3 divide the optimizer's, the gradients' and the weights' by d * c (Rajbhandari et al. 2020;
      Megatron-LM's theoretical_memory_usage), experts' by d * c / e, the ranks that hold the same ones (its
      intra_expt_dp_group); under ZeRO-3 two layers are gathered whole. Experts are held by e ranks together, latent
      attention's projections down by every tensor rank whole.
    - Activations a layer and micro-batch (Korthikanti et al. 2022, written out for any heads, f and g = 3 gated
      units else 2): T*h * (10 + (2 + 2q + 4k + 2*g*f/h)/t) with q, k = query and key width over h without sequence
      parallel, all divided by t with it (34*T*h/t for GPT); plus 5*a*s*T/t of scores unless fused or recomputed
      (selective); 2*T*h with full recompute (`operators`: and the outputs of the core and of half the GEMMs), and then
      one whole layer while it is recomputed. MoE layers hold the MLP's part top_k times. Where full recompute covers N layers of
      each virtual stage, the others are kept whole; modules that are computed again free what they keep (modules.py).
    - In flight on the first stage of 1F1B: min(m, p); interleaved p + (p-1)/v (Narayanan et al. SC'21), on the last
      ((v-1)*p + 1)/v. Embedding input and dropout: 8T + T*h each in flight; output layer and loss:
      4*T*h + logit_bytes*T*V, by t.
    """
    return peak_parts(dims(model), gpu, plans)


def peak_parts(model: Dims, gpu: GpuFigures, plans: PlanArrays, last: Bools | None = None) -> PeakMemory:
    """Return `peak_memory` of one model, or of one model, GPU type and plan a row (see step_time.step_parts).

    Where `last` is True, return that of the last stage instead of the fullest one.
    """
    return stage_memory(model, gpu, plans).peak(plans, last)


@dataclass(frozen=True, kw_only=True)
class StageMemory:
    """The parts of plans' peaks that no recompute changes, (N,) each, worked out once where several kinds are compared.

    Pairs are the first stage's and the last one's.
    """

    gpu: GpuFigures
    layer: _LayerMemory
    ends: tuple[Floats, Floats]  # layers
    per_stage: Floats  # layers of the others
    in_flight: tuple[Floats, Floats]  # micro-batches
    second_in_flight: Floats
    one_layer: Floats  # parameters without experts
    parameters: tuple[Floats, Floats]
    logits: tuple[Floats, Floats]
    held: Floats  # bytes a parameter: weight and gradient
    optimizer: Floats
    expert_layers: tuple[Floats, Floats] | None  # layers with experts at each end; None: no experts
    expert_held: Floats  # bytes a layer that experts take more
    expert_optimizer: Floats
    gathered: Floats | float

    def peak(self, plans: PlanArrays, last: Bools | None = None) -> PeakMemory:
        """Return the peaks of `plans`, which may differ from this object's plans only in what they compute again."""
        gpu, (first_layers, last_layers) = self.gpu, self.ends
        stash, working, saved = self.layer.count_bytes(plans)
        some = plans.recompute_layers * plans.vpp  # layers of a stage that are computed again where not all are
        blocks = bool(some.any())

        def held_by(layers: Floats, in_flight: Floats) -> Floats:
            if not blocks:
                return np.asarray(gpu.activation_scale * (in_flight * (layers * stash) + working))
            # the first layers are computed again when those that were kept are gone: no room of their own
            at_once = np.where((some > 0) & (some < layers), 0.0, working)
            return np.asarray(
                gpu.activation_scale * (in_flight * (layers * stash - np.minimum(some, layers) * saved) + at_once)
            )

        first_activations = held_by(first_layers, self.in_flight[0])
        last_activations = held_by(last_layers, self.in_flight[1])
        (first_parameters, last_parameters), (first_logits, last_logits) = self.parameters, self.logits
        state = self.held + self.optimizer
        first = first_parameters * state + first_activations + first_logits
        at_end = last_parameters * state + last_activations + last_logits
        first_experts, last_experts = self.expert_layers or self.ends
        if self.expert_layers is not None:
            first = first + first_experts * (self.expert_held + self.expert_optimizer)
            at_end = at_end + last_experts * (self.expert_held + self.expert_optimizer)
        # the second stage holds one micro-batch less than the first, and more layers where the layout is uneven
        uneven = (plans.pp > 1) & (first_layers < self.per_stage)
        if uneven.any():
            second_activations = held_by(self.per_stage, self.second_in_flight)
            second = self.per_stage * (self.one_layer * state + self.expert_held + self.expert_optimizer)
            second = second + second_activations
            middle = uneven & (second > first)
            first_parameters = np.where(middle, self.per_stage * self.one_layer, first_parameters)
            first_experts = np.where(middle, self.per_stage, first_experts)
            first_activations = np.where(middle, second_activations, first_activations)
            first_logits, first = np.where(middle, 0.0, first_logits), np.where(middle, second, first)
        use_last = (at_end > first) if last is None else ((at_end > first) | last)
        fullest = np.where(use_last, last_parameters, first_parameters)
        live = np.where(use_last, at_end, first) + self.gathered
        weights, optimizer = self.held * fullest + self.gathered, self.optimizer * fullest
        if self.expert_layers is not None:
            layers = np.where(use_last, last_experts, first_experts)
            weights, optimizer = weights + layers * self.expert_held, optimizer + layers * self.expert_optimizer
        return PeakMemory(
            weights=weights,
            optimizer=optimizer,
            activations=np.where(use_last, last_activations, first_activations),
            logits=np.where(use_last, last_logits, first_logits),
            other=gpu.fragmentation * live + gpu.base_gib * GIB,
        )


def stage_memory(model: Dims, gpu: GpuFigures, plans: PlanArrays) -> StageMemory:
    """Return what the peaks of `plans` are made of, whatever they compute again."""
    h, t, p, v, m = model.hidden, plans.tp, plans.pp, plans.vpp, plans.micro_batches
    half = _HALF[plans.precision]
    tokens = plans.micro_batch * model.seq / plans.cp
    per_stage = np.ceil(model.layers / p)
    first_layers, last_layers = layers_at_ends(model.layers, p, model.mtp)
    # multi-token prediction's layers are the last stage's
    first_layers, last_layers = first_layers + np.where(p == 1, model.mtp, 0), last_layers + model.mtp
    spread = np.where(plans.sequence_parallel, t, 1)

    in_flight = np.where(v > 1, np.minimum(m, p + (p - 1) / v), np.minimum(m, p))
    in_flight_last = np.where((v > 1) & (p > 1), np.minimum(m, ((v - 1) * p + 1) / v), 1.0)
    one_layer, first_parameters, last_parameters = _parameters(model, plans, first_layers, last_layers)
    entry = in_flight * (8 * tokens + half * tokens * h / spread)
    loss = (1 + model.mtp) * tokens * (4 * h + gpu.logit_bytes * model.vocab) / t

    weight_and_gradient, optimizer = _of_a_parameter(gpu, plans, plans.shard)
    expert_held, expert_optimizer = _more_of_experts(model, gpu, plans, weight_and_gradient, optimizer)
    gathered: Floats | float = 0.0
    if (plans.zero_stage >= 3).any():  # this layer and the next are whole, this one's gradient too
        experts_elsewhere = model.expert_parameters / t / plans.ep * (plans.ep - 1) / plans.shard
        elsewhere = one_layer * (1 - 1 / plans.shard) - experts_elsewhere
        whole = 2 * _WEIGHTS[plans.precision] + _GRADIENTS[plans.precision] * gpu.state_scale
        gathered = np.where(plans.zero_stage >= 3, whole * elsewhere, 0.0)
    expert_layers = None
    if np.any(model.expert_parameters > 0):
        every = model.layers + model.mtp
        expert_layers = np.where(p == 1, every, first_layers), np.where(p == 1, every, last_layers)
    return StageMemory(
        gpu=gpu,
        layer=_layer_memory(model, gpu, plans, tokens, spread),
        ends=(first_layers, last_layers),
        per_stage=per_stage,
        in_flight=(in_flight, in_flight_last),
        second_in_flight=np.minimum(m, in_flight - 1),
        one_layer=one_layer,
        parameters=(first_parameters, last_parameters),
        logits=(entry + np.where(p == 1, loss, 0.0), np.where(p == 1, entry, 0.0) + loss),
        held=weight_and_gradient,
        optimizer=optimizer,
        expert_layers=expert_layers,
        expert_held=expert_held,
        expert_optimizer=expert_optimizer,
        gathered=gathered,
    )


def _parameters(
    model: Dims, plans: PlanArrays, first_layers: Floats, last_layers: Floats
) -> tuple[Floats, Floats, Floats]:
    """Return the parameters that a GPU holds of (a layer, the first stage, the last stage)."""
    h, t, p = model.hidden, plans.tp, plans.pp
    embedding = model.embedding_parameters / t
    whole_ones = model.replicated_parameters
    shared_out = model.dense_parameters - whole_ones + model.expert_parameters / plans.ep
    one_layer = shared_out / t + whole_ones
    # one stage holds both ends and shares the tied embedding; two ends hold a copy each, tied or not
    norm = np.where(model.gates == 3, h, 2 * h)
    every, ends = model.layers + model.mtp, model.embedding_parameters + model.head_parameters + model.positions + norm
    single = (ends + every * shared_out) / t + every * whole_ones
    first_parameters = np.where(p == 1, single, first_layers * one_layer + embedding + model.positions)
    last_parameters = np.where(p == 1, single, last_layers * one_layer + embedding)
    return one_layer, first_parameters, last_parameters


def _of_a_parameter(gpu: GpuFigures, plans: PlanArrays, ranks: Floats | Ints) -> tuple[Floats, Floats]:
    """Return (weight and gradient, optimizer): the bytes of a parameter that is sharded over `ranks`."""
    stage, gradient = plans.zero_stage, _GRADIENTS[plans.precision] * gpu.state_scale
    weight_and_gradient = _WEIGHTS[plans.precision] / np.where(stage >= 3, ranks, 1) + gradient / np.where(
        stage >= 2, ranks, 1
    )
    return weight_and_gradient, _OPTIMIZER[plans.precision] * gpu.state_scale / np.where(stage >= 1, ranks, 1)


def _more_of_experts(
    model: Dims, gpu: GpuFigures, plans: PlanArrays, weight_and_gradient: Floats, optimizer: Floats
) -> tuple[Floats, Floats]:
    """Return the bytes that a layer's experts take beyond those given by a parameter's `weight_and_gradient` and `optimizer`.

    Experts are sharded only over the ranks that hold the same ones.
    """
    if not np.any(model.expert_parameters > 0):
        return np.zeros(()), np.zeros(())
    of_expert = _of_a_parameter(gpu, plans, np.maximum(plans.shard / plans.ep, 1))
    parameters = model.expert_parameters / plans.tp / plans.ep
    return parameters * (of_expert[0] - weight_and_gradient), parameters * (of_expert[1] - optimizer)


@dataclass(frozen=True, kw_only=True)
class _LayerMemory:
    """Activations of one layer and micro-batch, bytes.

    `tokens` is the number a rank has. `spread` is the number of tensor ranks over which everything outside of tensor parallelism
    is split. `wide` is the width of the MLP, the mean over layers.
    """

    model: Dims
    half: Floats
    tokens: Floats
    spread: Ints
    wide: Floats
    scores: Floats
    unscored: Floats  # all but the scores
    whole: Floats

    def count_bytes(self, plans: PlanArrays) -> tuple[Floats, Floats, Floats | float]:
        """Return three byte counts: (stash, working, saved).

        `stash` is kept for the backward pass of a micro-batch, `working` is used while it is recomputed. `saved` is how much less
        a layer takes that is computed again where others are not.
        """
        model, half, tokens, spread, whole = self.model, self.half, self.tokens, self.spread, self.whole
        full, selective, operators = (plans.recompute == code for code in (FULL, SELECTIVE, OPERATORS))
        boundary = half * 2 * tokens * model.hidden / spread
        blocks = full & (plans.recompute_layers > 0)
        stash = np.where(full & ~blocks, boundary, np.where(selective, self.unscored, whole))
        working = np.where(full, whole, np.where(selective, self.scores, 0.0))
        if beyond_core(plans):
            alone, each = find_recomputed(plans), kept_elements(model, plans.tp, spread)
            working = working * np.where(selective & ~alone[CORE], 0.0, 1.0)
            stash = stash + np.where(selective & ~alone[CORE], self.scores, 0.0)
            for name, elements in each.items():
                freed = np.where(alone[name], half * 2 * tokens * elements, 0.0)
                stash, working = stash - freed, working + freed
        if operators.any():
            # the attention's output, and half of the GEMMs' outputs: q, k and v, attention's and MLP's projections
            gemms = 2 * (model.query + 2 * model.kv + (model.gates - 1) * self.wide) / plans.tp
            gemms = gemms + 4 * model.hidden / spread
            stash = np.where(operators, boundary + half * tokens * (2 * model.value / plans.tp + gemms / 2), stash)
            working = np.where(operators, whole, working)
        return stash, working, np.where(blocks, whole - boundary, 0.0)


def _layer_memory(model: Dims, gpu: GpuFigures, plans: PlanArrays, tokens: Floats, spread: Ints) -> _LayerMemory:
    h, t, half = model.hidden, plans.tp, _HALF[plans.precision]
    # attention: q and the core's output, k and v; MLP: 2f each for what every unit reads and writes
    wide = (1 - model.moe_share) * model.dense_ffn + model.moe_share * (model.ffn * model.top_k + model.shared_ffn)
    inner = half * tokens * (2 * h + 2 * model.query + 4 * model.kv + 2 * model.gates * wide) / t
    outer = half * tokens * h * 10 / spread
    if np.any(model.kv_lora > 0):  # the core's output is not as wide as h, and the latent widths are kept too
        latent = 2 * (model.value - h) / t + 2 * (model.q_lora + model.kv_lora + model.rope) / spread
        inner = inner + np.where(model.kv_lora > 0, half * tokens * latent, 0.0)
    kept_scores = np.where(gpu.flash & ~keeps_scores(model, plans), gpu.scores_kept, 1.0)
    scores = kept_scores * half * 5 * tokens * model.seq * model.heads / t
    unscored = outer + inner
    return _LayerMemory(
        model=model,
        half=half,
        tokens=tokens,
        spread=spread,
        wide=wide,
        scores=scores,
        unscored=unscored,
        whole=unscored + scores,
    )
