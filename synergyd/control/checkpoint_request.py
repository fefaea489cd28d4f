"""A request for a checkpoint as the job's launchers take it from the answers to their reports. Pure.

Requests are numbered over an incarnation: request N is met when each launcher that trains has taken N checkpoints on request. So a
request may be told as often as one likes, and a launcher that was told it counts as asked when it says so itself.
"""

from __future__ import annotations

from dataclasses import replace

from synergy_core.job_report import Report

from synergyd.control.resize.events import Acknowledged, CarriedOut, ResizeEvent, Unwanted
from synergyd.control.resize.instructions import AskCheckpoint
from synergyd.control.resize.lifecycle import ResizeState
from synergyd.control.tracked import Remember, TrackedJob


def current_request_number(tracked: TrackedJob | None) -> int:
    """Return the number of the request that the job's launchers are told, or 0 if they are older, and take a signal alone."""
    return tracked.checkpoint_request if tracked is not None and tracked.launchers.take_requests else 0


def hear_launcher(tracked: TrackedJob, report: Report) -> list[Remember]:
    """Take in that the incarnation's launcher is there; what it says of its training follows elsewhere."""
    tracked.launchers = tracked.launchers.with_report(report)
    life = tracked.lifecycle
    if life.launched_incarnation >= report.restarts:
        return []
    tracked.lifecycle = replace(life, launched_incarnation=report.restarts)
    return [Remember(tracked.lifecycle, life.state, "Launched")]


def checkpoint_events(tracked: TrackedJob, report: Report) -> list[ResizeEvent]:
    """Return what `report`, which `tracked` knows already, means for a checkpoint that is awaited."""
    launchers = tracked.launchers
    if launchers.have_ended:
        # whatever it saved last: its script goes on with something else, or is at its end
        awaited = tracked.lifecycle.state is ResizeState.CHECKPOINTING
        return [Unwanted("its training has ended")] if awaited else []
    if report.silent:
        return []
    events: list[ResizeEvent] = []
    if launchers.latest_request >= tracked.checkpoint_request:
        events.append(CarriedOut(AskCheckpoint(report.job_id, report.restarts)))
    return [*events, Acknowledged(report.restarts, launchers.checkpoints_taken)]
