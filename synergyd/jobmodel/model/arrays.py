"""Many plans at once, as numpy arrays: what the performance and memory models work on."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
from synergy_core.exchange import EXACT, Exchange, parse_exchange
from synergy_core.recompute import CORE, MODULES, list_modules, of_modules
from synergy_core.records import CP_COMMS, Plan

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
Exchanges = npt.NDArray[np.object_]  # elements are Exchange

# index is the code in PlanArrays.recompute; "operators" is of measured rows alone: PyTorch's selective activation checkpointing, by which
# FSDP's programs keep the attention's output and that of every other GEMM (TorchTitan's activation_checkpoint.py)
RECOMPUTE = ("none", "selective", "full", "operators")
NONE, SELECTIVE, FULL, OPERATORS = range(len(RECOMPUTE))
CORE_ALONE = 1 << MODULES.index(CORE)
_WITHOUT_MODULES = ("none", "full", "operators")
RING, ALL_TO_ALL = range(len(CP_COMMS))  # the codes in PlanArrays.cp_comm
_NOT_IN_A_PLAN = ("local", "modules")
PRECISION = ("bf16", "fp16", "fp32", "fp8")  # index is the code in PlanArrays.precision


@dataclass(frozen=True, kw_only=True)
class PlanArrays:
    """N plans, each field of shape (N,).

    `local` is the GPUs used on each node, `recompute` an index into RECOMPUTE. `modules` has a bit for each of MODULES that is
    computed again where `recompute` is SELECTIVE, and is 0 elsewhere.
    """

    tp: Ints
    pp: Ints
    dp: Ints
    micro_batch: Ints
    global_batch: Ints
    recompute: Ints
    local: Ints
    sequence_parallel: Bools
    zero_stage: Ints
    vpp: Ints
    cp: Ints
    ep: Ints
    precision: Ints  # an index into PRECISION
    recompute_layers: Ints  # layers of each virtual stage that are recomputed where `recompute` is FULL; 0: all
    modules: Ints
    cp_comm: Ints  # an index into CP_COMMS
    shard: Ints  # ranks over which ZeRO shares out, all dp * cp of them or a divisor (HSDP, MiCS, InternEvo's zero1)
    exchange: Exchanges | None = None  # None: every replica's gradients in every step, in all of them

    def __len__(self) -> int:
        return len(self.tp)

    @property
    def distributed_optimizer(self) -> Bools:
        """Return whether the optimizer is sharded, (N,)."""
        return self.zero_stage >= 1

    @property
    def micro_batches(self) -> Ints:
        """Return the number of micro-batches that each replica works through in one step, (N,)."""
        return self.global_batch // (self.dp * self.micro_batch)

    def recomputing(self, code: int, modules: int = 0, layers: Ints | None = None) -> PlanArrays:
        """Return the plans with another recompute: its code, and modules or layers (N,)."""
        n, none = len(self), np.zeros(len(self), dtype=np.int64)
        return replace(
            self,
            recompute=np.full(n, code, dtype=np.int64),
            modules=np.full(n, modules, dtype=np.int64) if modules else none,
            recompute_layers=none if layers is None else layers,
        )

    def take(self, index: Ints | Bools) -> PlanArrays:
        """Return the plans at `index` (positions or a mask)."""
        # a mask that is turned into positions once; ndarray.take is faster than indexing
        where = np.flatnonzero(index) if index.dtype == np.bool_ else index
        return PlanArrays(**{name: value.take(where) for name, value in vars(self).items() if value is not None})

    def exchanging(self, option: Exchange) -> PlanArrays:
        """Return the same plans, all with `option`."""
        return replace(self, exchange=None if option == EXACT else np.full(len(self), option, dtype=np.object_))

    def plan(self, i: int) -> Plan:
        """Return plan number `i` as a record."""
        return self.take(np.array([i])).records()[0]

    def records(self) -> list[Plan]:
        """Return all plans as records. This is far faster than one by one."""
        columns: dict[str, list[Any]] = {
            name: value.tolist()
            for name, value in vars(self).items()
            if name not in _NOT_IN_A_PLAN and value is not None
        }
        exact = [str(EXACT)] * len(self)
        columns |= {
            "recompute": list(map(recompute_text, columns["recompute"], self.modules.tolist())),
            "precision": [PRECISION[code] for code in columns["precision"]],
            "cp_comm": [CP_COMMS[code] for code in columns["cp_comm"]],
            "shard": np.where(self.shard < self.dp * self.cp, self.shard, 0).tolist(),
            "exchange": exact if self.exchange is None else list(map(str, self.exchange)),
        }
        return [Plan(**dict(zip(columns, row, strict=True))) for row in zip(*columns.values(), strict=True)]


def modules_mask(modules: Iterable[str]) -> int:
    """Return the bits of `modules` in MODULES."""
    return sum(1 << MODULES.index(name) for name in modules)


def recompute_text(code: int, modules: int) -> str:
    """Return a plan's `recompute` for an index into RECOMPUTE and the bits of its modules."""
    if code != SELECTIVE:
        return RECOMPUTE[code]
    return of_modules(tuple(name for i, name in enumerate(MODULES) if modules >> i & 1))


def recompute_code(text: str) -> int:
    """Return the index into RECOMPUTE of a plan's `recompute`: the inverse of `recompute_text`."""
    return RECOMPUTE.index(text) if text in RECOMPUTE else SELECTIVE


def from_plans(plans: Sequence[Plan], gpus_per_node: int | Sequence[int]) -> PlanArrays:
    """Return the given plans as arrays, each on nodes of `gpus_per_node` GPUs (one number for all, or one per plan)."""
    nodes = [gpus_per_node] * len(plans) if isinstance(gpus_per_node, int) else list(gpus_per_node)

    def ints(values: Sequence[int]) -> Ints:
        return np.array(values, dtype=np.int64)

    return PlanArrays(
        tp=ints([p.tp for p in plans]),
        pp=ints([p.pp for p in plans]),
        dp=ints([p.dp for p in plans]),
        micro_batch=ints([p.micro_batch for p in plans]),
        global_batch=ints([p.global_batch for p in plans]),
        recompute=ints([recompute_code(p.recompute) for p in plans]),
        local=ints([min(n, p.gpus) for n, p in zip(nodes, plans, strict=True)]),
        sequence_parallel=np.array([p.sequence_parallel for p in plans], dtype=np.bool_),
        zero_stage=ints([p.zero_stage for p in plans]),
        vpp=ints([p.vpp for p in plans]),
        cp=ints([p.cp for p in plans]),
        ep=ints([p.ep for p in plans]),
        precision=ints([PRECISION.index(p.precision) for p in plans]),
        recompute_layers=ints([p.recompute_layers for p in plans]),
        modules=ints(
            [0 if p.recompute in _WITHOUT_MODULES else modules_mask(list_modules(p.recompute)) for p in plans]
        ),
        cp_comm=ints([CP_COMMS.index(p.cp_comm) for p in plans]),
        shard=ints([p.shard_ranks for p in plans]),
        exchange=_exchanges(plans),
    )


def _exchanges(plans: Sequence[Plan]) -> Exchanges | None:
    if all(p.exchange == "exact" for p in plans):
        return None
    return np.array([parse_exchange(p.exchange, "plan") for p in plans], dtype=np.object_)
