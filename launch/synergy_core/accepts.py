"""The degrees that a job's script accepts. Only the standard library is used, so that a compute node can load this module."""

from __future__ import annotations

from dataclasses import dataclass, field

from synergy_core.field_marks import ADDED_AFTER_0_1


@dataclass(frozen=True)
class Accepts:
    """What a job's script accepts besides tp, pp and dp, and what it does not."""

    #: virtual pipeline stages
    vpp: bool = False
    #: context parallelism
    cp: bool = False
    #: expert parallelism
    ep: bool = False
    #: its precision; "": the hardware's usual one
    precision: str = ""
    #: pipeline stages with different numbers of layers
    uneven: bool = False
    #: data-parallel traffic overlaps with computation
    overlap: bool = False
    #: pp stays 1
    single_stage: bool = False
    #: its replicas exchange every gradient in every step, even if its directive allows less
    exact_only: bool = field(default=False, metadata=ADDED_AFTER_0_1)
    #: refused ways to exchange less (synergy_core.exchange.WAYS), such as local, joined by +
    refuses: str = field(default="", metadata=ADDED_AFTER_0_1)
    #: full recompute of some of the layers
    blocks: bool = field(default=False, metadata=ADDED_AFTER_0_1)
    #: modules of a layer that it can compute again, joined by +
    modules: str = field(default="", metadata=ADDED_AFTER_0_1)
    #: the optimizer sharded over some of the data-parallel ranks
    shard: bool = field(default=False, metadata=ADDED_AFTER_0_1)
    #: context parallelism by all-to-all
    a2a: bool = field(default=False, metadata=ADDED_AFTER_0_1)
    #: its recompute stays as set by its user
    own_recompute: bool = field(default=False, metadata=ADDED_AFTER_0_1)
    #: another tp would change its training
    own_tp: bool = field(default=False, metadata=ADDED_AFTER_0_1)
    #: its optimizer can't be sharded, or its checkpoints are of one that is not
    whole_optimizer: bool = field(default=False, metadata=ADDED_AFTER_0_1)
    #: it can't continue at another size: no checkpoint, or one that loads only on the same number of GPUs
    own_size: bool = field(default=False, metadata=ADDED_AFTER_0_1)
    #: its batch is a multiple of its script's own
    in_multiples: bool = field(default=False, metadata=ADDED_AFTER_0_1)
    #: another micro-batch would change its training
    own_micro: bool = field(default=False, metadata=ADDED_AFTER_0_1)


NOTHING_MORE = Accepts()
