"""The use of GPUs that join a running job, and changes without a requeue."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("usage", sa.Column("of_job", sa.BigInteger(), nullable=False, server_default="0"))
    op.add_column("usage", sa.Column("changed_s", sa.Double(), nullable=True))
    op.create_index("ix_usage_of_job", "usage", ["of_job"])


def downgrade() -> None:
    op.drop_index("ix_usage_of_job", "usage")
    op.drop_column("usage", "changed_s")
    op.drop_column("usage", "of_job")
