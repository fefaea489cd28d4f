"""The queue's past as `synergyctl simulate --from-queue` replays it: a store's recording as one JSON object, and back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from synergy_core.records import Cell, Profile

from synergyd.store.records import (
    EpochRecord,
    Recording,
    StoredEvent,
    StoredLifecycle,
    StoredReport,
    StoredState,
)

_CLUSTER = (
    "nodes",
    "gpus",
)  # keys of a summary; its data for charts is not needed, and names nodes that Slurm may hide


@dataclass(frozen=True, kw_only=True)
class LifecycleJson:
    """The state of one job's resize."""

    #: Slurm's job id
    job_id: int
    #: its sbatch, seconds since 1970
    submit_s: float
    #: state of its resize
    state: str
    #: all else that is remembered of it
    payload: object
    #: seconds since 1970
    updated_s: float


@dataclass(frozen=True, kw_only=True)
class RecordingJson:
    """The past of the whole queue, as far as it is kept. Each pair is a job's id and what is known of it."""

    #: format of this object; it rises when a field goes or changes its meaning
    format: int = 1
    lifecycles: tuple[LifecycleJson, ...]
    #: by the store's key
    profiles: tuple[tuple[str, Profile], ...]
    reports: tuple[StoredReport, ...]
    #: of all jobs, in the order in which things happened
    events: tuple[StoredEvent, ...]
    #: of its first decision, seconds since 1970
    seen_s: tuple[tuple[int, float], ...]
    #: what it was first given
    first_cells: tuple[tuple[int, Cell], ...]
    #: of the last epoch: its start, what it saw in short, and the jobs as they stood; null before the first one
    latest_s: float | None = None
    summary: object = None
    present: tuple[object, ...] = ()
    #: a line for each row that could not be read
    unreadable: tuple[str, ...] = ()


def as_json(recording: Recording) -> RecordingJson:
    """Return the recording as the REST service sends it."""
    past, latest = recording.remembered, recording.latest
    return RecordingJson(
        lifecycles=tuple(
            LifecycleJson(
                job_id=x.job_id, submit_s=x.submit_s, state=x.state, payload=dict(x.payload), updated_s=x.updated_s
            )
            for x in past.lifecycles.values()
        ),
        profiles=tuple(past.profiles.items()),
        reports=tuple(past.reports.values()),
        events=recording.events,
        seen_s=tuple(recording.seen_s.items()),
        first_cells=tuple(recording.first_cells.items()),
        latest_s=latest.started_s if latest is not None else None,
        summary={k: latest.summary[k] for k in _CLUSTER if k in latest.summary} if latest is not None else None,
        present=latest.present if latest is not None else (),
        unreadable=past.unreadable,
    )


def from_json(message: RecordingJson) -> Recording:
    """Return the recording of what `as_json` made, as far as a replay needs it."""
    lives = [
        StoredLifecycle(x.job_id, x.submit_s, x.state, x.payload if isinstance(x.payload, Mapping) else {}, x.updated_s)
        for x in message.lifecycles
    ]
    past = StoredState(
        lifecycles={x.job_id: x for x in lives},
        profiles=dict(message.profiles),
        reports={x.report.job_id: x for x in message.reports},
        unreadable=message.unreadable,
    )
    summary = message.summary if isinstance(message.summary, Mapping) else {}
    latest = None
    if message.latest_s is not None:
        latest = EpochRecord(message.latest_s, 0.0, False, summary=summary, present=message.present)
    return Recording(past, message.events, dict(message.seen_s), dict(message.first_cells), latest)
