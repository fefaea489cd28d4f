"""What a job's script can be told. Only the standard library is used, so that a compute node can load this module."""

from __future__ import annotations

from dataclasses import dataclass, field

from synergyd.later import LATER


@dataclass(frozen=True)
class Accepts:
    """Which degrees besides tp, pp and dp a job's script can be told, and which of these not."""

    #: virtual pipeline stages
    vpp: bool = False
    #: context parallelism
    cp: bool = False
    #: expert parallelism
    ep: bool = False
    #: what it computes in; "": the hardware's usual one
    precision: str = ""
    #: pipeline stages of unlike numbers of layers
    uneven: bool = False
    #: data-parallel traffic behind backward and forward
    overlap: bool = False
    #: it takes no pipeline: pp stays 1
    single_stage: bool = False
    #: its replicas exchange every gradient in every step, whatever its directive allows
    exact_only: bool = field(default=False, metadata=LATER)
    #: ways to exchange less that it refuses, such as local (synergyd.exchange.WAYS), joined by +
    refuses: str = field(default="", metadata=LATER)
    #: full recompute of some of the layers
    blocks: bool = field(default=False, metadata=LATER)
    #: modules of a layer that it can compute again, joined by +
    modules: str = field(default="", metadata=LATER)
    #: the optimizer shared out over some of the data-parallel ranks
    shard: bool = field(default=False, metadata=LATER)
    #: context parallelism by all-to-all
    a2a: bool = field(default=False, metadata=LATER)
    #: what it computes again stays as its user has it
    own_recompute: bool = field(default=False, metadata=LATER)
    #: another tp would be another training
    own_tp: bool = field(default=False, metadata=LATER)
    #: its optimizer can't be shared out
    whole_optimizer: bool = field(default=False, metadata=LATER)
    #: it can't go on at another size: it saves no checkpoint, or one that loads on as many GPUs as have saved it alone
    own_size: bool = field(default=False, metadata=LATER)
    #: its batch is a multiple of the one that its script has by itself
    in_multiples: bool = field(default=False, metadata=LATER)
    #: another micro-batch would be another training
    own_micro: bool = field(default=False, metadata=LATER)


NOTHING_MORE = Accepts()
