"""Which degrees a job's script can be told."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("profiles", sa.Column("accepts", sa.JSON(), nullable=True))


def downgrade() -> None:
    op.drop_column("profiles", "accepts")
