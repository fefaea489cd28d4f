"""What jobs made of the GPUs that they held, and notices that wait to be sent."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0010"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "usage",
        sa.Column("job_id", sa.BigInteger(), primary_key=True, autoincrement=False),
        sa.Column("from_s", sa.Double(), primary_key=True, autoincrement=False),
        sa.Column("to_s", sa.Double(), nullable=False),
        sa.Column("start_s", sa.Double(), nullable=False),
        sa.Column("is_open", sa.Boolean(), nullable=False),
        sa.Column("user", sa.Text(), nullable=False),
        sa.Column("account", sa.Text(), nullable=False),
        sa.Column("gpus", sa.Integer(), nullable=False),
        sa.Column("asked_gpus", sa.Integer(), nullable=False),
        sa.Column("trained_s", sa.Double(), nullable=False),
        sa.Column("restart_s", sa.Double(), nullable=False),
        sa.Column("useful_gpu_s", sa.Double(), nullable=False),
        sa.Column("sigma_gpu_s", sa.Double(), nullable=False),
        sa.Column("stopped_s", sa.Double(), nullable=False),
    )
    op.create_index("ix_usage_to_s", "usage", ["to_s"])
    op.create_table(
        "notices",
        sa.Column("key", sa.String(96), primary_key=True),
        sa.Column("job_id", sa.BigInteger(), nullable=False),
        sa.Column("at_s", sa.Double(), nullable=False),
        sa.Column("payload", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("done", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("next_s", sa.Double(), nullable=True),
    )
    op.create_index("ix_notices_next_s", "notices", ["next_s"])
    op.create_index("ix_notices_job_id_at_s", "notices", ["job_id", "at_s"])


def downgrade() -> None:
    op.drop_table("notices")
    op.drop_table("usage")
