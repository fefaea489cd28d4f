"""The degrees that a job's script accepts. Only the standard library is used, so that a compute node can load this module."""

from __future__ import annotations

from dataclasses import dataclass, field

from synergy_core.field_marks import ADDED_AFTER_0_1


@dataclass(frozen=True)
class Accepts:
    """The degrees besides tp, pp and dp that a job's script accepts, and what it does not accept."""

    #: virtual pipeline stages
    vpp: bool = False
    #: context parallelism
    cp: bool = False
    #: expert parallelism
    ep: bool = False
    #: the precision it computes in; "": the hardware's usual one
    precision: str = ""
    #: pipeline stages with different numbers of layers
    uneven: bool = False
    #: data-parallel traffic behind backward and forward
    overlap: bool = False
    #: it takes no pipeline: pp stays 1
    single_stage: bool = False
    #: its replicas exchange every gradient in every step, whatever its directive allows
    exact_only: bool = field(default=False, metadata=ADDED_AFTER_0_1)
    #: ways to exchange less that it refuses, such as local (synergy_core.exchange.WAYS), joined by +
    refuses: str = field(default="", metadata=ADDED_AFTER_0_1)
    #: full recompute of some of the layers
    blocks: bool = field(default=False, metadata=ADDED_AFTER_0_1)
    #: modules of a layer that it can compute again, joined by +
    modules: str = field(default="", metadata=ADDED_AFTER_0_1)
    #: the optimizer shared out over some of the data-parallel ranks
    shard: bool = field(default=False, metadata=ADDED_AFTER_0_1)
    #: context parallelism by all-to-all
    a2a: bool = field(default=False, metadata=ADDED_AFTER_0_1)
    #: its recompute stays as its user has set it
    own_recompute: bool = field(default=False, metadata=ADDED_AFTER_0_1)
    #: its tp must stay: another would change the training
    own_tp: bool = field(default=False, metadata=ADDED_AFTER_0_1)
    #: its optimizer can't be shared out
    whole_optimizer: bool = field(default=False, metadata=ADDED_AFTER_0_1)
    #: it can't continue at another size: it saves no checkpoint, or one that loads only on the number of GPUs that saved it
    own_size: bool = field(default=False, metadata=ADDED_AFTER_0_1)
    #: its batch is a multiple of its script's own
    in_multiples: bool = field(default=False, metadata=ADDED_AFTER_0_1)
    #: its micro-batch must stay: another would change the training
    own_micro: bool = field(default=False, metadata=ADDED_AFTER_0_1)


NOTHING_MORE = Accepts()
