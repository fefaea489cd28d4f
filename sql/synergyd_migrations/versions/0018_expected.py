"""When the jobs of the queue are expected to start and end, and the time that slow nodes took."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0018"
down_revision = "0017"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("usage", sa.Column("slow_s", sa.Double(), nullable=False, server_default="0"))
    op.create_table(
        "expected",
        sa.Column("id", sa.Integer(), primary_key=True, autoincrement=False),
        sa.Column("made_s", sa.Double(), nullable=False),
        sa.Column("jobs", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("errors", sa.JSON(none_as_null=True), nullable=False),
    )


def downgrade() -> None:
    op.drop_table("expected")
    op.drop_column("usage", "slow_s")
