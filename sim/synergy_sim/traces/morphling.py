"""Workloads of the Rubick (Morphling, MLSys 2025) artifact, with its measured iteration times as ground truth.

A workload has the columns name, submission_time, duration, application, num_gpus, num_cpus, bandwidth, exec_plan, steps,
is_sla; the folder of an application holds placements.csv with exec_plan, placement (GPUs a node as digits) and iter_time
(seconds; 0: it did not run). exec_plan is ga, gc, zero-dp, zero-offload or three digits: pipeline, tensor, data parallel.

Assumptions:
  - the cluster of the paper: 8 nodes of 8 A800 (here a800); one GPU type;
  - a job is over after `steps` iterations of its fixed global batch, as in the artifact's simulator; `duration` is only the
    same said for one plan, and is not used;
  - on the GPUs it gets it runs the fastest plan measured there (see sim/placement_truth.py). The artifact's scheduler, too, chooses
    among the measured plans. Where users' sizes are kept (plain Slurm, rigid policies) so is exec_plan, as by the artifact's rigid
    peers; where that was not measured at the size asked for, the fastest plan runs there too. The trace bp differs in these plans;
  - a placement that was not measured: the fastest measured one that fits into it. The artifact interpolates the means over
    all plans, which exist for no plan at all;
  - every start and every resize costs 260 s on the new GPUs, which is what the artifact's simulator charges for either: of
    a resize 8 s on the old GPUs for the checkpoint, 2 s of requeue, 250 s on the new ones;
  - is_sla is 1 for jobs of a tenant whose jobs are guaranteed what they asked for (the trace mt): here a user of its own, whose jobs
    never have fewer GPUs. The artifact's scheduler gives them at least the speed of their GPUs and plan, before all others;
  - num_cpus and bandwidth change nothing: the artifact's simulator does not read them, and its times are those of a placement. A node
    has 96 CPUs for 8 GPUs, and no job of the three workloads asks for more than 8 a GPU;
  - no size larger than was measured is used, as by the artifact, whose scheduler looks its sizes up in the measurements. Where nothing
    measured fits, the model does not: a job that is started there runs out of memory. The artifact's scheduler knows that beforehand;
    here llama7 and llama30 go by the memory model (memory_fit.with_known_fit gives the same as to the artifact's), and the others,
    which fit on one GPU, may go anywhere.
"""

from __future__ import annotations

from pathlib import Path

from synergy_core.errors import UsageError
from synergy_core.records import ModelSpec

from synergy_sim.memory_fit import MemoryFit, anywhere
from synergy_sim.placement_truth import BATCH, MOST_NODES, Placement, PlacementTruth, Times
from synergy_sim.records import Costs, PlacedGpus, TraceJob
from synergy_sim.tables import TableRow, application_folder, in_order, read_table
from synergyd.jobmodel.model.spec import load_model
from synergyd.jobmodel.unknown_model import largest_divisor

COLUMNS = ("name", "submission_time", "application", "num_gpus", "exec_plan", "steps", "is_sla")
COSTS = Costs(first_start_s=260.0, checkpoint_s=8.0, requeue_s=2.0, start_s=250.0)
CLUSTER = {"a800": (8, 8)}
# sequences a step (sched/models/*.py, local_bsz)
_BATCHES = {"llama7": 8, "llama30": 4}
# arXiv 2302.13971, table 2
_LLAMA_30B = ModelSpec("llama-30b", 60, 6656, 52, 52, 17920, vocab=32000, seq=2048, gated=True, tied_embeddings=False)
_NAMED = ("ga", "gc", "zero-dp", "zero-offload")


def read(
    path: Path, profiles: Path | None, gpu_type: str, gpus_per_node: int, *, keep_plan: bool = False
) -> tuple[TraceJob, ...]:
    """Read the jobs of a workload.

    `profiles` holds a folder for each application (default: traces/ beside the workload's own folder). `keep_plan`: at every size a job
    runs its exec_plan with as many replicas as it has GPUs for, where that was measured at the size asked for. Raises UsageError.
    """
    folder = profiles or path.parent.parent / "traces"
    rows = read_table(path, COLUMNS)
    in_order(rows, "submission_time", lambda row: row.number("submission_time", 0))
    times_by_kind: dict[str, Times] = {}
    own: dict[tuple[str, str], Times] = {}  # of one plan
    jobs = []
    for row in rows:
        kind = row.text("application")
        if kind not in times_by_kind:
            times_by_kind[kind] = Times({gpu_type: read_times(application_folder(row, folder) / "placements.csv")})
        times, gpus = times_by_kind[kind], row.whole_number("num_gpus", 1, 100_000)
        part = _kept_part(_plan(row))
        each = largest_divisor(gpus, gpus_per_node)
        if gpus > times.largest or times.step_s(PlacedGpus(gpu_type, (each,) * (gpus // each))) is None:
            right = f"it was measured from {times.smallest(gpu_type)} to {times.largest}"
            raise row.wrong("num_gpus", f"{kind} was not measured on {gpus} GPUs, {each} a node", right)
        if (kind, part) not in own:
            own[kind, part] = Times({gpu_type: read_times(application_folder(row, folder) / "placements.csv", part)})
        is_measured = own[kind, part].step_s(PlacedGpus(gpu_type, (each,) * (gpus // each))) is not None
        own_times, steps = own[kind, part] if is_measured else times, row.number("steps", 1)
        if keep_plan:
            times = own_times
        expected = MemoryFit(_find_spec(kind), _BATCHES.get(kind, BATCH), anywhere, (gpu_type, gpus))
        guaranteed = bool(row.whole_number("is_sla", 0, 1))
        jobs.append(
            TraceJob(
                row.text("name"),
                kind,
                row.number("submission_time", 0),
                gpus,
                BATCH,
                PlacementTruth(times, steps),
                row.where,
                gpu_type,
                batch_fixed=True,
                requested_truth=PlacementTruth(own_times, steps),
                uid=int(guaranteed),
                min_gpus=gpus if guaranteed else None,
                max_gpus=times.largest,
                max_micro_batch=BATCH,
                can_run=times.can_run,
                expected_fit=expected,
            )
        )
    if not jobs:
        raise UsageError(str(path), "has no jobs")
    return tuple(jobs)


def _find_spec(kind: str) -> ModelSpec | None:
    return {"llama7": load_model("llama2-7b"), "llama30": _LLAMA_30B}.get(kind)


def _plan(row: TableRow) -> str:
    text = row.text("exec_plan")
    if text not in _NAMED and not (len(text) == 3 and text.isascii() and text.isdecimal() and "0" not in text):
        raise row.wrong("exec_plan", f"{text!r} is no plan", f"{', '.join(_NAMED)}, or three digits such as 344")
    return text


def _kept_part(plan: str) -> str:
    """Return the part of a plan that stays at other numbers of GPUs: its name, or its pipeline and tensor degrees."""
    return plan if plan in _NAMED else plan[:2]


def read_times(path: Path, part: str = "") -> dict[Placement, float]:
    """Read placement -> seconds of the fastest plan measured there, of those with what `part` says (see `_kept_part`).

    No time at all where none was measured. Raises UsageError.
    """
    best_times: dict[Placement, float] = {}
    for row in read_table(path, ("exec_plan", "placement", "iter_time")):
        text = row.text("placement")
        if not text.isascii() or not text.isdecimal() or "0" in text or len(text) > MOST_NODES:
            raise row.wrong("placement", f"{text!r} is not GPUs a node as digits", "such as 2211")
        placement = tuple(sorted(map(int, text), reverse=True))
        seconds = row.number("iter_time", 0)
        if seconds > 0 and (not part or _kept_part(row.text("exec_plan")) == part):
            best_times[placement] = min(seconds, best_times.get(placement, seconds))
    if not best_times and not part:
        raise UsageError(str(path), "has no measured times")
    return best_times
