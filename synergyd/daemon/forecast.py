"""SynergyTask for each job of the queue, computed again only when something it depends on has changed."""

from __future__ import annotations

import logging
import os
import stat
from dataclasses import dataclass
from pathlib import Path

from synergyd.errors import SynergyError, UsageError
from synergyd.records import Cell, Cluster, Job, ModelSpec, Profile, Report
from synergyd.settings import Settings
from synergyd.slurm.rows import JobRow, gpus_of
from synergyd.task.hardware import GpuFigures, figures
from synergyd.task.model_spec import load_model
from synergyd.task.synergy_task import SynergyTask, update_profile

log = logging.getLogger("synergyd.forecast")
MAX_CONFIG_BYTES = 1024 * 1024


@dataclass(frozen=True)
class CellsOrWhy:
    """A job's Cells; where there are none, one line why."""

    cells: tuple[Cell, ...]
    why_none: str


class Forecast:
    """Caches by job; the answers are those of pure functions."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._figures: dict[str, GpuFigures] = {}
        self._kept: dict[int, tuple[object, CellsOrWhy]] = {}
        self._models: dict[tuple[str, int], ModelSpec | str] = {}

    def cells(self, job: Job, profile: Profile, cluster: Cluster) -> CellsOrWhy:
        """All Cells of one job on this cluster."""
        key = (job.directive, job.asked, job.shape, profile, _kinds(cluster))
        kept = self._kept.get(job.job_id)
        if kept is not None and kept[0] == key:
            return kept[1]
        try:
            task = SynergyTask(job, profile, self._model(job, profile), self._all_figures(cluster))
            cells = task.cells(cluster)
            answer = CellsOrWhy(cells, "" if cells else task.why_no_cell(cluster))
        except SynergyError as error:
            answer = CellsOrWhy((), str(error))
        self._kept[job.job_id] = (key, answer)
        return answer

    def predicted(self, report: Report, row: JobRow) -> Cell | None:
        """What was predicted of the plan that the job reports, from the Cells of the last epoch."""
        kept = self._kept.get(report.job_id)
        if kept is None or report.plan is None:
            return None
        count = gpus_of(row.tres_per_node)[1]
        p = report.plan
        for cell in kept[1].cells:
            same = (cell.shape.nodes, cell.shape.gpus_per_node) == (row.num_nodes, count)
            if same and (cell.plan.tp, cell.plan.pp, cell.plan.dp, cell.plan.micro_batch, cell.plan.global_batch) == (
                p.tp, p.pp, p.dp, p.micro_batch, p.global_batch,
            ):  # fmt: skip
                return cell
        return None

    def learn(self, profile: Profile, report: Report, predicted: Cell | None) -> Profile:
        """The profile after one more report."""
        # predictions already hold the profile's corrections: the bare model's are meant
        step_s = predicted.step_s / profile.speed if predicted else None
        memory = int(predicted.memory_bytes / profile.memory) if predicted and predicted.memory_bytes else None
        return update_profile(profile, report, step_s, memory)

    def _all_figures(self, cluster: Cluster) -> dict[str, GpuFigures]:
        for gpu_type in cluster.gpu_types():
            if gpu_type not in self._figures:
                self._figures[gpu_type] = figures(gpu_type, self._settings.gpu_figures)
        return self._figures

    def _model(self, job: Job, profile: Profile) -> ModelSpec | None:
        """The directive's model before the reported one, which may be of a script that only imitates it."""
        name = job.directive.model if job.directive else None
        if not name:
            return profile.model
        key = (name, job.uid)
        if key not in self._models:
            try:
                self._models[key] = load_model(_checked(name, job.uid))
            except SynergyError as error:
                self._models[key] = str(error)
        found = self._models[key]
        if isinstance(found, str):
            if profile.model is not None:
                return profile.model
            raise UsageError("model=", found)
        return found


def _checked(name: str, uid: int) -> str:
    """A preset's name as it is; a path only if it is a plain file that the job's user owns or all may read."""
    if "/" not in name:
        return name
    path = Path(name)
    try:
        about = path.lstat()
    except OSError as error:
        raise UsageError(name, f"can't be read ({error.strerror})") from None
    if not stat.S_ISREG(about.st_mode) or about.st_size > MAX_CONFIG_BYTES or path.resolve() != Path(os.path.normpath(path)):
        raise UsageError(name, "is no plain config.json", "name a file of at most 1 MiB, not a link")
    if about.st_uid != uid and not about.st_mode & stat.S_IROTH:
        raise UsageError(name, "belongs to another user and is not readable by all")
    return name


def _kinds(cluster: Cluster) -> tuple[tuple[str, int, int], ...]:
    """What Cells depend on of a cluster: GPUs a node, and how many such nodes are up."""
    counts: dict[tuple[str, int], int] = {}
    for node in cluster.nodes:
        if node.up:
            counts[node.gpu_type, node.gpus] = counts.get((node.gpu_type, node.gpus), 0) + 1
    return tuple((t, g, n) for (t, g), n in sorted(counts.items()))
