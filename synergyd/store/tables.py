"""The tables, as SQLAlchemy models. A change here needs a migration in sql/versions (a test compares the two).

Times (`_s`) are seconds since 1970 in double precision. Large whole records travel as JSON (launch/synergy_core/wire/codec.py);
data that is searched or read in bulk has a column of its own.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import JSON, BigInteger, Boolean, Double, ForeignKey, Index, Integer, String, Text, UniqueConstraint
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

# SQLite counts up only a column declared INTEGER; it holds 64 bits there all the same.
BigId = BigInteger().with_variant(Integer, "sqlite")
Json = JSON(none_as_null=True)


class Base(DeclarativeBase):
    """The base of all tables, which share its metadata."""


class ProfileRow(Base):
    """The profile learnt of `job:123` or `model:gpt-mini/a100` (synergy_core.records.Profile)."""

    __tablename__ = "profiles"

    key: Mapped[str] = mapped_column(Text, primary_key=True)
    speed: Mapped[float] = mapped_column(Double)
    memory: Mapped[float] = mapped_column(Double)
    samples: Mapped[int] = mapped_column(BigInteger)
    noise_scale: Mapped[float | None] = mapped_column(Double)
    resharding: Mapped[bool] = mapped_column(Boolean)
    model: Mapped[dict[str, Any] | None] = mapped_column(Json)
    global_batch: Mapped[int | None] = mapped_column(BigInteger)
    updated_s: Mapped[float] = mapped_column(Double)
    measured: Mapped[list[Any] | None] = mapped_column(Json)
    accepts: Mapped[dict[str, Any] | None] = mapped_column(Json)
    restarts: Mapped[list[Any] | None] = mapped_column(Json)


class EpochRow(Base):
    """One pass of the daemon. `write_key` makes writing it twice the same as writing it once."""

    __tablename__ = "epochs"
    __table_args__ = (
        UniqueConstraint("write_key", name="uq_epochs_write_key"),
        Index("ix_epochs_started_s", "started_s"),
    )

    id: Mapped[int] = mapped_column(BigId, primary_key=True, autoincrement=True)
    write_key: Mapped[str] = mapped_column(String(64))
    started_s: Mapped[float] = mapped_column(Double)
    duration_s: Mapped[float] = mapped_column(Double)
    dry_run: Mapped[bool] = mapped_column(Boolean)
    jobs: Mapped[int] = mapped_column(Integer)
    summary: Mapped[dict[str, Any]] = mapped_column(Json)
    present: Mapped[list[Any] | None] = mapped_column(Json, nullable=True)  # jobs as they stood; of the last epoch only
    error: Mapped[str] = mapped_column(Text)


class DecisionRow(Base):
    """The decision of one epoch for one job; `at_s` is the epoch's start."""

    __tablename__ = "decisions"
    __table_args__ = (Index("ix_decisions_job_id_at_s", "job_id", "at_s"),)

    epoch_id: Mapped[int] = mapped_column(
        BigId, ForeignKey("epochs.id", name="fk_decisions_epoch_id", ondelete="CASCADE"), primary_key=True
    )
    job_id: Mapped[int] = mapped_column(BigInteger, primary_key=True, autoincrement=False)
    at_s: Mapped[float] = mapped_column(Double)
    action: Mapped[str] = mapped_column(Text)
    cell: Mapped[dict[str, Any] | None] = mapped_column(Json)
    node_names: Mapped[list[str]] = mapped_column(Json)
    why: Mapped[str] = mapped_column(Text)
    reasons: Mapped[list[dict[str, Any]] | None] = mapped_column(Json)
    relative_goodput: Mapped[float | None] = mapped_column(Double)
    alternatives: Mapped[list[dict[str, Any]]] = mapped_column(Json)
    worth: Mapped[list[Any] | None] = mapped_column(Json)
    fairness: Mapped[float | None] = mapped_column(Double)
    sharing: Mapped[dict[str, Any] | None] = mapped_column(Json)


class EventRow(Base):
    """One step of a job's story. Rows are only ever added. (`write_key`, `seq`) makes writing it twice harmless."""

    __tablename__ = "events"
    __table_args__ = (
        UniqueConstraint("write_key", "seq", name="uq_events_write_key_seq"),
        Index("ix_events_job_id_at_s", "job_id", "at_s"),
        Index("ix_events_at_s", "at_s"),
    )

    id: Mapped[int] = mapped_column(BigId, primary_key=True, autoincrement=True)
    write_key: Mapped[str] = mapped_column(String(64))
    seq: Mapped[int] = mapped_column(Integer)
    job_id: Mapped[int] = mapped_column(BigInteger)
    at_s: Mapped[float] = mapped_column(Double)
    state: Mapped[str] = mapped_column(Text)
    event: Mapped[str] = mapped_column(Text)
    detail: Mapped[str] = mapped_column(Text)


class LifecycleRow(Base):
    """The state of each job's resize state machine."""

    __tablename__ = "lifecycles"

    job_id: Mapped[int] = mapped_column(BigInteger, primary_key=True, autoincrement=False)
    submit_s: Mapped[float] = mapped_column(Double)
    state: Mapped[str] = mapped_column(Text)
    payload: Mapped[dict[str, Any]] = mapped_column(Json)
    updated_s: Mapped[float] = mapped_column(Double)


class JobFlagRow(Base):
    """A flag of a job: `paused` (submit_s 0) or `no_directive` (of exactly this submission: job ids are used again)."""

    __tablename__ = "job_flags"
    __table_args__ = (Index("ix_job_flags_flag_at_s", "flag", "at_s"),)

    job_id: Mapped[int] = mapped_column(BigInteger, primary_key=True, autoincrement=False)
    flag: Mapped[str] = mapped_column(Text, primary_key=True)
    submit_s: Mapped[float] = mapped_column(Double, primary_key=True)
    at_s: Mapped[float] = mapped_column(Double)


class SteeringRow(Base):
    """The settings that a job's owner has made since sbatch (synergy_core.steering.Steering)."""

    __tablename__ = "steering"

    job_id: Mapped[int] = mapped_column(BigInteger, primary_key=True, autoincrement=False)
    payload: Mapped[dict[str, Any]] = mapped_column(Json)
    changed_s: Mapped[float] = mapped_column(Double)


class OwnerRow(Base):
    """The owner of a job, kept as long as its decisions are."""

    __tablename__ = "owners"
    __table_args__ = (Index("ix_owners_seen_s", "seen_s"),)

    job_id: Mapped[int] = mapped_column(BigInteger, primary_key=True, autoincrement=False)
    user: Mapped[str] = mapped_column(Text)
    account: Mapped[str] = mapped_column(Text)
    seen_s: Mapped[float] = mapped_column(Double)


class ReportTable(Base):
    """The latest report of each job (synergy_core.records.Report)."""

    __tablename__ = "reports"

    job_id: Mapped[int] = mapped_column(BigInteger, primary_key=True, autoincrement=False)
    payload: Mapped[dict[str, Any]] = mapped_column(Json)
    received_s: Mapped[float] = mapped_column(Double)


class LeaderRow(Base):
    """One row (id 1): the daemon that leads, or led last, and until when by its beats (synergyd/store/leader.py).

    `term` goes up by one with each change of holder, which tells apart what an earlier holder still had to write.
    `beat` goes up with each renewal; `process` tells others on the holder's machine whether it is gone.
    """

    __tablename__ = "leader"

    id: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)
    holder: Mapped[str] = mapped_column(String(64))
    host: Mapped[str] = mapped_column(Text)
    pid: Mapped[int] = mapped_column(BigInteger)
    heartbeat_s: Mapped[float] = mapped_column(Double)
    term: Mapped[int] = mapped_column(BigInteger)
    beat: Mapped[int] = mapped_column(BigInteger)
    process: Mapped[str] = mapped_column(Text)
    cluster: Mapped[str] = mapped_column(Text, server_default="")  # whose jobs these are; "" until a daemon has led


class StandbyRow(Base):
    """A daemon that stands by. `acknowledged`: the term of the leader that knows of it, 0 for none."""

    __tablename__ = "standbys"

    holder: Mapped[str] = mapped_column(String(64), primary_key=True)
    host: Mapped[str] = mapped_column(Text)
    pid: Mapped[int] = mapped_column(BigInteger)
    beat: Mapped[int] = mapped_column(BigInteger)
    acknowledged: Mapped[int] = mapped_column(BigInteger)


class NodeTable(Base):
    """The remembered state of a node where jobs have fared badly (synergyd.control.state.node_health.NodeRecord)."""

    __tablename__ = "nodes"

    name: Mapped[str] = mapped_column(String(255), primary_key=True)
    payload: Mapped[dict[str, Any]] = mapped_column(Json)
    updated_s: Mapped[float] = mapped_column(Double)


class UsageRow(Base):
    """The use that a job made of the GPUs it held (synergy_core.usage.Usage): one allocation, or its part within one day."""

    __tablename__ = "usage"
    __table_args__ = (Index("ix_usage_to_s", "to_s"), Index("ix_usage_of_job", "of_job"))

    job_id: Mapped[int] = mapped_column(BigInteger, primary_key=True, autoincrement=False)
    from_s: Mapped[float] = mapped_column(Double, primary_key=True, autoincrement=False)
    to_s: Mapped[float] = mapped_column(Double)
    start_s: Mapped[float] = mapped_column(Double)
    is_open: Mapped[bool] = mapped_column(Boolean)
    user: Mapped[str] = mapped_column(Text)
    account: Mapped[str] = mapped_column(Text)
    gpus: Mapped[int] = mapped_column(Integer)
    asked_gpus: Mapped[int] = mapped_column(Integer)
    trained_s: Mapped[float] = mapped_column(Double)
    restart_s: Mapped[float] = mapped_column(Double)
    useful_gpu_s: Mapped[float] = mapped_column(Double)
    sigma_gpu_s: Mapped[float] = mapped_column(Double)
    stopped_s: Mapped[float] = mapped_column(Double)
    nodes: Mapped[str] = mapped_column(Text, server_default="")
    state: Mapped[str] = mapped_column(Text, server_default="")
    waited_s: Mapped[float] = mapped_column(Double, server_default="0")
    checkpoint_s: Mapped[float] = mapped_column(Double, server_default="0")
    measured_s: Mapped[float] = mapped_column(Double, server_default="0")
    measured_work: Mapped[float] = mapped_column(Double, server_default="0")
    of_job: Mapped[int] = mapped_column(BigInteger, server_default="0")
    changed_s: Mapped[float | None] = mapped_column(Double)
    predicted_ratio: Mapped[float | None] = mapped_column(Double)
    before_goodput: Mapped[float | None] = mapped_column(Double)
    slow_s: Mapped[float] = mapped_column(Double, server_default="0")
    idle_s: Mapped[float] = mapped_column(Double, server_default="0")


class ExpectedRow(Base):
    """One row (id 1): when the jobs of the queue are expected to start and end, and how earlier forecasts have come out."""

    __tablename__ = "expected"

    id: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)
    made_s: Mapped[float] = mapped_column(Double)
    jobs: Mapped[list[Any]] = mapped_column(Json)  # synergy_core.expected.ExpectedJob
    errors: Mapped[dict[str, Any]] = mapped_column(Json)


class WouldHaveRow(Base):
    """The account of one job in a dry run (synergy_core.would_have.WouldHave)."""

    __tablename__ = "would_have"
    __table_args__ = (Index("ix_would_have_to_s", "to_s"),)

    job_id: Mapped[int] = mapped_column(BigInteger, primary_key=True, autoincrement=False)
    submit_s: Mapped[float] = mapped_column(Double, primary_key=True, autoincrement=False)
    to_s: Mapped[float] = mapped_column(Double)
    payload: Mapped[dict[str, Any]] = mapped_column(Json)


class NoticeRow(Base):
    """A notice (synergy_core.notice.Notice).

    `next_s` is the time of its next try, or None if nothing is left to do for it. `done` names the ways on which it has gone out.
    """

    __tablename__ = "notices"
    __table_args__ = (Index("ix_notices_next_s", "next_s"), Index("ix_notices_job_id_at_s", "job_id", "at_s"))

    key: Mapped[str] = mapped_column(String(96), primary_key=True)
    job_id: Mapped[int] = mapped_column(BigInteger)
    at_s: Mapped[float] = mapped_column(Double)
    payload: Mapped[dict[str, Any]] = mapped_column(Json)
    done: Mapped[list[Any]] = mapped_column(Json)
    attempts: Mapped[int] = mapped_column(Integer)
    next_s: Mapped[float | None] = mapped_column(Double, nullable=True)
