"""Whose each job is, and what its owner has set since sbatch."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "steering",
        sa.Column("job_id", sa.BigInteger(), primary_key=True, autoincrement=False),
        sa.Column("payload", sa.JSON(), nullable=False),
        sa.Column("changed_s", sa.Double(), nullable=False),
    )

    op.create_table(
        "owners",
        sa.Column("job_id", sa.BigInteger(), primary_key=True, autoincrement=False),
        sa.Column("user", sa.Text(), nullable=False),
        sa.Column("account", sa.Text(), nullable=False),
        sa.Column("seen_s", sa.Double(), nullable=False),
    )
    op.create_index("ix_owners_seen_s", "owners", ["seen_s"])


def downgrade() -> None:
    op.drop_table("owners")
    op.drop_table("steering")
