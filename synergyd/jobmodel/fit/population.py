"""The common traits of one user's jobs on a cluster: the prior of a job not measured yet, after the steps of others.

The logarithms of a job's constants (ThroughputModel: what it computes and sends, latencies) are normal around the cluster's, and
the cluster's around the built-in ones; half of the built-in variance is the cluster's (its GPUs, links and software are not
as the figures say), half the job's own. The measured steps of each program tell of its constants, and so of the cluster's:

    data of program j:  exp(h' t - t' A t / 2)      t ~ N(mu, S)      mu ~ N(mu0, T)
    given mu, with Q = inverse of S:  information  Q - Q (A + Q)^-1 Q,  linear term  Q (A + Q)^-1 h

(Gelman et al., Bayesian Data Analysis, 3rd ed., 15.1), so a few first reports correct the whole cluster's level, and what was
never measured (the network, where all ran on one node) stays as uncertain as it is. A program that is unlike all others counts less.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import numpy as np
from synergy_core.records import Measurement

from synergyd.jobmodel.model.hardware import GpuFigures
from synergyd.jobmodel.model.throughput import NOISE, PRIOR, ThroughputFit, ThroughputPrior, fit, fit_ahead

_SHARED = 0.5  # part of the built-in prior's variance that is the cluster's: not known, so as much as the job's own
_PROGRAMS = 32  # the latest so many teach
_ROUNDS = 3
_GRID = 0.1  # grid of the prior's mean: Cells are made anew only where it has moved by more than reports vary
_SIGMA_GRID = 0.05


def compute_prior(programs: Iterable[tuple[Measurement, ...]], figures: Callable[[str], GpuFigures]) -> ThroughputPrior:
    """Return the prior after what each of `programs` measured (the latest last), with `figures` by GPU type.

    Return PRIOR if none has measured.
    """
    latest = [some for some in programs if some][-_PROGRAMS:]
    fit_inputs = [(some, tuple(figures(m.shape.gpu_type) for m in some), PRIOR) for some in latest]
    fit_ahead(fit_inputs)
    return prior_from_fits(fit(*one) for one in fit_inputs)


class UserPriors:
    """The prior of each user's jobs, after what that user's programs have measured.

    Nobody's reports decide about others' jobs.
    """

    def __init__(self) -> None:
        self._known: dict[int, tuple[tuple[tuple[Measurement, ...], ...], ThroughputPrior]] = {}

    def learn(
        self, programs: Mapping[int, tuple[tuple[Measurement, ...], ...]], figures: Callable[[str], GpuFigures]
    ) -> None:
        """Take `programs`, by uid and the latest last, as all that was measured."""
        prior_by_uid = {}
        for uid, some in programs.items():
            latest = tuple(one for one in some if one)[-_PROGRAMS:]
            before = self._known.get(uid)
            prior_by_uid[uid] = before if before and before[0] == latest else (latest, compute_prior(latest, figures))
        self._known = prior_by_uid

    def prior_for(self, uid: int) -> ThroughputPrior:
        """Return the prior of a user's jobs, or PRIOR where nothing of theirs was measured."""
        return self._known[uid][1] if uid in self._known else PRIOR


def prior_from_fits(fits: Iterable[ThroughputFit]) -> ThroughputPrior:
    """Return the prior after jobs whose fits (from the built-in prior) are `fits`."""
    fits = tuple(fits)
    if not fits:
        return PRIOR
    start, sigma = np.array(PRIOR.mean), np.array(PRIOR.sigma)
    own = np.diag(1 / ((1 - _SHARED) * sigma**2))
    cluster = np.diag(1 / (_SHARED * sigma**2))
    mean = start
    for _ in range(_ROUNDS):
        precision, linear = cluster.copy(), cluster @ start
        for one in fits:
            # the most probable constants balance the data's slope with the prior's, at NOISE; `information` is at the misfit
            h = one.information @ one.theta + (one.theta - start) / sigma**2 * (NOISE / one.misfit) ** 2
            inverse = np.linalg.inv(one.information + own)
            information = own - own @ inverse @ own
            off = inverse @ (h + own @ mean) - mean
            weight = 1 / (1 + off @ own @ off / len(off))
            precision += weight * information
            linear += weight * (own @ inverse @ h)
        covariance = np.linalg.inv(precision)
        mean = covariance @ linear
    spread = np.sqrt((1 - _SHARED) * sigma**2 + np.diag(covariance))
    return ThroughputPrior(
        tuple(float(round(v / _GRID) * _GRID + 0.0) for v in mean),
        tuple(float(round(v / _SIGMA_GRID) * _SIGMA_GRID) for v in spread),
    )
