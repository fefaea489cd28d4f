"""The time in which a job's GPUs did nothing."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0019"
down_revision = "0018"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("usage", sa.Column("idle_s", sa.Double(), nullable=False, server_default="0"))


def downgrade() -> None:
    op.drop_column("usage", "idle_s")
