"""Workloads of the Sia (SOSP 2023) artifact: Pollux's format, on a cluster of several GPU types with tables for each.

A workload (philly, saturn, newtrace) has the columns name, time, application, num_replicas, batch_size. The folder of an application
holds placements-CLUSTER.csv and scalability-CLUSTER.csv for each of the artifact's clusters, and validation-BATCH.csv for all.

Assumptions:
  - the cluster of simulator_config.py: 6 nodes of 4 T4 (aws), 2 of 8 A100-40 (dgx-ext), 3 of 8 RTX 2080 Ti (rtx);
  - what a placement of one type takes is as in sim/pollux_truth.py. A micro-batch that does not fit a type is worked off in more passes
    there; the largest that is told to the scheduler is that of the type which holds most;
  - no job asks for a type; the size asked for counts on the first type that holds it;
  - each start costs what applications.py says of its application (rescale_time), on the new GPUs; checkpoints and requeues cost
    nothing besides;
  - a step takes SLOWDOWNS times as long as the tables say, as in the artifact, which was fitted by them to runs on its authors' cluster
    (simulator_config.py; job.py divides the progress by them on every type). Reports say what a step takes, so the scheduler sees it;
  - gpt_pmp, a job of fixed pipelines that no workload has, is not read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from synergy_core.records import Plan, Shape

from synergy_sim.pollux_truth import PolluxTruth, read_application
from synergy_sim.records import Costs, Floats, PlacedGpus, TraceJob, TrainingSpeed
from synergy_sim.tables import application_folder
from synergy_sim.traces import pollux

CLUSTER = {"t4": (6, 4), "a100-40": (2, 8), "rtx2080ti": (3, 8)}
_TABLES = {"t4": "aws", "a100-40": "dgx-ext", "rtx2080ti": "rtx"}
COSTS = Costs(first_start_s=30.0, checkpoint_s=0.0, requeue_s=0.0, start_s=30.0)
_START_S = {"cifar10": 50.0, "deepspeech2": 25.0, "bert": 120.0, "yolov3": 80.0, "imagenet": 250.0, "ncf": 15.0}
SLOWDOWNS = {"cifar10": 1.8, "imagenet": 1.2, "yolov3": 1.2, "bert": 1.2, "deepspeech2": 1.2, "ncf": 1.5}
# applications.py: all that one of its GPUs holds, below what was measured
_LARGEST_LOCAL = {("deepspeech2", "rtx2080ti"): 57}


@dataclass(frozen=True)
class TypedTruth:
    """A `Truth` that is another one on each GPU type; stages, batches and gradient statistics are the same on all.

    `slowdown`: a step's time over that of the tables.
    """

    by_type: Mapping[str, PolluxTruth]
    slowdown: float = 1.0

    @property
    def _any(self) -> PolluxTruth:
        return next(iter(self.by_type.values()))

    @property
    def low(self) -> int:
        return self._any.low

    @property
    def high(self) -> int:
        return self._any.high

    @property
    def unit(self) -> float:
        return self._any.unit

    @property
    def stages(self) -> int:
        return self._any.stages

    @property
    def largest_local(self) -> int:
        return max(truth.largest_local for truth in self.by_type.values())

    def end(self, stage: int) -> float:
        return self._any.end(stage)

    def executed_plan(self, plan: Plan) -> Plan:
        most = max(self.by_type.values(), key=lambda truth: truth.largest_local)
        return most.executed_plan(plan)

    def pace(self, stage: int, placement: PlacedGpus, plan: Plan) -> TrainingSpeed | None:
        truth = self.by_type.get(placement.gpu_type)
        pace = None if truth is None else truth.pace(stage, placement, truth.executed_plan(plan))
        if pace is None:
            return None
        return replace(
            pace,
            rate=pace.rate / self.slowdown,
            step_s=pace.step_s * self.slowdown,
            sync_s=pace.sync_s * self.slowdown,
            exchange_s=pace.exchange_s * self.slowdown,
        )

    def plans(self, shape: Shape, batch: int | None = None) -> tuple[Plan, ...]:
        truth = self.by_type.get(shape.gpu_type)
        return () if truth is None else truth.plans(shape, batch)

    def best_rates(self, shape: Shape, batch: int | None = None) -> Floats | None:
        truth = self.by_type.get(shape.gpu_type)
        rates = None if truth is None else truth.best_rates(shape, batch)
        return None if rates is None else rates / self.slowdown


def read(path: Path, profiles: Path | None) -> tuple[TraceJob, ...]:
    """Read the jobs of a workload.

    `profiles` holds a folder for each application (default: traces/ beside the folder of the workload's own). Raises UsageError.
    """
    folder = profiles or path.parent.parent.parent / "traces"
    jobs = pollux.read_jobs(path, lambda row: read_typed_truth(application_folder(row, folder)), "")
    starts_s = {job.kind: _START_S.get(job.kind, COSTS.start_s) for job in jobs}
    return tuple(replace(job, costs=Costs(starts_s[job.kind], 0.0, 0.0, starts_s[job.kind])) for job in jobs)


def read_typed_truth(folder: Path) -> TypedTruth:
    """Read the application whose tables lie in `folder`. Raises UsageError."""
    by_type = {}
    for gpu_type, cluster in _TABLES.items():
        truth = read_application(folder, gpu_type, cluster)
        most = _LARGEST_LOCAL.get((folder.name, gpu_type), truth.largest_local)
        by_type[gpu_type] = replace(truth, largest_local=min(truth.largest_local, most))
    return TypedTruth(by_type, SLOWDOWNS.get(folder.name, 1.0))
