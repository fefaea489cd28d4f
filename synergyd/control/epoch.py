"""The steps of an epoch that the daemon and the simulator share: collect its inputs, and carry an event to its end. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from typing import Protocol

from synergy_core.records import Cell, Plan, Snapshot

from synergyd.control.controller import Controller
from synergyd.control.move_limits import remaining_move_caps
from synergyd.control.resize.events import ControlEvent
from synergyd.control.tracked import Output
from synergyd.scheduler.epoch import EpochInputs
from synergyd.scheduler.problem.delays import DelayHistory, with_observation
from synergyd.scheduler.problem.gpu_limits import NO_SLURM_LIMITS, SlurmLimits
from synergyd.scheduler.problem.records import Progress
from synergyd.settings import Settings


class FoundCells(Protocol):
    """The Cells of one job, or why it has none."""

    @property
    def cells(self) -> tuple[Cell, ...]: ...
    @property
    def why_none(self) -> str: ...


class Shell(Protocol):
    """The surroundings of the controller: Slurm and the store, or a simulated cluster."""

    def now_s(self) -> float:
        """Return the time, in seconds since 1970."""

    def carry_out(self, output: Output) -> Iterable[ControlEvent]:
        """Carry out one output of the controller and return the events that answer it."""

    def complete(self) -> None:
        """Do what follows once all outputs of one event are carried out."""


def pump(controller: Controller, event: ControlEvent, shell: Shell) -> None:
    """Handle `event` and all events that follow from it, each with its outputs in their order."""
    queue: deque[ControlEvent] = deque([event])
    while queue:
        for output in controller.handle(queue.popleft(), shell.now_s()):
            queue.extend(shell.carry_out(output))
        shell.complete()


def collect_inputs(
    controller: Controller,
    snapshot: Snapshot,
    forecasts: Mapping[int, FoundCells],
    *,
    settings: Settings,
    observes_delays: bool,
    current_plans: Mapping[int, Plan],
    progress: Mapping[int, Progress],
    delays: DelayHistory,
    slurm_limits: SlurmLimits = NO_SLURM_LIMITS,
    overtaken: frozenset[int] = frozenset(),
    outrun: frozenset[int] = frozenset(),
) -> EpochInputs:
    """Collect what an epoch decides from.

    `forecasts` and all other mappings are by job id; `delays`: the history that the epoch before has left, which
    `observes_delays` continues.
    """
    deciding, now_s = controller.decidable_snapshot(snapshot), snapshot.time_s
    return EpochInputs(
        snapshot=deciding,
        cells={job_id: one.cells for job_id, one in forecasts.items()},
        no_cell_reasons={job_id: one.why_none for job_id, one in forecasts.items() if one.why_none},
        current_plans=current_plans,
        ages_s=controller.ages_s(now_s),
        progress=progress,
        typical_s=controller.durations.typical_s,
        slurm_limits=slurm_limits,
        caps=remaining_move_caps(controller.jobs, settings, now_s),
        restarts=controller.restart_budgets.compute(snapshot.jobs, controller.jobs, now_s),
        overtaken=overtaken,
        outrun=outrun,
        delays=with_observation(delays, deciding) if observes_delays else delays,
    )
