"""The speed of a job on other GPUs than it asked for, where nobody measured it.

Of a step at the size asked for, the share `overhead` takes as long on any number of GPUs (exchanging gradients, latencies, what runs
on one process); the rest is divided among the GPUs. With A GPUs asked for, a step on K of them takes, relative to that,

    (1 - o) A / K + o h        h = 1 on as many nodes as were asked for (one, or several)

`NETWORK` is h's factor between one node and several. A batch that may grow is worked off in fewer steps, each example worth
(noise + 1) / (noise + b) of one at the batch asked for, at b times that batch (Pollux, OSDI 2021).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

#: An exchange over the network against one inside a node: not measured by the sources of the prior, so assumed.
NETWORK = 2.0
MOST_BATCH = 4.0  # times the batch asked for: the range of Pollux's applications is 4 to 32 times


class Draw(Protocol):
    """A source of chance, such as random.Random."""

    def gauss(self, mu: float, sigma: float) -> float: ...


@dataclass(frozen=True, kw_only=True)
class SpeedUp:
    """One job's curve. `noise_scale` in batches asked for; None: the batch is fixed. `most`, `least`: times the size asked for."""

    overhead: float
    noise_scale: float | None = None
    least: float = 0.0
    most: float = math.inf

    def speed(self, times: float, asked_nodes: int, nodes: int) -> float:
        """Return the speed on `times` the GPUs asked for, on `nodes` nodes, relative to that on those asked for."""
        spread = (NETWORK if nodes > 1 else 1.0) / (NETWORK if asked_nodes > 1 else 1.0)
        fixed = self.overhead * spread
        plain = 1.0 / ((1.0 - self.overhead) / times + fixed)
        if self.noise_scale is None or times <= 1.0:
            return plain
        batch = min(times, MOST_BATCH)
        worth = (self.noise_scale + 1.0) / (self.noise_scale + batch)
        return max(plain, batch * worth / ((1.0 - self.overhead) * batch / times + fixed))


@dataclass(frozen=True, kw_only=True)
class SpeedUpPrior:
    """What is assumed of the jobs of a cluster that never reported.

    A job's logit(overhead) is normal around the cluster's mean with `spread`; that mean is normal around `centre` with `doubt`.
    """

    name: str
    text: str
    centre: float
    spread: float
    doubt: float
    noise_scale: float | None = None  # median, in batches asked for
    least: float = 0.0
    most: float = math.inf

    def of_cluster(self, draw: Draw) -> float:
        """Draw the mean of one cluster's jobs."""
        return draw.gauss(self.centre, self.doubt)

    def of_job(self, mean: float, draw: Draw) -> SpeedUp:
        """Draw the curve of one job on a cluster with that mean."""
        overhead = 1.0 / (1.0 + math.exp(-draw.gauss(mean, self.spread)))
        noise = None if self.noise_scale is None else self.noise_scale * math.exp(draw.gauss(0.0, 1.0))
        return SpeedUp(overhead=overhead, noise_scale=noise, least=self.least, most=self.most)


# Gavel's table of measured throughputs (OSDI 2020, simulation_throughputs.json): for 168 pairs of job type and GPUs (2, 4, 8; V100, P100,
# K80), o = 1 - speed-up / GPUs, held within [0.02, 0.98], has logits of mean -1.39 and standard deviation 1.44; the means of the nine
# groups of GPU type and size have a standard deviation of 0.62, and within a group it is 1.28. So half of all jobs have an overhead
# between 10 and 38 %.
MEASURED = SpeedUpPrior(
    name="measured",
    text="speed-ups as Gavel measured them for 168 pairs of job and GPUs; batches fixed",
    centre=-1.39,
    spread=1.28,
    doubt=0.62,
)
# One standard deviation of all 168 up: a median of 51 %, as of jobs on slow networks.
CAUTIOUS = SpeedUpPrior(
    name="poor",
    text="poor speed-ups (one sigma worse), sizes from 1/2 to 2 times the requested one",
    centre=0.05,
    spread=1.28,
    doubt=0.62,
    least=0.5,
    most=2.0,
)
# Pollux's applications train with noise scales of some batches up to hundreds; 4 is at the low end.
GROWING = SpeedUpPrior(
    name="batch grows",
    text="as measured, and batches may grow to 4 times at a noise scale of 4 batches",
    centre=-1.39,
    spread=1.28,
    doubt=0.62,
    noise_scale=4.0,
)
PRIORS = (MEASURED, CAUTIOUS, GROWING)
