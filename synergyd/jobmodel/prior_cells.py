"""The Cells that a job without a `#SYNERGY` line would have, by the forecast's prior of speed-ups: nothing of it was measured. Pure."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import lru_cache
from statistics import NormalDist, fmean, pstdev

from synergy_core.records import Cell, Cluster, Directive, Job, Plan, Shape

from synergyd.jobmodel.shapes import job_shapes
from synergyd.jobmodel.speed_up import MEASURED, SpeedUp

_QUANTILES = 15  # equally likely speed-ups that stand for the prior
#: the spread of a job's logit(overhead) in all: among the jobs of a cluster, and of what is not known of the cluster
_SPREAD = math.hypot(MEASURED.spread, MEASURED.doubt)
#: the part of a prediction's variance that all jobs of a cluster share, so that it does not average out
SHARED_VARIANCE = MEASURED.doubt**2 / _SPREAD**2


def _curves() -> tuple[SpeedUp, ...]:
    logits = (MEASURED.centre + _SPREAD * NormalDist().inv_cdf((i + 0.5) / _QUANTILES) for i in range(_QUANTILES))
    return tuple(SpeedUp(overhead=1.0 / (1.0 + math.exp(-logit))) for logit in logits)


_CURVES = _curves()
_KEPT = 8192


def hypothetical(job: Job) -> Job:
    """Return the job as if its script had a `#SYNERGY` line with nothing in it, and kept its GPU type."""
    return replace(job, directive=Directive(gpu_types=(job.shape.gpu_type,) if job.shape.gpu_type else ()), fixed="")


def prior_cells(job: Job, cluster: Cluster) -> tuple[Cell, ...]:
    """Return a Cell for each shape that the hypothetical `job` could have: goodput relative to its requested size, with its sigma."""
    shapes = [shape for of_type in job_shapes(job, cluster).values() for shape in of_type]
    return tuple(_cell(shape, job.asked) for shape in shapes)


@lru_cache(_KEPT)  # most jobs of a queue ask for the same few sizes
def _cell(shape: Shape, asked_shape: Shape) -> Cell:
    speeds = [curve.speed(shape.gpus / asked_shape.gpus, asked_shape.nodes, shape.nodes) for curve in _CURVES]
    speed = fmean(speeds)
    return Cell(
        shape=shape,
        plan=Plan(dp=shape.gpus, global_batch=shape.gpus),
        throughput=speed,
        efficiency=1.0,
        goodput=speed,
        step_s=1.0 / speed,
        memory_bytes=0,
        uncertainty=pstdev(speeds) / speed,
    )
