"""Alembic's environment.

It runs on the connection that it is handed (synergyd/store/schema.py), inside that connection's transaction: a migration
that fails leaves nothing behind, on SQLite as on PostgreSQL.
"""

from __future__ import annotations

from alembic import context
from sqlalchemy import Connection, text
from synergy_core.errors import UsageError

from synergyd.store.tables import Base

# Two `synergyctl db upgrade` at once: the second waits for this lock and then finds nothing to do.
MIGRATION_LOCK = 0x53594E4D


def migrate() -> None:
    connection = context.config.attributes.get("connection")
    if not isinstance(connection, Connection):
        raise UsageError("alembic", "migrations run on a connection that synergyd opens", "run: synergyctl db upgrade")
    if connection.dialect.name == "postgresql":
        connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": MIGRATION_LOCK})
    context.configure(
        connection=connection,
        target_metadata=Base.metadata,
        render_as_batch=connection.dialect.name == "sqlite",
        compare_type=True,
        transactional_ddl=True,
    )
    with context.begin_transaction():
        context.run_migrations()


migrate()
