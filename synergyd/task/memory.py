"""Peak memory per GPU of transformer plans, with its parts, for whole arrays of plans at once. Symbols as in perf.py;
bytes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from synergyd.records import ModelSpec
from synergyd.task.arrays import Floats, PlanArrays
from synergyd.task.hardware import GIB, GpuFigures
from synergyd.task.model_spec import embedding_parameters, layer_parameters, parameters


@dataclass(frozen=True)
class PeakMemory:
    """Parts of the fullest GPU's peak, bytes, (N,) each; `total` is their sum."""

    weights: Floats  # bf16 weights and fp32 gradients
    optimizer: Floats  # fp32 master weights and Adam's moments
    activations: Floats
    logits: Floats  # embedding output, output layer and loss
    other: Floats  # allocator, resident base

    @property
    def total(self) -> Floats:
        return self.weights + self.optimizer + self.activations + self.logits + self.other

    def parts(self, i: int) -> dict[str, float]:
        """Plan `i`'s parts by name, bytes."""
        return {name: float(value[i]) for name, value in vars(self).items()}


def peak_memory(model: ModelSpec, gpu: GpuFigures, plans: PlanArrays) -> PeakMemory:
    """Peak of the fullest pipeline stage: the first, with most micro-batches in flight, or the last, with the logits.

    - Bytes a parameter, bf16 weights and fp32 gradients with Adam: 6 + 12, the 12 divided by d with the distributed
      optimizer (Rajbhandari et al. 2020; Megatron-LM's theoretical_memory_usage).
    - Activations a layer and micro-batch (Korthikanti et al. 2022, written out for any k, f and g = 3 gated
      units else 2): T*h * (10 + (4 + 4k + 2*g*f/h)/t) without sequence parallel, all divided by t with it (34*T*h/t
      for GPT); plus 5*a*s*T/t of scores unless fused or recomputed (selective); 2*T*h with full recompute, and then one
      whole layer while it is recomputed.
    - In flight on the first stage of 1F1B: min(m, p). Embedding input and dropout: 8T + T*h each in flight; output
      layer and loss: 4*T*h*(1 + V/h)/t.
    """
    s, h, f, vocab = model.seq, model.hidden, model.ffn, model.vocab
    t, p, d = plans.tp, plans.pp, plans.dp
    tokens = (plans.micro_batch * s).astype(np.float64)
    per_stage = model.layers / p
    spread = np.where(plans.sequence_parallel, t, 1)

    k = model.kv_heads / model.heads
    gates = 3 if model.gated else 2
    # attention: q, k, v and the core's output (4 + 4k); MLP: 2f each for what every unit reads and writes
    inner = tokens * h * (4 + 4 * k + 2 * gates * f / h) / t
    outer = tokens * h * 10 / spread
    scores = np.zeros(len(plans)) if gpu.flash else 5 * tokens * s * model.heads / t
    whole = outer + inner + scores
    kept = np.where(plans.recompute == 2, 2 * tokens * h / spread, np.where(plans.recompute == 1, outer + inner, whole))
    working = np.where(plans.recompute == 2, whole, np.where(plans.recompute == 1, scores, 0.0))
    in_flight = np.minimum(plans.micro_batches, p)

    embedding = embedding_parameters(model) / t
    positions = 0 if model.gated else s * h
    layer_share = per_stage * layer_parameters(model) / t
    # one stage holds both ends and shares the tied embedding; two ends hold a copy each, tied or not
    single = parameters(model) / t
    first_parameters = np.where(p == 1, single, layer_share + embedding + positions)
    last_parameters = np.where(p == 1, single, layer_share + embedding)

    entry = in_flight * (8 * tokens + tokens * h / spread)
    loss = 4 * tokens * h * (1 + vocab / h) / t
    first_activations = in_flight * per_stage * kept + working
    last_activations = per_stage * kept + working
    first_logits = entry + np.where(p == 1, loss, 0.0)
    last_logits = np.where(p == 1, entry, 0.0) + loss

    state = 6 + 12 / np.where(plans.distributed_optimizer, d, 1)
    first = first_parameters * state + first_activations + first_logits
    last = last_parameters * state + last_activations + last_logits
    use_last = last > first
    fullest = np.where(use_last, last_parameters, first_parameters)
    live = np.maximum(first, last)
    return PeakMemory(
        weights=6 * fullest,
        optimizer=(state - 6) * fullest,
        activations=np.where(use_last, last_activations, first_activations),
        logits=np.where(use_last, last_logits, first_logits),
        other=gpu.fragmentation * live + gpu.base_gib * GIB,
    )
