"""The account of a dry run: what it would have changed for each job."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from synergyd.store.tables import Json

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "would_have",
        sa.Column("job_id", sa.BigInteger(), primary_key=True, autoincrement=False),
        sa.Column("submit_s", sa.Double(), primary_key=True, autoincrement=False),
        sa.Column("to_s", sa.Double(), nullable=False),
        sa.Column("payload", Json, nullable=False),
    )
    op.create_index("ix_would_have_to_s", "would_have", ["to_s"])


def downgrade() -> None:
    op.drop_index("ix_would_have_to_s", "would_have")
    op.drop_table("would_have")
