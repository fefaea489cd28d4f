"""Leases: the leader's beats, and who stands by."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("leader", sa.Column("beat", sa.BigInteger(), nullable=False, server_default="0"))
    op.add_column("leader", sa.Column("process", sa.Text(), nullable=False, server_default=""))
    # nobody leads during an upgrade: who starts first after it need not wait for the one before
    op.execute(sa.text("UPDATE leader SET pid = 0"))
    op.create_table(
        "standbys",
        sa.Column("holder", sa.String(64), primary_key=True),
        sa.Column("host", sa.Text(), nullable=False),
        sa.Column("pid", sa.BigInteger(), nullable=False),
        sa.Column("beat", sa.BigInteger(), nullable=False),
        sa.Column("acknowledged", sa.BigInteger(), nullable=False),
    )


def downgrade() -> None:
    op.drop_table("standbys")
    op.drop_column("leader", "process")
    op.drop_column("leader", "beat")
