"""What a decision is worth by term, and the job's finish-time fairness."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("decisions", sa.Column("worth", sa.JSON(), nullable=True))
    op.add_column("decisions", sa.Column("fairness", sa.Double(), nullable=True))


def downgrade() -> None:
    op.drop_column("decisions", "fairness")
    op.drop_column("decisions", "worth")
