"""Statistical efficiency of a batch size, goodput, and the batch sizes worth trying."""

from __future__ import annotations

import numpy as np

from synergyd.jobmodel.model.arrays import Floats, Ints

#: the noise scale of a job that has reported none: examples beyond the smallest batch of its range count as nothing. The batch then stays
#: as small as a size allows, and a size that no plan with the very smallest batch divides takes the next larger one.
UNKNOWN_NOISE = 0.0


def efficiency(batch: Ints | Floats, noise_scale: float | Floats, smallest: float) -> Floats:
    """Return EFF(M) = (phi + M0) / (phi + M): progress of one sample at batch M relative to one at M0, in (0, 1] for M >= M0.

    phi is the gradient noise scale tr(Sigma)/|G|^2 in sequences (McCandlish et al. 2018, eq. 2.8), M0 = `smallest` the
    low end of the job's range; the ratio is Pollux's (Qiao et al., OSDI 2021).
    A larger phi (noisier gradients, later in training) makes large batches cheaper. M * EFF(M) is rates.equivalent_sequences(M0, M, phi),
    which runs without numpy inside jobs and rounds differently in the last digit.
    """
    return (noise_scale + smallest) / (noise_scale + np.asarray(batch, dtype=np.float64))


def noise_scale_at(batch: Ints | Floats, noise_scale: float, present: float, smallest: float) -> Floats:
    """Return the noise scale, in sequences, that a job is expected to have at each `batch`: at its `present` one it has `noise_scale`.

    The noise scale is inverse to the temperature of SGD, rate / batch (McCandlish et al. 2018, appendix C). The rate grows with
    AdaScale's gain M/M0 EFF(M) (synergy_core.rates), which is less than the batch does, so phi(M) EFF(M) is one number c:
    phi^2 + (M0 - c) phi - c M = 0. Without that, a job that runs at a small batch finds large ones less useful than they are, and
    stays there. Error of EFF at larger batches of Pollux's five applications, RMS, with one phi and with this: imagenet 0.155, 0.124;
    cifar10 0.181, 0.108; bert 0.154, 0.117; deepspeech2 0.161, 0.081; yolov3 0.069, 0.117 (benchmark noise_at_batches).
    """
    constant = noise_scale * float(efficiency(np.asarray(present), noise_scale, smallest))
    half, product = (constant - smallest) / 2, constant * np.asarray(batch, dtype=np.float64)
    root = np.sqrt(half**2 + product)
    return np.asarray(half + root if half >= 0 else product / (root - half))  # without cancellation


def efficiency_at(batch: int, noise_scale: float, present: int, smallest: int) -> float:
    """Return EFF at one `batch` of a job that has `noise_scale` at its `present` one."""
    at = np.array([batch])
    return float(efficiency(at, noise_scale_at(at, noise_scale, present, smallest), smallest)[0])


def goodput(
    throughput: Floats, batch: Ints | Floats, noise_scale: float | None, smallest: float, present: float | None = None
) -> tuple[Floats, Floats]:
    """Return (goodput, efficiency) of `throughput` sequences/s at `batch`: goodput is their product (Pollux).

    Without a noise scale the batch is one fixed number, so efficiency is 1 for every plan. `present`: the batch at which the job has
    that noise scale; None: it is the same at all batches.
    """
    if noise_scale is None:
        return throughput, np.ones_like(throughput)
    own = noise_scale if present is None else noise_scale_at(batch, noise_scale, present, smallest)
    share = efficiency(batch, own, smallest)
    return throughput * share, share


def best_batch(fixed_s: Floats, per_sequence_s: Floats, noise_scale: float) -> Floats:
    """Return the batch of highest goodput where a step of M sequences takes fixed_s + per_sequence_s * M seconds, each (N,).

    M / (a + b M) * 1 / (phi + M) has its one maximum at sqrt(a phi / b): the derivative's numerator is a phi - b M^2. Infinite
    where b <= 0 (a larger batch is free), 0 where a <= 0.
    """
    a, b = np.maximum(fixed_s, 0.0), np.maximum(per_sequence_s, 0.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(b > 0, np.sqrt(a * noise_scale / b), 1e15)


def batch_points(low: int, high: int, points: int) -> Floats:
    """Return up to `points` batch sizes in [low, high], geometric as in Pollux's search, both ends included.

    Callers round them to multiples.
    """
    if low >= high or points < 2:
        return np.array([float(low)])
    return np.unique(np.geomspace(low, high, min(points, high - low + 1)))
