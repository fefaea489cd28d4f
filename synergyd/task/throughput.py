"""Pollux's throughput model of a data-parallel job (Qiao et al., OSDI 2021, section 3.2), fitted to what it has reported.

    T_iter = (passes - 1) T_grad + (T_grad^gamma + T_sync^gamma)^(1/gamma)
    T_grad = a + F * micro_batch / rate            T_sync = V / link + L (K - 2), nothing where K = 1

K replicas; `rate` and `link` are the hardware's figures, so that what is learnt on one GPU type carries over to others.
F (FLOPs a sample), a (seconds), V (bytes), L (seconds) each within a node and between nodes, and gamma are the job's own:
priors first, then the most probable values after its measured steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass
from functools import lru_cache

import numpy as np
from scipy.optimize import least_squares

from synergyd.records import Measurement, Shape
from synergyd.task.arrays import Floats
from synergyd.task.hardware import GpuFigures

_EFFICIENCY = 0.3  # of peak, for code that nobody tuned
_NOISE = 0.03  # one sigma of a measured step, relative
_GAMMA = (1.0, 10.0)  # Pollux's bounds: communication after computation, or hidden behind it


@dataclass(frozen=True)
class Throughput:
    """A job's own constants. Defaults: a model of 100 M parameters that needs 25 GFLOP a sample, between ResNet-50 (12)
    and BERT-base at 128 tokens (65); gradients in fp32, all-reduced."""

    sample_flops: float = 25e9
    overhead_s: float = 0.01
    node_bytes: float = 8e8
    network_bytes: float = 1.5e8  # of each GPU's share of the network: a node's GPUs use its ports together
    node_hop_s: float = 1e-3
    network_hop_s: float = 2e-3
    gamma: float = 3.0

    def step_s(self, gpu: GpuFigures, shape: Shape, replicas: int, micro_batch: int, passes: int) -> float:
        """Seconds of one step of `passes` micro-batches a replica, on `shape`."""
        return float(_steps(np.array([self._theta()]).T, _terms([(gpu, shape, replicas, micro_batch, passes)]))[0])

    def _theta(self) -> Floats:
        *positive, gamma = astuple(self)
        low, high = _GAMMA
        share = min(max((gamma - low) / (high - low), 1e-6), 1 - 1e-6)
        return np.array([*np.log(positive), np.log(share / (1 - share))])


_PRIOR = Throughput()
# one sigma of each constant's logarithm (gamma: log-odds) over all kinds of jobs
_SIGMA = np.array([2.0, 1.5, 2.0, 2.0, 1.5, 1.5, 1.0])
_Point = tuple[GpuFigures, Shape, int, int, int]


def _terms(points: Sequence[_Point]) -> Floats:
    """What the constants are multiplied with, (8, N): samples/rate, node and network bytes' and hops' factors, passes."""
    columns = []
    for gpu, shape, replicas, micro_batch, passes in points:
        rate = gpu.peak_tflops * 1e12 * _EFFICIENCY * max(1, shape.gpus // replicas)
        across = float(shape.nodes > 1 and replicas > 1)
        inside = float(shape.nodes == 1 and replicas > 1)
        near = 1 / (gpu.intra_gbs * 1e9 * gpu.link_efficiency)
        far = 1 / (min(gpu.intra_gbs, gpu.inter_gbs) * 1e9 * gpu.link_efficiency)
        hops = max(0, replicas - 2)
        columns.append([micro_batch / rate, inside * near, across * far, inside * hops, across * hops, passes])
    return np.array(columns, dtype=np.float64).T


def _steps(theta: Floats, terms: Floats) -> Floats:
    flops, overhead, near, far, near_hop, far_hop = np.exp(theta[:6])
    low, high = _GAMMA
    gamma = low + (high - low) / (1 + np.exp(-theta[6]))
    work, inside, across, near_hops, far_hops, passes = terms
    grad = overhead + flops * work
    sync = near * inside + far * across + near_hop * near_hops + far_hop * far_hops
    larger = np.maximum(grad, sync)
    both = larger * ((grad / larger) ** gamma + (sync / larger) ** gamma) ** (1 / gamma)
    return np.asarray((passes - 1) * grad + both)


@lru_cache(maxsize=512)
def fitted(measured: tuple[Measurement, ...], gpus: tuple[GpuFigures, ...]) -> Throughput:
    """The job's constants after its measured steps; `gpus[i]` are the figures of the type that `measured[i]` ran on.

    Most probable values: normal priors on the logarithms around `Throughput()`, and a robust loss on log(measured /
    predicted), so that an odd measurement moves them little. Without measurements the priors.
    """
    points = [
        (gpu, m.shape, m.plan.dp, m.plan.micro_batch, m.plan.micro_batches)
        for m, gpu in zip(measured, gpus, strict=True)
        if m.step_s > 0 and m.plan.micro_batches > 0
    ]
    if not points:
        return _PRIOR
    terms = _terms(points)
    wanted = np.log([m.step_s for m in measured if m.step_s > 0 and m.plan.micro_batches > 0])
    start = _PRIOR._theta()

    def residuals(theta: Floats) -> Floats:
        off = (np.log(_steps(theta, terms)) - wanted) / _NOISE
        # soft-L1 of the measurements alone: the priors stay quadratic
        return np.concatenate([np.sign(off) * np.sqrt(2 * (np.sqrt(1 + off**2) - 1)), (theta - start) / _SIGMA])

    found = least_squares(residuals, start, max_nfev=200).x
    *positive, odds = (float(v) for v in found)
    low, high = _GAMMA
    gamma = low + (high - low) / (1 + np.exp(-odds))
    return Throughput(*[float(np.exp(v)) for v in positive] + [float(gamma)])
