"""Jobs generated from documented distributions: `--trace generate:JOBS[,HOURS]` runs with no data at all.

arrivals: a Poisson process over HOURS (8), its rate through the day 1 + 0.5 sin(2 pi (t - 6 h) / 24 h) of the mean;
GPUs asked for: 1, 2, 4, 8, 16, 32 with chances .50 .15 .16 .12 .05 .02 (close to Jeon et al., ATC 2019, figure 2),
  capped to half of the cluster;
seconds at that size: log-normal, median 15 min, sigma 1.5 (that paper's spread of run times), from 60 s to 3 days;
parallel share: uniform in [0.95, 0.999]; network cost: log-uniform in [0.01, 0.3] (see sim/scaling_truth.py);
batch: 32 sequences a GPU at the size asked for, fixed; a step of 0.2 to 2 s there, log-uniform.
"""

from __future__ import annotations

import math
import random

from synergy_core.errors import UsageError

from synergy_sim.records import PlacedGpus, TraceJob
from synergy_sim.scaling_truth import ScalingTruth

_SIZES = ((1, 0.50), (2, 0.15), (4, 0.16), (8, 0.12), (16, 0.05), (32, 0.02))
_DAY_S = 86400.0


def generate(text: str, gpu_type: str, gpus: int, gpus_per_node: int, seed: int) -> tuple[TraceJob, ...]:
    """Generate the jobs of `JOBS[,HOURS]` for a cluster of `gpus`. Raises UsageError."""
    first, comma, second = text.partition(",")
    try:
        count, hours = int(first), float(second) if comma else 8.0
    except ValueError:
        raise UsageError("--trace", f"generate:{text} is not JOBS or JOBS,HOURS", "such as generate:200,8") from None
    if not 1 <= count <= 1_000_000 or not 0 < hours <= 10_000:
        raise UsageError("--trace", f"generate:{text} is out of bounds", "1 to 1000000 jobs in up to 10000 hours")
    draw = random.Random(seed)
    times: list[float] = []
    while len(times) < count:
        # thinning: what is drawn uniformly stays with the chance that its hour has
        at = draw.uniform(0.0, hours * 3600)
        if draw.random() * 1.5 <= 1 + 0.5 * math.sin(2 * math.pi * (at / _DAY_S - 0.25)):
            times.append(at)
    jobs = []
    for i, at in enumerate(sorted(times)):
        size = draw.choices([s for s, _ in _SIZES], [w for _, w in _SIZES])[0]
        while size > max(1, gpus // 2) or (size > gpus_per_node and size % gpus_per_node):
            size //= 2
        seconds = min(max(900 * math.exp(draw.gauss(0.0, 1.5)), 60.0), 3 * _DAY_S)
        each = min(size, gpus_per_node)
        truth = ScalingTruth(
            (gpu_type,),
            seconds,
            PlacedGpus(gpu_type, (each,) * (size // each)),
            32 * size,
            parallel=draw.uniform(0.95, 0.999),
            network=0.01 * math.exp(draw.uniform(0.0, math.log(30))),
            step_s=0.2 * math.exp(draw.uniform(0.0, math.log(10))),
        )
        jobs.append(
            TraceJob(f"job-{i}", "generated", round(at, 3), size, 32 * size, truth, f"generate:{text}", gpu_type)
        )
    return tuple(jobs)
