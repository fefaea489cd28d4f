"""The records that go into the store and come out of it. Times (`_s`) are seconds since 1970."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from synergy_core.errors import UsageError
from synergy_core.job_report import Report
from synergy_core.notice import Notice
from synergy_core.records import Cell, Decision, Profile, Snapshot
from synergy_core.steering import Steering


class RefusedError(UsageError):
    """The refusal of one row: the database is there, but this row can't be written, now or later."""


@dataclass(frozen=True)
class StoredEvent:
    """One step of a job's story: at `at_s` the event `event` left the job's lifecycle in `state`."""

    job_id: int
    at_s: float
    state: str
    event: str
    detail: str = ""


@dataclass(frozen=True)
class EpochRecord:
    """One pass of the daemon: at most one decision a job, and only those that differ from the job's last.

    `error` says why it was cut short ("" if it was not).
    """

    started_s: float
    duration_s: float
    dry_run: bool
    decisions: tuple[Decision, ...] = ()
    summary: Mapping[str, object] = field(default_factory=dict)  # records, containers, numbers and text
    error: str = ""
    # each job's state and what it is to have, as records (or tables, when read back); kept for the last epoch only
    present: tuple[object, ...] = ()


def epoch_record(
    decisions: tuple[Decision, ...],
    present: tuple[object, ...],
    snapshot: Snapshot,
    *,
    duration_s: float,
    dry_run: bool,
    backend: str,
    history: Mapping[str, object],
) -> EpochRecord:
    """Return the record of a completed epoch, with a summary of what it saw.

    `backend` names what Slurm was read through. `history` is for charts.
    """
    nodes = snapshot.cluster.nodes
    gpus = sum(n.gpus for n in nodes if n.up)
    summary = {"jobs": len(snapshot.jobs), "nodes": len(nodes), "gpus": gpus, "backend": backend, **history}
    return EpochRecord(snapshot.time_s, duration_s, dry_run, decisions, summary, present=present)


@dataclass(frozen=True)
class StoredLifecycle:
    """The state of one job's state machine. `submit_s` is information: Slurm resets a job's SubmitTime at requeue."""

    job_id: int
    submit_s: float
    state: str
    payload: Mapping[str, object]  # JSON-able
    updated_s: float


@dataclass(frozen=True)
class StoredDecision:
    """A decision with the start of its epoch."""

    at_s: float
    dry_run: bool
    decision: Decision


@dataclass(frozen=True)
class StoredReport:
    """A job's latest report and when the daemon received it."""

    report: Report
    received_s: float


@dataclass(frozen=True)
class StoredNode:
    """The remembered state of a node, and since when it holds."""

    name: str
    payload: Mapping[str, object]  # JSON-able
    updated_s: float


@dataclass(frozen=True)
class LeaderRecord:
    """The daemon that leads or led last; `pid` is 0 after a clean release."""

    holder: str
    host: str
    pid: int
    heartbeat_s: float
    term: int


@dataclass(frozen=True)
class StoredState:
    """All that the daemon reads back at the start of an epoch."""

    lifecycles: Mapping[int, StoredLifecycle] = field(default_factory=dict)
    profiles: Mapping[str, Profile] = field(default_factory=dict)
    paused: frozenset[int] = frozenset()
    no_directive: frozenset[tuple[int, float]] = frozenset()  # (job id, submit time)
    reports: Mapping[int, StoredReport] = field(default_factory=dict)
    nodes: Mapping[str, StoredNode] = field(default_factory=dict)  # by name
    unreadable: tuple[str, ...] = ()  # one line for each profile or report that could not be read back
    steering: Mapping[int, Steering] = field(default_factory=dict)


@dataclass(frozen=True)
class Recording:
    """Everything that is kept of the queue's past, for a replay.

    `seen_s`: the first decision of each job; `first_cells`: what it was first given (or left with); `latest`: the last epoch,
    with its jobs as they stood but without its decisions.
    """

    remembered: StoredState
    events: tuple[StoredEvent, ...] = ()  # events of all jobs, in the order in which they happened
    seen_s: Mapping[int, float] = field(default_factory=dict)
    first_cells: Mapping[int, Cell] = field(default_factory=dict)
    latest: EpochRecord | None = None


@dataclass(frozen=True)
class KeyedRow:
    """An epoch or a list of events with the key (at most 64 characters) under which it is written at most once."""

    write_key: str
    item: EpochRecord | tuple[StoredEvent, ...]


@dataclass(frozen=True)
class Changes:
    """The writes of one transaction: history in order, then the new state of what has a state.

    `term` is the writer's leadership term. If the database shows a later one, somebody else leads, and lifecycles,
    profiles, reports and nodes are left as that leader wrote them (history is still added). None: not checked.
    """

    history: tuple[KeyedRow, ...] = ()
    lifecycles: tuple[StoredLifecycle, ...] = ()
    gone: tuple[int, ...] = ()  # jobs whose lifecycle is deleted
    profiles: tuple[tuple[str, Profile, float], ...] = ()  # key, profile, when
    reports: tuple[StoredReport, ...] = ()
    paused: tuple[tuple[int, bool, float], ...] = ()  # job, paused or not, when
    no_directive: tuple[tuple[int, float, float], ...] = ()  # job, submit time, when
    steering: tuple[tuple[int, Steering, float], ...] = ()  # job, what holds now, when
    nodes: tuple[StoredNode, ...] = ()
    notices: tuple[Notice, ...] = ()
    term: int | None = None
