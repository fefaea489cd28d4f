"""Where and how each incarnation ran, how long it waited, and what a change of size was predicted to bring against what it brought."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None

_TEXTS = ("nodes", "state")
_NUMBERS = ("waited_s", "checkpoint_s", "measured_s", "measured_work")
_UNKNOWN = ("predicted_ratio", "before_goodput")


def upgrade() -> None:
    for name in _TEXTS:
        op.add_column("usage", sa.Column(name, sa.Text(), nullable=False, server_default=""))
    for name in _NUMBERS:
        op.add_column("usage", sa.Column(name, sa.Double(), nullable=False, server_default="0"))
    for name in _UNKNOWN:
        op.add_column("usage", sa.Column(name, sa.Double(), nullable=True))


def downgrade() -> None:
    for name in (*_TEXTS, *_NUMBERS, *_UNKNOWN):
        op.drop_column("usage", name)
