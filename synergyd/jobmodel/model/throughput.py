"""Pollux's throughput model of a data-parallel job (Qiao et al., OSDI 2021, section 3.2), fitted to its reports.

    T_iter = (passes - 1) T_grad + (T_grad^gamma + T_sync^gamma)^(1/gamma)
    T_grad = a + F * micro_batch / rate            T_sync = V / link + L (K - 2), nothing where K = 1
    With less communication (synergy_core.exchange): local:H   passes T_grad + T_sync / H      compressed   half of V

K replicas; `rate` and `link` are the hardware's figures, so that what is learnt on one GPU type carries over to others.
F (FLOPs a sample), a (seconds), V (bytes), L (seconds) each within a node and between nodes, and gamma are the job's own:
priors first, then the most probable values after its measured steps. V within a node is learnt in proportion to a power of F (_TIED):
a weight that is exchanged has been computed with, so a job of short steps does not exchange the gradients of a large model. V between
nodes is learnt in proportion to V within a node: the same gradient goes over both.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import astuple, dataclass, field
from itertools import islice

import numpy as np
from synergy_core.exchange import EXACT, Exchange, parse_exchange
from synergy_core.records import Measurement, Plan, Shape

from synergyd.jobmodel.model.arrays import Floats, Ints
from synergyd.jobmodel.model.hardware import GpuFigures
from synergyd.jobmodel.model.most_probable import ToFit, log_slopes, most_probable

_EFFICIENCY = 0.3  # share of peak, for code that is not tuned
NOISE = 0.03  # one sigma of a measured step, relative
# One sigma of what the formula misses, relative, before the job's own steps show it, and as how many steps that counts: the
# median error of 9 % after 16 steps of bert, imagenet and ncf (benchmark calibration, which scores the other kinds), over 0.67
_MISFIT, _MISFIT_STEPS = 0.12, 3.0
ODD = 3.0  # sigmas beyond which a step's error counts as this
_GAMMA = (1.0, 10.0)  # Pollux's bounds: communication after computation, or hidden behind it


@dataclass(frozen=True)
class ThroughputModel:
    """A job's own constants.

    The defaults are the middle of the priors (see `_SIGMA`).
    """

    sample_flops: float = 25e9
    overhead_s: float = 0.02
    node_bytes: float = 1.7e8
    network_bytes: float = 5.9e7  # for each GPU's share of the network: a node's GPUs use its ports together
    node_hop_s: float = 1e-3
    network_hop_s: float = 2e-3
    gamma: float = 3.0

    def step_s(
        self,
        gpu: GpuFigures,
        shape: Shape,
        replicas: int,
        micro_batch: int,
        passes: int,
        option: Exchange = EXACT,
    ) -> float:
        """Return the seconds of one step of `passes` micro-batches a replica, on `shape`."""
        point = (gpu, shape, replicas, micro_batch, passes, option)
        return float(_steps(np.array([self._theta()]).T, _terms([point]))[0])

    def steps_s(self, gpu: GpuFigures, counts: Ints, option: Exchange = EXACT) -> Floats:
        """Return `step_s` of many steps at once. `counts`: (5, N) GPUs, nodes, replicas, micro-batch, passes."""
        return _steps(self._theta(), _columns(_figures(gpu), counts, _sending(option)))

    def sync_s(self, gpu: GpuFigures, counts: Ints, option: Exchange = EXACT) -> Floats:
        """Return T_sync between nodes of many steps at once, in seconds a step (see `steps_s`). It is 0 within a node."""
        _, _, far, _, far_hops, *_ = _columns(_figures(gpu), counts, _sending(option))
        return np.asarray(self.network_bytes * far + self.network_hop_s * far_hops)

    def _theta(self) -> Floats:
        *positive, gamma = astuple(self)
        low, high = _GAMMA
        share = min(max((gamma - low) / (high - low), 1e-6), 1 - 1e-6)
        theta = np.array([*np.log(positive), np.log(share / (1 - share))])
        theta[_FAR] -= theta[_NEAR]
        theta[_NEAR] -= _TIED * theta[0]
        return theta


# Of theta: a node's bytes over FLOPs of a sample to the power of _TIED, and the network's bytes over the node's: both are the gradient
_NEAR, _FAR = 2, 3
# A sample's F is what its time says at _EFFICIENCY. Code that is not tuned reaches 60 % to 0.1 % of the peak (two sigma, a factor of 25
# each way: s = 1.6), besides the spread of jobs' work (s = 2.7, _SIGMA). So 2.7^2 / (2.7^2 + 1.6^2) of a larger F, in the logarithm,
# is a larger model.
_TIED = 0.75
_PRIOR = ThroughputModel()
# One sigma of each constant's logarithm (gamma: log-odds) over all kinds of jobs. Two sigma from the middle lie
# - F: a recommender (0.1 GFLOP) and 1 B parameters on 1,024 tokens (6 TFLOP), with ResNet-50 (12 GFLOP) and BERT at 128 tokens (65) in
#   the middle; the models of larger jobs are named, or known to their adapters
# - a: 3 ms (a few hundred kernels) and 120 ms (thousands, and Python between them)
# - V: 4 bytes of gradient, sent twice by a ring's all-reduce, for 6 FLOPs and each use of a weight; a sample uses it 5 times (a
#   recommender) and 8,192 (a token each), in the middle 200 (ResNet-50 160, ViT-B/16 197, BERT at 128 tokens 128). Between nodes a GPU
#   sends all of it or, of 8 GPUs that share their ports, an eighth: the root of an eighth in the middle, one sigma about a factor of
#   8^(1/4), and a little for figures of networks that are not measured.
_SIGMA = np.array([2.7, 0.9, 1.85, 0.6, 1.5, 1.5, 1.0])
_Configuration = tuple[GpuFigures, Shape, int, int, int, Exchange]


def _figures(gpu: GpuFigures) -> Floats:
    """Return the figures of `gpu` for `_columns`, (4, 1)."""
    inter_gbs = min(gpu.intra_gbs, gpu.inter_gbs)
    return np.array([gpu.peak_tflops, gpu.intra_gbs, inter_gbs, gpu.link_efficiency], dtype=np.float64)[:, None]


def _sends(option: Exchange) -> tuple[float, float, float]:
    """Return (share of V, share of the hops, 1 where the sync follows computation in place of Pollux's sum of powers)."""
    if option.kind == "local":
        return 1.0 / option.period, 1.0 / option.period, 1.0
    return (0.5, 1.0, 0.0) if option.kind == "compressed" else (1.0, 1.0, 0.0)


def volume_share(option: Exchange) -> float:
    """Return the share of the bytes that replicas send in a step that `option` leaves."""
    return _sends(option)[0]


def _sending(option: Exchange) -> Floats:
    """Return the `sends` of `option` for `_columns`, (3, 1)."""
    return np.array(_sends(option), dtype=np.float64)[:, None]


def _terms(points: Sequence[_Configuration]) -> Floats:
    """Return what the constants are multiplied with, (7, N), see `_columns`."""
    figures = np.concatenate([_figures(gpu) for gpu, *_ in points], axis=1)
    counts = [(shape.gpus, shape.nodes, dp, micro, passes) for _, shape, dp, micro, passes, _ in points]
    sends = np.array([_sends(option) for *_, option in points], dtype=np.float64)
    return _columns(figures, np.array(counts, dtype=np.int64).T, sends.T)


def _columns(figures: Floats, counts: Ints, sends: Floats) -> Floats:
    """Return the factors of the constants, (7, N).

    They are samples/rate, node and network bytes' and hops' factors, passes, and whether the sync follows computation. `figures`:
    (4, N or 1) TFLOP/s, GB/s within a node and between nodes, link efficiency. `counts`: (5, N) GPUs, nodes, replicas,
    micro-batch, passes. `sends`: (3, N or 1), see `_sends`.
    """
    tflops, intra, inter, link = figures
    gpus, nodes, replicas, micro_batch, passes = counts
    volume, share, exposed = sends
    rate = tflops * 1e12 * _EFFICIENCY * np.maximum(1, gpus // replicas)
    across = ((nodes > 1) & (replicas > 1)).astype(np.float64)
    inside = ((nodes == 1) & (replicas > 1)).astype(np.float64)
    hops = share * np.maximum(0, replicas - 2)
    near, far = inside * volume / (intra * 1e9 * link), across * (volume / (inter * 1e9 * link))
    exposed = np.broadcast_to(exposed, near.shape)
    return np.array([micro_batch / rate, near, far, inside * hops, across * hops, passes, exposed], dtype=np.float64)


def _steps(theta: Floats, terms: Floats) -> Floats:
    """Return seconds, (N,) of constants (7,), or (M, N) of M sets of them, (7, M, 1)."""
    flops, overhead, near, far, near_hop, far_hop = np.exp(theta[:6])
    near = flops**_TIED * near
    far = near * far
    low, high = _GAMMA
    gamma = low + (high - low) / (1 + np.exp(-theta[6]))
    work, inside, across, near_hops, far_hops, passes, exposed = terms
    grad = overhead + flops * work
    sync = near * inside + far * across + near_hop * near_hops + far_hop * far_hops
    larger = np.maximum(grad, sync)
    both = larger * ((grad / larger) ** gamma + (sync / larger) ** gamma) ** (1 / gamma)
    if np.any(exposed):
        both = np.where(exposed > 0, grad + sync, both)
    return np.asarray((passes - 1) * grad + both)


@dataclass(frozen=True)
class ThroughputPrior:
    """The belief about a job's constants before its first step: normal on their logarithms (gamma: log-odds), (7,) each."""

    mean: tuple[float, ...] = tuple(_PRIOR._theta().tolist())
    sigma: tuple[float, ...] = tuple(_SIGMA.tolist())


PRIOR = ThroughputPrior()


@dataclass(frozen=True)
class ThroughputFit:
    """The most probable constants and what the measurements leave open of them.

    `theta` (7,) and `covariance` (7, 7) of the logarithms (gamma: log-odds), `information` (7, 7): the measurements' own part of
    the covariance's inverse. `misfit`: one sigma of what the formula misses at the measurements, relative.
    """

    model: ThroughputModel
    theta: Floats = field(compare=False)
    covariance: Floats = field(compare=False)
    information: Floats = field(compare=False)
    misfit: float = 0.0
    #: (GPU type, GPUs, nodes, replicas, micro-batch, passes, exchange) that were measured -> log(predicted / measured)
    known: Mapping[tuple[str, int, int, int, int, int, Exchange], float] = field(default_factory=dict)

    def sigmas(self, gpu: GpuFigures, counts: Ints, option: Exchange = EXACT) -> Floats:
        """Return one sigma of log(measured / predicted) of the steps that `ThroughputModel.steps_s` predicts, (N,).

        The further a step is from what was measured, the more the open constants matter. A step that was measured varies by its
        noise: what the formula misses there is no reason to measure it once more.
        """
        spread = _spread(self.theta, self.covariance, _columns(_figures(gpu), counts, _sending(option)))
        sigma = np.sqrt(spread**2 + self.misfit**2)
        for i, configuration in enumerate(counts.T.tolist() if self.known else ()):
            if (gpu.gpu_type, *configuration, option) in self.known:
                sigma[i] = NOISE
        return np.asarray(sigma)


def _spread(theta: Floats, covariance: Floats, terms: Floats) -> Floats:
    """Return one sigma of the logarithm of each step, (N,), by steps of one sigma in each direction of the constants.

    Where synchronisation is hidden behind computation its slope is zero, but a few times as many bytes would not be hidden (as in
    an unscented transform, Julier and Uhlmann 2004; equal to the linear rule where the step is linear).
    """
    variances, directions = np.linalg.eigh(covariance)
    root = (directions * np.sqrt(np.maximum(variances, 0.0))).T
    sets = np.concatenate([theta[None, :], theta + root, theta - root])
    at = np.log(_steps(sets.T[..., None], terms))
    return np.asarray(np.sqrt(np.sum((at[1:] - at[0]) ** 2, axis=0) / 2))


def _log_slopes(theta: Floats, terms: Floats) -> Floats:
    """Return the slopes of `log_slopes` as (N, 7)."""
    return log_slopes(_steps, theta, terms).T


def fit_throughput(
    measured: tuple[Measurement, ...], gpus: tuple[GpuFigures, ...], prior: ThroughputPrior = PRIOR
) -> ThroughputModel:
    """Return the job's constants after its measured steps, see `fit`."""
    return fit(measured, gpus, prior).model


# a row of measurements counts once, whatever reports are behind it
_Key = tuple[tuple[tuple[Plan, Shape, float], ...], tuple[GpuFigures, ...], "ThroughputPrior"]
FitOf = tuple[tuple[Measurement, ...], tuple[GpuFigures, ...], ThroughputPrior]  # the arguments of a fit
_KEPT = 2048  # fits, the latest asked for
_fits: dict[_Key, ThroughputFit] = {}


def _key(measured: Iterable[Measurement], gpus: tuple[GpuFigures, ...], prior: ThroughputPrior) -> _Key:
    return tuple((m.plan, m.shape, m.step_s) for m in measured), gpus, prior


def fit(
    measured: tuple[Measurement, ...], gpus: tuple[GpuFigures, ...], prior: ThroughputPrior = PRIOR
) -> ThroughputFit:
    """Fit the job's constants to its measured steps.

    `gpus[i]` are the figures of the type that `measured[i]` ran on. The result holds the most probable values: normal priors on
    the logarithms, and a robust loss on log(measured / predicted), so that an odd measurement moves them little. Without
    measurements the result is the priors. The uncertainty that remains is Laplace's approximation there.
    """
    key = _key(measured, gpus, prior)
    if (cached_fit := _fits.pop(key, None)) is not None:
        return _keep(key, cached_fit)
    points = _points(measured, gpus)
    if points:
        job = _to_fit(measured, points, prior)
        return _keep(key, _fit_around(most_probable([job], _steps, NOISE)[0], job, points))
    start, sigma = np.array(prior.mean), np.array(prior.sigma)
    model = _PRIOR if prior == PRIOR else _model(start)
    empty = np.zeros((len(start), len(start)))
    return _keep(key, ThroughputFit(model, start, np.diag(sigma**2), empty, _MISFIT))


def fit_ahead(inputs: Iterable[FitOf]) -> None:
    """Compute each `fit` that is about to be asked for, all at once.

    This takes a third of the time that one after another takes. A fit that fails is left to its own `fit` call.
    """
    jobs: dict[_Key, tuple[ToFit, list[_Configuration]]] = {}
    keyed = {_key(*one): one for one in inputs}
    for key, (measured, gpus, prior) in islice(((k, one) for k, one in keyed.items() if k not in _fits), _KEPT // 2):
        with suppress(ArithmeticError, ValueError):  # a job may report anything
            if points := _points(measured, gpus):
                jobs[key] = _to_fit(measured, points, prior), points
    with suppress(np.linalg.LinAlgError):
        optima = most_probable([job for job, _ in jobs.values()], _steps, NOISE)
        for (key, (job, points)), theta in zip(jobs.items(), optima, strict=True):
            _keep(key, _fit_around(theta, job, points))


def _keep(key: _Key, result: ThroughputFit) -> ThroughputFit:
    _fits[key] = result
    for oldest in list(_fits)[: len(_fits) - _KEPT] if len(_fits) > _KEPT else ():  # another thread may do so too
        _fits.pop(oldest, None)
    return result


def _fit_around(theta: Floats, job: ToFit, points: Sequence[_Configuration]) -> ThroughputFit:
    """Return the fit of the most probable constants, with what the measurements leave open of them."""
    terms, log_step_s, sigma = job.terms, job.wanted, job.sigma
    off = np.log(_steps(theta, terms)) - log_step_s
    jacobian = _log_slopes(theta, terms)
    misfit, precision = _MISFIT, np.diag(1 / sigma**2)
    for _ in range(3):
        weight = 1 / (misfit**2 * np.sqrt(1 + (off / misfit) ** 2))
        information = (jacobian * weight[:, None]).T @ jacobian
        covariance: Floats = np.linalg.inv(information + precision).astype(np.float64)
        # the constants take up a part of what the formula misses: what they are free to fit counts as not measured
        free = len(off) - float(np.trace(covariance @ information))
        residual = float(np.sum(np.minimum(off**2, (ODD * misfit) ** 2)))
        misfit = math.sqrt((_MISFIT_STEPS * _MISFIT**2 + residual) / (_MISFIT_STEPS + max(free, 0.0)))
    keys = [
        (gpu.gpu_type, shape.gpus, shape.nodes, dp, micro, passes, option)
        for gpu, shape, dp, micro, passes, option in points
    ]
    off_by_configuration = dict(zip(keys, off.tolist(), strict=True))
    return ThroughputFit(_model(theta), theta, covariance, information, misfit, off_by_configuration)


def _points(measured: Sequence[Measurement], gpus: Sequence[GpuFigures]) -> list[_Configuration]:
    return [
        (gpu, m.shape, m.plan.dp, m.plan.micro_batch, m.plan.micro_batches, parse_exchange(m.plan.exchange, "plan"))
        for m, gpu in zip(measured, gpus, strict=True)
        if m.step_s > 0 and m.plan.micro_batches > 0
    ]


def _to_fit(measured: Sequence[Measurement], points: Sequence[_Configuration], prior: ThroughputPrior) -> ToFit:
    log_step_s = np.log([m.step_s for m in measured if m.step_s > 0 and m.plan.micro_batches > 0])
    terms, mean = _terms(points), np.array(prior.mean)
    # a long step is computation or overhead, and the way from one to the other is uphill: here it is computation
    computing = mean.copy()
    computing[0] = float(np.median(log_step_s - np.log(terms[0] * terms[5])))
    return ToFit(terms, log_step_s, mean, np.array(prior.sigma), (computing,))


def _model(theta: Floats) -> ThroughputModel:
    *positive, odds = (float(v) for v in theta)
    low, high = _GAMMA
    gamma = low + (high - low) / (1 + np.exp(-odds))
    positive[_NEAR] += _TIED * positive[0]
    positive[_FAR] += positive[_NEAR]
    return ThroughputModel(*[float(np.exp(v)) for v in positive] + [float(gamma)])
