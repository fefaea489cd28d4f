"""The reasons of a decision as data, beside its sentences."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from synergyd.store.tables import Json

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("decisions", sa.Column("reasons", Json, nullable=True))


def downgrade() -> None:
    op.drop_column("decisions", "reasons")
