"""What a profile's plans have measured."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("profiles", sa.Column("measured", sa.JSON(), nullable=True))


def downgrade() -> None:
    op.drop_column("profiles", "measured")
