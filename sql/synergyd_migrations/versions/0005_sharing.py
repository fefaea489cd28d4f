"""Which links a decided job shares with whom, and what that costs."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("decisions", sa.Column("sharing", sa.JSON(), nullable=True))


def downgrade() -> None:
    op.drop_column("decisions", "sharing")
