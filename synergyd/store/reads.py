"""The statements that read, on an open connection. Each is one statement, whatever the number of jobs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any, TypeVar

from sqlalchemy import Connection, Row, Select, String, cast, func, literal, or_, select
from synergy_core.accepts import NOTHING_MORE, Accepts
from synergy_core.errors import UsageError
from synergy_core.expected import ExpectedJob
from synergy_core.job_report import Report
from synergy_core.reasons import Reason, text_reason
from synergy_core.records import (
    CALLED,
    NAMED,
    Action,
    Alternative,
    Cell,
    Decision,
    Measurement,
    ModelSpec,
    Profile,
)
from synergy_core.restarts import RestartTimes
from synergy_core.shared_links import Sharing
from synergy_core.steering import Steering
from synergy_core.wire.codec import decode
from synergy_core.would_have import WouldHave

from synergyd.store.records import (
    EpochRecord,
    LeaderRecord,
    Recording,
    StoredDecision,
    StoredEvent,
    StoredExpected,
    StoredLifecycle,
    StoredNode,
    StoredReport,
    StoredState,
)
from synergyd.store.tables import (
    DecisionRow,
    EpochRow,
    EventRow,
    ExpectedRow,
    JobFlagRow,
    LeaderRow,
    LifecycleRow,
    NodeTable,
    OwnerRow,
    ProfileRow,
    ReportTable,
    SteeringRow,
    WouldHaveRow,
)
from synergyd.store.writes import NO_DIRECTIVE, PAUSED

T = TypeVar("T")


def read_state(connection: Connection, *, of_gone_jobs: bool = False) -> StoredState:
    """Read flags, lifecycles, profiles, reports, steering and nodes in six statements.

    Profiles and reports of jobs that have left the queue are read only for `of_gone_jobs`: they are kept for weeks, and an epoch
    needs none of them.

    A row that can't be read is left out and named, so that one job's bad row does not stop the others.
    """
    profiles_of, reports_of = _PROFILE, _REPORT
    if not of_gone_jobs:
        here = select(LifecycleRow.job_id)
        keys = select(literal("job:") + cast(LifecycleRow.job_id, String))
        profiles_of = _PROFILE.where(or_(~ProfileRow.key.startswith("job:"), ProfileRow.key.in_(keys)))
        reports_of = _REPORT.where(ReportTable.job_id.in_(here))
    flags = connection.execute(select(JobFlagRow.job_id, JobFlagRow.flag, JobFlagRow.submit_s)).all()
    unreadable: list[str] = []
    return StoredState(
        lifecycles=lifecycles(connection),
        profiles=_readable(connection.execute(profiles_of), "key", _profile, unreadable),
        paused=frozenset(job_id for job_id, flag, _ in flags if flag == PAUSED),
        no_directive=frozenset((job_id, submit_s) for job_id, flag, submit_s in flags if flag == NO_DIRECTIVE),
        reports=_readable(connection.execute(reports_of), "job_id", _report, unreadable),
        steering=_readable(connection.execute(_STEERING), "job_id", _steering, unreadable),
        nodes=nodes(connection),
        unreadable=tuple(unreadable),
    )


def _readable(rows: Iterable[Row[Any]], key: str, read: Callable[[Row[Any]], T], unreadable: list[str]) -> dict[Any, T]:
    good: dict[Any, T] = {}
    for row in rows:
        try:
            good[getattr(row, key)] = read(row)
        except UsageError as error:
            unreadable.append(str(error))
    return good


_LIFECYCLE = select(
    LifecycleRow.job_id, LifecycleRow.submit_s, LifecycleRow.state, LifecycleRow.payload, LifecycleRow.updated_s
)


def lifecycles(connection: Connection) -> dict[int, StoredLifecycle]:
    return {r.job_id: StoredLifecycle(*r) for r in connection.execute(_LIFECYCLE)}


def lifecycle(connection: Connection, job_id: int) -> StoredLifecycle | None:
    row = connection.execute(_LIFECYCLE.where(LifecycleRow.job_id == job_id)).one_or_none()
    return None if row is None else StoredLifecycle(*row)


_PROFILE = select(
    ProfileRow.key,
    ProfileRow.speed,
    ProfileRow.memory,
    ProfileRow.samples,
    ProfileRow.noise_scale,
    ProfileRow.resharding,
    ProfileRow.accepts,
    ProfileRow.model,
    ProfileRow.global_batch,
    ProfileRow.measured,
    ProfileRow.restarts,
)


def profiles(connection: Connection) -> dict[str, Profile]:
    return {r.key: _profile(r) for r in connection.execute(_PROFILE)}


def profile(connection: Connection, key: str) -> Profile | None:
    row = connection.execute(_PROFILE.where(ProfileRow.key == key)).one_or_none()
    return None if row is None else _profile(row)


def _profile(r: Row[Any]) -> Profile:
    return Profile(
        speed=r.speed,
        memory=r.memory,
        samples=r.samples,
        noise_scale=r.noise_scale,
        resharding=r.resharding,
        accepts=NOTHING_MORE if r.accepts is None else decode(Accepts, r.accepts, f"profile {r.key}: accepts"),
        model=None if r.model is None else decode(ModelSpec, r.model, f"profile {r.key}: model"),
        global_batch=r.global_batch,
        measured=tuple(decode(Measurement, item, f"profile {r.key}: measured") for item in r.measured or ()),
        restarts=tuple(decode(RestartTimes, item, f"profile {r.key}: restarts") for item in r.restarts or ()),
    )


_REPORT = select(ReportTable.job_id, ReportTable.payload, ReportTable.received_s)


def reports(connection: Connection) -> dict[int, StoredReport]:
    return {r.job_id: _report(r) for r in connection.execute(_REPORT)}


def report(connection: Connection, job_id: int) -> StoredReport | None:
    row = connection.execute(_REPORT.where(ReportTable.job_id == job_id)).one_or_none()
    return None if row is None else _report(row)


def _report(r: Row[Any]) -> StoredReport:
    return StoredReport(decode(Report, r.payload, f"job {r.job_id}: stored report"), r.received_s)


_STEERING = select(SteeringRow.job_id, SteeringRow.payload)


def steering(connection: Connection, job_id: int) -> Steering | None:
    row = connection.execute(_STEERING.where(SteeringRow.job_id == job_id)).one_or_none()
    return None if row is None else _steering(row)


def _steering(r: Row[Any]) -> Steering:
    return decode(Steering, r.payload, f"job {r.job_id}: stored steering")


def owner(connection: Connection, job_id: int) -> tuple[str, str] | None:
    """Return the job's (user, account), or None if it is unknown."""
    row = connection.execute(select(OwnerRow.user, OwnerRow.account).where(OwnerRow.job_id == job_id)).one_or_none()
    return None if row is None else (row.user, row.account)


def version(connection: Connection) -> tuple[object, ...]:
    """Return a value that changes whenever the output of `synergyctl status` does.

    Four statements, each of an index or of a row a job.
    """
    newest = (func.max(EpochRow.id), func.max(EventRow.id), func.max(ReportTable.received_s), ExpectedRow.made_s)
    return tuple(connection.execute(select(column)).scalar() for column in newest)


def flags(connection: Connection, flag: str) -> list[tuple[int, float]]:
    statement = select(JobFlagRow.job_id, JobFlagRow.submit_s).where(JobFlagRow.flag == flag)
    return [(job_id, submit_s) for job_id, submit_s in connection.execute(statement)]


_DECISION = select(
    DecisionRow.job_id,
    DecisionRow.at_s,
    DecisionRow.action,
    DecisionRow.cell,
    DecisionRow.node_names,
    DecisionRow.why,
    DecisionRow.reasons,
    DecisionRow.relative_goodput,
    DecisionRow.alternatives,
    DecisionRow.worth,
    DecisionRow.fairness,
    DecisionRow.sharing,
)


def decisions_of(connection: Connection, job_id: int, limit: int) -> list[StoredDecision]:
    """Return the job's last `limit` decisions, newest first."""
    statement: Select[Any] = (
        _DECISION.add_columns(EpochRow.dry_run)
        .join(EpochRow, EpochRow.id == DecisionRow.epoch_id)
        .where(DecisionRow.job_id == job_id)
        .order_by(DecisionRow.at_s.desc(), DecisionRow.epoch_id.desc())
        .limit(limit)
    )
    return [StoredDecision(r.at_s, r.dry_run, _decision(r)) for r in connection.execute(statement)]


def latest_epoch(connection: Connection) -> EpochRecord | None:
    """Return the epoch that started last, with its decisions by job id, or None if there is none. Two statements."""
    row = connection.execute(_LATEST).one_or_none()
    if row is None:
        return None
    rows = connection.execute(_DECISION.where(DecisionRow.epoch_id == row.id).order_by(DecisionRow.job_id))
    return _epoch(row, tuple(_decision(r) for r in rows))


def epochs_since(connection: Connection, after_id: int, since_s: float) -> list[tuple[int, float, dict[str, Any]]]:
    """Return (id, start, summary) of the epochs after `after_id` and since `since_s`, oldest first."""
    statement = (
        select(EpochRow.id, EpochRow.started_s, EpochRow.summary)
        .where(EpochRow.started_s >= since_s, EpochRow.id > after_id)
        .order_by(EpochRow.id)
    )
    return [(r.id, r.started_s, r.summary) for r in connection.execute(statement)]


def _epoch(row: Row[Any], decisions: tuple[Decision, ...] = ()) -> EpochRecord:
    return EpochRecord(
        row.started_s, row.duration_s, row.dry_run, decisions, row.summary, row.error, tuple(row.present or ())
    )


_LATEST = (
    select(
        EpochRow.id,
        EpochRow.started_s,
        EpochRow.duration_s,
        EpochRow.dry_run,
        EpochRow.summary,
        EpochRow.error,
        EpochRow.present,
    )
    .order_by(EpochRow.started_s.desc(), EpochRow.id.desc())
    .limit(1)
)


def _decision(r: Row[Any]) -> Decision:
    where = f"job {r.job_id}: stored decision"
    return Decision(
        job_id=r.job_id,
        action=decode(Action, r.action, f"{where}: action"),
        cell=None if r.cell is None else decode(Cell, r.cell, f"{where}: cell"),
        node_names=tuple(str(n) for n in r.node_names),
        reasons=text_reason(r.why)
        if r.reasons is None
        else tuple(decode(Reason, x, f"{where}: reason") for x in r.reasons),
        relative_goodput=r.relative_goodput,
        alternatives=tuple(_alternative(a, f"{where}: alternative") for a in r.alternatives),
        worth=tuple((str(name), float(value)) for name, value in r.worth or ()),
        fairness=r.fairness,
        sharing=None if r.sharing is None else decode(Sharing, r.sharing, f"{where}: sharing"),
    )


def _alternative(fields: Mapping[str, Any], where: str) -> Alternative:
    """Decode an alternative; 0.2 has stored its reason as text."""
    if "reason" not in fields:
        return Alternative(
            decode(Cell, fields["cell"], where), Reason("text", {"text": str(fields.get("why_not", ""))})
        )
    return decode(Alternative, fields, where)


def story(connection: Connection, job_id: int) -> list[StoredEvent]:
    """Return the job's events in the order in which they happened."""
    statement = (
        select(EventRow.job_id, EventRow.at_s, EventRow.state, EventRow.event, EventRow.detail)
        .where(EventRow.job_id == job_id)
        .order_by(EventRow.at_s, EventRow.id)
    )
    return [StoredEvent(r.job_id, r.at_s, r.state, r.event, r.detail) for r in connection.execute(statement)]


def find_job_id(connection: Connection, name: str, *, beginning: bool) -> int | None:
    """Return the id of the job that had this name last (with `beginning`: whose name begins so), or None."""
    words = CALLED.format(name)
    like = EventRow.detail.startswith(words, autoescape=True) if beginning else EventRow.detail == words
    newest = select(EventRow.job_id).where(EventRow.event == NAMED, like).order_by(EventRow.at_s.desc()).limit(1)
    job_id = connection.execute(newest).scalar_one_or_none()
    return None if job_id is None else int(job_id)


def recording(connection: Connection) -> Recording:
    """Return the past of the whole queue, in eight statements. Unreadable first Cells are named beside unreadable profiles and reports."""
    events = select(EventRow.job_id, EventRow.at_s, EventRow.state, EventRow.event, EventRow.detail).order_by(
        EventRow.at_s, EventRow.id
    )
    first_decisions = select(DecisionRow.job_id, func.min(DecisionRow.at_s).label("at_s")).group_by(DecisionRow.job_id)
    epochs = (
        select(DecisionRow.job_id, func.min(DecisionRow.epoch_id).label("epoch_id"))
        .where(DecisionRow.cell.is_not(None))
        .group_by(DecisionRow.job_id)
        .subquery()
    )
    first = select(DecisionRow.job_id, DecisionRow.cell).join(
        epochs, (epochs.c.job_id == DecisionRow.job_id) & (epochs.c.epoch_id == DecisionRow.epoch_id)
    )
    unreadable: list[str] = []
    cells = _readable(connection.execute(first), "job_id", _first_cell, unreadable)
    state, last = read_state(connection, of_gone_jobs=True), connection.execute(_LATEST).one_or_none()
    return Recording(
        remembered=replace(state, unreadable=(*state.unreadable, *unreadable)),
        events=tuple(StoredEvent(r.job_id, r.at_s, r.state, r.event, r.detail) for r in connection.execute(events)),
        seen_s={r.job_id: r.at_s for r in connection.execute(first_decisions)},
        first_cells=cells,
        latest=None if last is None else _epoch(last),
    )


def _first_cell(r: Row[Any]) -> Cell:
    return decode(Cell, r.cell, f"job {r.job_id}: stored decision: cell")


def nodes(connection: Connection) -> dict[str, StoredNode]:
    rows = connection.execute(select(NodeTable.name, NodeTable.payload, NodeTable.updated_s))
    return {r.name: StoredNode(r.name, r.payload, r.updated_s) for r in rows}


def would_have(connection: Connection, since_s: float) -> list[WouldHave]:
    statement = select(WouldHaveRow.payload).where(WouldHaveRow.to_s >= since_s).order_by(WouldHaveRow.job_id)
    return [decode(WouldHave, r.payload, "stored account of a dry run") for r in connection.execute(statement)]


def expected(connection: Connection) -> StoredExpected | None:
    """Return the last forecast of the queue. Jobs that can't be read are left out."""
    row = connection.execute(select(ExpectedRow.made_s, ExpectedRow.jobs, ExpectedRow.errors)).first()
    if row is None:
        return None
    jobs: list[ExpectedJob] = []
    for item in row.jobs:
        with suppress(UsageError):
            jobs.append(decode(ExpectedJob, item, "stored forecast"))
    return StoredExpected(row.made_s, tuple(jobs), row.errors)


def leader(connection: Connection) -> LeaderRecord | None:
    statement = select(LeaderRow.holder, LeaderRow.host, LeaderRow.pid, LeaderRow.heartbeat_s, LeaderRow.term).where(
        LeaderRow.id == 1
    )
    row = connection.execute(statement).one_or_none()
    return None if row is None else LeaderRecord(*row)
