"""The cost of less communication between data-parallel replicas.

This is how far an example brings a run, before and after it is measured, and which options a search tries.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

from synergy_core.exchange import EXACT, Exchange, parse_exchange
from synergy_core.records import Measurement

# The options that a search tries of each kind that a directive allows. Periods: from those of local SGD's papers (Lin et al.,
# ICLR 2020: 2 to 16).
_OPTIONS: dict[str, tuple[Exchange, ...]] = {
    "local": tuple(Exchange("local", period=period) for period in (4, 8, 16)),
    "compressed": (Exchange("compressed"),),
}

# The share of further examples that an option takes for the same loss: the worse of the papers' and our own figures. Measured here
# by `python -m tests.benchmarks.comm_options` (docs/design/communication.md), two replicas, the first 24 steps exact. Long runs: five
# seeds, until the loss of an exact run that takes 155 steps, so 131 after these, within 240, at 1000 and 100 Mbit/s. Short ones: two seeds,
# 64 steps, so 40 after these, within 96. Short runs are harder, so these lie on the safe side; the job's own measurement takes the
# prior's place.
# For each doubling of the period and of the replicas. Papers: 0.033, above an outer step (Douillard et al. 2023, Ortiz et al. 2021).
# Long runs: a period of 8 took 154 steps, 5 of 5: nothing lost. Short ones: 48 steps for 40, 0.2 / 3 more.
_LOCAL_LOSS = 0.067
# As many significant bits as mixed precision trains with. Paper: no loss (Kalamkar et al. 2019). Long runs: 157 steps, 5 of 5: 0.015 more.
# Short ones: 40 steps for 40.
_BF16_LOSS = 0.02

#: An option that nobody has measured is taken only where it predicts so many times the goodput of the exact exchange.
UNMEASURED_GAIN = 1.1
_PRIOR_REPORTS = 8.0  # reports that the prior counts as
_LEAST_WORTH = 0.05
#: worth of an option that is not allowed any more: the loss did worse with it, or its owner took it back
TAKEN_BACK = 0.05

# A link in a node that is faster than a PCI Express 5 port's 64e9 bytes/s (hardware.toml) is NVLink or the like: gradients over it are
# no reason to change the algorithm.
_FAST_GBS = 64.0


def options(kinds: Collection[str]) -> tuple[Exchange, ...]:
    """Return what a search tries besides EXACT for a job that allows `kinds`."""
    return tuple(option for kind, some in _OPTIONS.items() if kind in kinds for option in some)


def slow_links(nodes: int, intra_gbs: float) -> bool:
    """Return whether replicas on so many nodes meet over a link that may be slow: the network's, or PCI Express in the node."""
    return nodes > 1 or intra_gbs <= _FAST_GBS


def prior_worth(option: Exchange, replicas: int) -> float:
    """Return the worth of an example with `option`, as a share of its worth with every gradient exchanged, (0, 1].

    This is before any was measured. The figure is cautious: an option must save clearly more than it loses.
    """
    if option == EXACT or replicas < 2:
        return 1.0
    if option.kind == "local":
        return 1.0 / (1.0 + _LOCAL_LOSS * math.log2(max(2, option.period)) * math.log2(replicas))
    return 1.0 / (1.0 + _BF16_LOSS)


def example_worth(option: Exchange, replicas: int, measured: Sequence[Measurement] = ()) -> float:
    """Return `prior_worth` with what the job's runs have measured of it, or of other options of its kind.

    Their loss over the expected loss counts for all of the kind, by the reports behind it. Relative errors of measurements are
    the reporter's (agent).
    """
    prior = prior_worth(option, replicas)
    if option == EXACT or replicas < 2:
        return 1.0
    own: list[tuple[float, float]] = []  # (log of loss over expected loss, reports)
    others: list[tuple[float, float]] = []
    for m in measured:
        if m.comm_efficiency is None or m.plan.exchange == "exact":
            continue
        ran = parse_exchange(m.plan.exchange, "measured")
        if ran.kind != option.kind:
            continue
        expected = 1.0 / prior_worth(ran, max(2, m.plan.dp)) - 1.0
        loss = 1.0 / min(1.0, max(_LEAST_WORTH, m.comm_efficiency)) - 1.0
        (own if ran == option else others).append(
            (math.log(max(loss, 1e-3) / expected), float(min(m.samples, 8 * _PRIOR_REPORTS)))
        )
    evidence = own or others
    if not evidence:
        return prior
    reports = sum(count for _, count in evidence)
    ratio = math.exp(sum(off * count for off, count in evidence) / (reports + _PRIOR_REPORTS))
    return max(_LEAST_WORTH, 1.0 / (1.0 + (1.0 / prior - 1.0) * ratio))


def is_measured(option: Exchange, measured: Sequence[Measurement]) -> bool:
    """Return whether the job has run with `option` and reported its worth."""
    return any(m.comm_efficiency is not None and m.plan.exchange == str(option) for m in measured)
