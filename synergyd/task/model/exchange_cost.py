"""What less communication between data-parallel replicas costs and saves: how far an example brings a run before it is measured, bytes
and memory of each option, and which options a search tries."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

from synergyd.exchange import EXACT, Exchange, exchange
from synergyd.records import Measurement

# What a search tries of each kind that a directive allows. Periods: from those of local SGD's papers (Lin et al., ICLR 2020: 2 to 16)
# to those of DiLoCo's (Douillard et al. 2023: 50 to 500 from where the loss is flat in the period). Ranks: PowerSGD's own (Vogels et
# al., NeurIPS 2019): 4 for convolutional and recurrent networks, 32 for transformers.
_OPTIONS: dict[str, tuple[Exchange, ...]] = {
    "local": (
        *(Exchange("local", period=period) for period in (4, 8, 16)),
        *(Exchange("local", period=period, outer=True) for period in (16, 64)),
    ),
    "delayed": (Exchange("delayed"),),
    "compressed": (Exchange("compressed"), Exchange("compressed", rank=4), Exchange("compressed", rank=32)),
}

# What more examples an option takes for the same loss, as a share: of what the papers say and what was measured here, the worse. Measured
# by `python -m tests.benchmarks.comm_options` (docs/benchmarks.md), two replicas, of which the first 24 steps are exact. Long runs: five
# seeds, until the loss of an exact run that takes 155 steps, so 131 after these, within 240, at 1000 and 100 Mbit/s. Short ones: two seeds,
# 64 steps, so 40 after these, within 96. Short runs are harder: momenta and error feedback hardly begin to pay. So these lie on the safe
# side; the job's own measurement takes the prior's place.
# For each doubling of the period and of the replicas, with an outer step. Papers: in DiLoCo's scaling laws (Charles et al. 2025) the
# loss rises by a few percent at 8 replicas for the smallest model, a third more examples where it falls with their -0.1th power or so
# (Hoffmann et al. 2022): 0.022. Long runs: a period of 8 got there in 1 of 5, in 232 steps; the others take more than 0.65 / 3 more.
# Short ones: 56 and 72 steps for 40, 0.8 / 3 more at the worst.
_OUTER_LOSS = 0.27
# Plain averages. Papers: more than with an outer step (Douillard et al. 2023; Ortiz et al. 2021), 0.033. Long runs: a period of 8 took 154
# steps, 5 of 5: nothing lost. Short ones: 48 steps for 40, 0.2 / 3 more.
_LOCAL_LOSS = 0.067
# One step's delay. Papers: a term of higher order (Stich and Karimireddy 2020), close to none in DaSGD's runs (Zhou et al. 2020). Long
# runs: 219 steps, 5 of 5: 0.49 more. Short ones: 72 steps for 40 were not enough, so more than 0.8. As hiding saves less than half of a
# step, it is taken only once it is measured.
_DELAYED_LOSS = 1.0
# As many significant bits as mixed precision trains with. Paper: no loss (Kalamkar et al. 2019). Long runs: 157 steps, 5 of 5: 0.015 more.
# Short ones: 40 steps for 40.
_BF16_LOSS = 0.02
# By rank. Paper: a recurrent language model lost with 1, hardly with 2 and not with 4; a transformer took 32 (Vogels et al. 2019). Here
# rank 2 never got there: more than 0.65 by 5 of 5 long runs, more than 0.8 by the short ones. Other ranks were not measured: they stand to
# rank 2 as 1.5, 0.6 and 0.3.
_POWERSGD_LOSS = ((32, 0.3), (4, 0.6), (2, 1.0), (1, 1.5))

#: An option that nobody has measured is taken only where it predicts so many times the goodput of the exact exchange.
UNMEASURED_GAIN = 1.1
_PRIOR_REPORTS = 8.0  # reports that the prior counts as
_LEAST_WORTH = 0.05
#: of an option that is not allowed any more: the loss did worse with it, or its owner took it back
TAKEN_BACK = 0.05

# A link in a node that is faster than a PCI Express 5 port's 64e9 bytes/s (hardware.toml) is NVLink or the like: gradients over it are
# no reason to change the algorithm.
_FAST_GBS = 64.0


def options(kinds: Collection[str]) -> tuple[Exchange, ...]:
    """What a search tries besides EXACT for a job that allows `kinds`."""
    return tuple(option for kind, some in _OPTIONS.items() if kind in kinds for option in some)


def is_unproven(option: Exchange) -> bool:
    """Whether most runs here with `option`, or with its like, never reached the loss of the exact run: what they lose is known from below
    alone, so no prior speaks for taking it before the job has measured it."""
    return option.outer or option.rank > 0


def slow_links(nodes: int, intra_gbs: float) -> bool:
    """Whether replicas on so many nodes meet over a link that may be slow: the network's, or PCI Express in the node."""
    return nodes > 1 or intra_gbs <= _FAST_GBS


def prior_worth(option: Exchange, replicas: int) -> float:
    """What an example brings with `option`, of what it does with every gradient exchanged, (0, 1]: before any was measured. Cautious: an
    option must save clearly more than it loses."""
    if option == EXACT or replicas < 2:
        return 1.0
    if option.kind == "local":
        each = _OUTER_LOSS if option.outer else _LOCAL_LOSS
        return 1.0 / (1.0 + each * math.log2(max(2, option.period)) * math.log2(replicas))
    if option.kind == "delayed":
        return 1.0 / (1.0 + _DELAYED_LOSS)
    if not option.rank:
        return 1.0 / (1.0 + _BF16_LOSS)
    return 1.0 / (1.0 + next(loss for rank, loss in _POWERSGD_LOSS if option.rank >= rank))


def worth(option: Exchange, replicas: int, measured: Sequence[Measurement] = ()) -> float:
    """`prior_worth` with what the job's runs have measured of it, or of other options of its kind: what these lost, over what they were
    expected to, counts for all of the kind, by the reports behind it. Relative errors of measurements are the reporter's (agent)."""
    prior = prior_worth(option, replicas)
    if option == EXACT or replicas < 2:
        return 1.0
    own: list[tuple[float, float]] = []  # (log of lost over expected, reports)
    others: list[tuple[float, float]] = []
    for m in measured:
        if m.comm_efficiency is None or m.plan.exchange == "exact":
            continue
        ran = exchange(m.plan.exchange, "measured")
        if (ran.kind, bool(ran.rank)) != (option.kind, bool(option.rank)):
            continue
        expected = 1.0 / prior_worth(ran, max(2, m.plan.dp)) - 1.0
        lost = 1.0 / min(1.0, max(_LEAST_WORTH, m.comm_efficiency)) - 1.0
        (own if ran == option else others).append(
            (math.log(max(lost, 1e-3) / expected), float(min(m.samples, 8 * _PRIOR_REPORTS)))
        )
    seen = own or others
    if not seen:
        return prior
    reports = sum(count for _, count in seen)
    ratio = math.exp(sum(off * count for off, count in seen) / (reports + _PRIOR_REPORTS))
    return max(_LEAST_WORTH, 1.0 / (1.0 + (1.0 / prior - 1.0) * ratio))


def is_measured(option: Exchange, measured: Sequence[Measurement]) -> bool:
    """Whether the job has run with `option` and told its worth."""
    return any(m.comm_efficiency is not None and m.plan.exchange == str(option) for m in measured)


def memory_bytes(option: Exchange) -> float:
    """What `option` keeps on each GPU, bytes a parameter, in fp32: DiLoCo's outer parameters and momentum (Douillard et al. 2023,
    algorithm 1), a step's gradients that wait, PowerSGD's error feedback."""
    if option.kind == "local":
        return 8.0 if option.outer else 0.0
    return 4.0 if option.kind == "delayed" or option.rank else 0.0
