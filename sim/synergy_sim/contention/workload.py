"""The paper's workload (arXiv 2002.10105, section V): four models, six job sizes, uniform arrivals.

Times are milliseconds, messages and memory MB. The job mix is 80/14/26/30/8/2 jobs of 1/2/4/8/16/32 GPUs; every job trains one of
the four models for a uniform number of iterations and arrives uniformly within the window.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

MIX = ((1, 80), (2, 14), (4, 26), (8, 30), (16, 8), (32, 2))


@dataclass(frozen=True)
class Network:
    """A model: its gradients in MB, forward and backward pass in ms, GPU memory of one worker in MB."""

    name: str
    gradient_mb: float
    forward_ms: float
    backward_ms: float
    memory_mb: float


NETWORKS = (
    Network("vgg16", 526.4, 36.0, 54.0, 4527.0),
    Network("resnet50", 99.2, 25.0, 37.0, 3213.0),
    Network("inception-v3", 103.0, 35.0, 52.0, 3291.0),
    Network("lstm", 251.8, 32.0, 47.0, 2751.0),
)


@dataclass(frozen=True)
class JobSpec:
    """One job: `gpus` workers, each iteration is forward, backward, then one all-reduce of `message_mb` over all of them."""

    job_id: int
    network: str
    gpus: int
    iterations: int
    arrival_ms: float
    forward_ms: float
    backward_ms: float
    message_mb: float
    memory_mb: float = 0.0

    @property
    def step_ms(self) -> float:
        """Return the compute time of one iteration in ms."""
        return self.forward_ms + self.backward_ms


def paper_workload(
    seed: int,
    jobs: int = 160,
    scale: float = 1000.0,
    load: float = 1.0,
    message: float = 1.0,
) -> tuple[JobSpec, ...]:
    """Return `jobs` jobs of the paper's mix, in order of arrival.

    Iterations are uniform in [scale, 6*scale], arrivals in [0, 1.2*scale/load] s: the paper's numbers at scale 1000. A smaller scale
    shrinks both, which keeps the load and shortens the run. `message` multiplies every gradient's size.
    """
    rng = np.random.default_rng(seed)
    total = sum(count for _, count in MIX)
    bounds = np.cumsum([count for _, count in MIX]) * jobs / total
    arrivals = []
    for i in range(jobs):
        gpus = MIX[int(np.searchsorted(bounds, i, side="right"))][0]
        network = NETWORKS[int(rng.integers(len(NETWORKS)))]
        iterations = int(rng.integers(round(scale), round(6 * scale) + 1))
        arrival = float(rng.uniform(0.0, 1200.0 * scale / load))
        arrivals.append((arrival, gpus, network, iterations))
    arrivals.sort(key=lambda row: (row[0], row[1]))
    return tuple(
        JobSpec(i, n.name, gpus, iterations, at, n.forward_ms, n.backward_ms, n.gradient_mb * message, n.memory_mb)
        for i, (at, gpus, n, iterations) in enumerate(arrivals)
    )
