"""What the restarts of each program have cost."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("profiles", sa.Column("restarts", sa.JSON(), nullable=True))


def downgrade() -> None:
    op.drop_column("profiles", "restarts")
