"""Profiles, epochs, decisions, events, lifecycles, flags, reports, leader."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

BIG_ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    _create_profiles()
    _create_epochs_and_decisions()
    _create_events_and_lifecycles()
    _create_flags_reports_and_leader()


def _create_profiles() -> None:
    op.create_table(
        "profiles",
        sa.Column("key", sa.Text(), primary_key=True),
        sa.Column("speed", sa.Double(), nullable=False),
        sa.Column("memory", sa.Double(), nullable=False),
        sa.Column("samples", sa.BigInteger(), nullable=False),
        sa.Column("noise_scale", sa.Double(), nullable=True),
        sa.Column("resharding", sa.Boolean(), nullable=False),
        sa.Column("model", sa.JSON(), nullable=True),
        sa.Column("global_batch", sa.BigInteger(), nullable=True),
        sa.Column("updated_s", sa.Double(), nullable=False),
    )


def _create_epochs_and_decisions() -> None:
    op.create_table(
        "epochs",
        sa.Column("id", BIG_ID, primary_key=True, autoincrement=True),
        sa.Column("write_key", sa.String(64), nullable=False),
        sa.Column("started_s", sa.Double(), nullable=False),
        sa.Column("duration_s", sa.Double(), nullable=False),
        sa.Column("dry_run", sa.Boolean(), nullable=False),
        sa.Column("jobs", sa.Integer(), nullable=False),
        sa.Column("summary", sa.JSON(), nullable=False),
        sa.Column("present", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("error", sa.Text(), nullable=False),
        sa.UniqueConstraint("write_key", name="uq_epochs_write_key"),
    )
    op.create_index("ix_epochs_started_s", "epochs", ["started_s"])
    op.create_table(
        "decisions",
        sa.Column("epoch_id", BIG_ID, nullable=False),
        sa.Column("job_id", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("at_s", sa.Double(), nullable=False),
        sa.Column("action", sa.Text(), nullable=False),
        sa.Column("cell", sa.JSON(), nullable=True),
        sa.Column("node_names", sa.JSON(), nullable=False),
        sa.Column("why", sa.Text(), nullable=False),
        sa.Column("relative_goodput", sa.Double(), nullable=True),
        sa.Column("alternatives", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("epoch_id", "job_id"),
        sa.ForeignKeyConstraint(["epoch_id"], ["epochs.id"], name="fk_decisions_epoch_id", ondelete="CASCADE"),
    )
    op.create_index("ix_decisions_job_id_at_s", "decisions", ["job_id", "at_s"])


def _create_events_and_lifecycles() -> None:
    op.create_table(
        "events",
        sa.Column("id", BIG_ID, primary_key=True, autoincrement=True),
        sa.Column("write_key", sa.String(64), nullable=False),
        sa.Column("seq", sa.Integer(), nullable=False),
        sa.Column("job_id", sa.BigInteger(), nullable=False),
        sa.Column("at_s", sa.Double(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("event", sa.Text(), nullable=False),
        sa.Column("detail", sa.Text(), nullable=False),
        sa.UniqueConstraint("write_key", "seq", name="uq_events_write_key_seq"),
    )
    op.create_index("ix_events_job_id_at_s", "events", ["job_id", "at_s"])
    op.create_index("ix_events_at_s", "events", ["at_s"])
    op.create_table(
        "lifecycles",
        sa.Column("job_id", sa.BigInteger(), primary_key=True, autoincrement=False),
        sa.Column("submit_s", sa.Double(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("payload", sa.JSON(), nullable=False),
        sa.Column("updated_s", sa.Double(), nullable=False),
    )


def _create_flags_reports_and_leader() -> None:
    op.create_table(
        "job_flags",
        sa.Column("job_id", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("flag", sa.Text(), nullable=False),
        sa.Column("submit_s", sa.Double(), nullable=False),
        sa.Column("at_s", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("job_id", "flag", "submit_s"),
    )
    op.create_index("ix_job_flags_flag_at_s", "job_flags", ["flag", "at_s"])
    op.create_table(
        "reports",
        sa.Column("job_id", sa.BigInteger(), primary_key=True, autoincrement=False),
        sa.Column("payload", sa.JSON(), nullable=False),
        sa.Column("received_s", sa.Double(), nullable=False),
    )
    op.create_table(
        "leader",
        sa.Column("id", sa.Integer(), primary_key=True, autoincrement=False),
        sa.Column("holder", sa.String(64), nullable=False),
        sa.Column("host", sa.Text(), nullable=False),
        sa.Column("pid", sa.BigInteger(), nullable=False),
        sa.Column("heartbeat_s", sa.Double(), nullable=False),
        sa.Column("term", sa.BigInteger(), nullable=False),
    )


def downgrade() -> None:
    for table in ("leader", "reports", "job_flags", "lifecycles", "events", "decisions", "epochs", "profiles"):
        op.drop_table(table)
