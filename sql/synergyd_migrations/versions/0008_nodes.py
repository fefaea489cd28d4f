"""Nodes: what is remembered of bad ones."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "nodes",
        sa.Column("name", sa.String(255), primary_key=True),
        sa.Column("payload", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("updated_s", sa.Double(), nullable=False),
    )


def downgrade() -> None:
    op.drop_table("nodes")
