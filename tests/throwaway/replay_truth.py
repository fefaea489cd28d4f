"""Recorded jobs in compressed time: their truths made faster, and a server that tells the replayed jobs how long to sleep."""

from __future__ import annotations

import json
import socketserver
import threading
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any

from synergy_core.records import Plan, Shape
from synergy_sim.records import Costs, Floats, PlacedGpus, TraceJob, TrainingSpeed, Truth


@dataclass(eq=False)
class Compressed:
    """A `Truth` that is `factor` times as fast as `truth`."""

    truth: Truth
    factor: float

    @property
    def low(self) -> int:
        return self.truth.low

    @property
    def high(self) -> int:
        return self.truth.high

    @property
    def unit(self) -> float:
        return self.truth.unit

    @property
    def stages(self) -> int:
        return self.truth.stages

    def end(self, stage: int) -> float:
        return self.truth.end(stage)

    def executed_plan(self, plan: Plan) -> Plan:
        return self.truth.executed_plan(plan)

    def pace(self, stage: int, placed: PlacedGpus, plan: Plan) -> TrainingSpeed | None:
        found = self.truth.pace(stage, placed, plan)
        if found is None:
            return None
        by = self.factor
        return replace(found, rate=found.rate * by, step_s=found.step_s / by, sync_s=found.sync_s / by)

    def plans(self, shape: Shape, batch: int | None = None) -> tuple[Plan, ...]:
        return self.truth.plans(shape, batch)

    def best_rates(self, shape: Shape, batch: int | None = None) -> Floats | None:
        found = self.truth.best_rates(shape, batch)
        return None if found is None else found * self.factor


def compressed(jobs: Sequence[TraceJob], factor: float) -> tuple[TraceJob, ...]:
    """The jobs with all times divided by `factor`, from the first one's submission on. One truth is made for all that share it."""
    truths = {id(job.truth): Compressed(job.truth, factor) for job in jobs}
    first_s = min(job.submit_s for job in jobs)
    return tuple(replace(j, submit_s=(j.submit_s - first_s) / factor, truth=truths[id(j.truth)]) for j in jobs)


def told(job: TraceJob, placed: PlacedGpus, plan: Plan | None) -> dict[str, Any]:
    """The fields of replay_job.Told. `plan` None: data-parallel with the batch that the job's user asked for.

    Raises ValueError where nothing was measured there."""
    truth = job.truth
    if plan is None:
        # as a policy of fixed sizes gives it: a batch that does not divide by its GPUs is rounded up
        batch = -(-job.batch // placed.gpus) * placed.gpus
        plan = truth.plans(Shape(placed.gpu_type, len(placed.per_node), placed.per_node[0]), batch)[0]
    plan = truth.executed_plan(plan)
    paces = [truth.pace(stage, placed, plan) for stage in range(truth.stages)]
    known = [pace for pace in paces if pace is not None]
    if len(known) < len(paces):
        raise ValueError(f"{job.name}: nothing was measured of {plan} on {placed}")
    return {
        "plan": asdict(plan),
        "step_s": known[0].step_s,
        "unit": truth.unit,
        "ends": [truth.end(stage) for stage in range(truth.stages)],
        "rates": [pace.rate for pace in known],
        "noise_scales": [pace.noise_scale for pace in known],
        "base_batch": None if job.batch_fixed else truth.low,
    }


def needed_s(job: TraceJob, placed: PlacedGpus) -> float:
    """Seconds of training as its user asked for it."""
    found = told(job, placed, None)
    starts = [0.0, *found["ends"]]
    return float(
        sum((end - start) / rate for start, end, rate in zip(starts, found["ends"], found["rates"], strict=False))
    )


@dataclass(frozen=True)
class Said:
    """What an incarnation of a job did: `trains`, `saves`, `done`, or, with its GPUs, `asked` for its pace. Seconds since 1970."""

    what: str
    restarts: int
    time_s: float
    gpus: int = 0
    batch: int = 0


class PaceServer:
    """Tells jobs their paces over a Unix socket, and keeps what they say, by job name. A context manager."""

    def __init__(self, path: Path, jobs: Mapping[str, TraceJob], gpu_type: str) -> None:
        self.path, self._jobs, self._gpu_type = path, jobs, gpu_type
        self.said: dict[str, list[Said]] = {name: [] for name in jobs}
        self.wrong: list[str] = []
        self._lock = threading.Lock()  # truths keep what they have looked up
        outer = self

        class Handler(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                answer = outer.answer(json.loads(self.rfile.readline()))
                self.wfile.write(json.dumps(answer).encode() + b"\n")

        self._server = socketserver.ThreadingUnixStreamServer(str(path), Handler)
        self._server.daemon_threads = True
        self._server.request_queue_size = 128

    def answer(self, question: Mapping[str, Any]) -> dict[str, Any]:
        name = question["name"]
        with self._lock:
            if "said" in question:
                self.said[name].append(Said(question["said"], question["restarts"], question["time"]))
                return {}
            plan = Plan(**question["plan"]) if question["plan"] else None
            placed = PlacedGpus(self._gpu_type, (question["each"],) * question["nodes"])
            try:
                found = told(self._jobs[name], placed, plan)
            except (ValueError, IndexError) as error:
                self.wrong.append(str(error))
                raise
            batch = found["plan"]["global_batch"]
            self.said[name].append(Said("asked", question["restarts"], question["time"], placed.gpus, batch))
            return found

    def __enter__(self) -> PaceServer:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()


def scaled(costs: Costs, factor: float) -> Costs:
    """Costs with each of their seconds multiplied."""
    seconds = {name: value for name, value in asdict(costs).items() if value is not None}
    return Costs(**{name: factor * value for name, value in seconds.items()})
