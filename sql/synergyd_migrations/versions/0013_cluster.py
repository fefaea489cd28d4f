"""Whose database it is: the cluster of the daemon that leads."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("leader", sa.Column("cluster", sa.Text(), nullable=False, server_default=""))


def downgrade() -> None:
    op.drop_column("leader", "cluster")
