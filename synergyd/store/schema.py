"""The schema's revision: the one a database has, the one this version needs, and the upgrade."""

from __future__ import annotations

import threading
from importlib.resources import files

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from alembic.util import CommandError
from sqlalchemy import Connection
from synergy_core.errors import NoSchemaError, SetupError, UsageError

from synergyd.store.connect import (
    UPGRADE,
    file_exists,
    make_engine,
    make_namespace,
    parse_url,
    plain_errors,
    show,
    sqlite_path,
)

_ALEMBIC = threading.Lock()  # alembic.context is one for the whole process


def config() -> Config:
    """Return Alembic's configuration, made here so that an installed package needs no alembic.ini."""
    alembic_config = Config()
    # Alembic reads options through configparser, where % begins an interpolation
    alembic_config.set_main_option("script_location", str(files("synergyd_migrations")).replace("%", "%%"))
    return alembic_config


def needed_revision() -> str:
    """Return the revision that this version of Synergy works with. Raises UsageError if there are no migrations."""
    head = ScriptDirectory.from_config(config()).get_current_head()
    if head is None:
        raise UsageError("sql/versions", "holds no migrations", "install the package again")
    return head


def read_revision(connection: Connection) -> str | None:
    """Return the revision that the database has, or None for an empty database."""
    heads = MigrationContext.configure(connection).get_current_heads()
    return heads[0] if heads else None


def check(connection: Connection, where: str) -> None:
    """Raise UsageError, naming both revisions, unless the schema is exactly the one this version needs."""
    has, needs = read_revision(connection), needed_revision()
    if has == needs:
        return
    if has is None:
        raise NoSchemaError(where, f"the database has no schema, revision {needs} is needed", UPGRADE)
    if _is_known(has):
        raise NoSchemaError(where, f"the schema is at revision {has}, revision {needs} is needed", UPGRADE)
    raise SetupError(
        where, f"the schema is at revision {has}, this version knows up to {needs}", "install a newer Synergy"
    )


def upgrade(url: str) -> tuple[str | None, str]:
    """Upgrade the database to the newest revision, in one transaction. A missing SQLite file is created.

    Return the revisions before and after. Raises UsageError or UnavailableError.
    """
    plain_url = parse_url(url)
    engine = make_engine(plain_url, create=True, migrating=True, pooled=False)
    try:
        with plain_errors(plain_url), engine.begin() as connection:
            make_namespace(connection, plain_url)
            return upgrade_on(connection, show(plain_url))
    finally:
        engine.dispose()


def upgrade_on(connection: Connection, where: str) -> tuple[str | None, str]:
    """Run `upgrade` on an open connection, inside its transaction."""
    before, needs = read_revision(connection), needed_revision()
    if before is not None and not _is_known(before):
        check(connection, where)
    alembic_config = config()
    alembic_config.attributes["connection"] = connection
    try:
        with _ALEMBIC:
            command.upgrade(alembic_config, "head")
    except CommandError as error:
        raise UsageError(
            where, f"the migration can't run: {error}", "restore the database or install a newer Synergy"
        ) from None
    return before, needs


def revision(url: str) -> str | None:
    """Return the revision of the database at `url`, or None for an empty database or a missing SQLite file."""
    plain_url = parse_url(url)
    path = sqlite_path(plain_url)
    if path is not None and not file_exists(plain_url, path):
        return None
    engine = make_engine(plain_url, pooled=False)
    try:
        with plain_errors(plain_url), engine.connect() as connection:
            return read_revision(connection)
    finally:
        engine.dispose()


def is_older(revision: str) -> bool:
    """Return whether this version can upgrade the revision."""
    return revision != needed_revision() and _is_known(revision)


def _is_known(name: str) -> bool:
    return any(s.revision == name for s in ScriptDirectory.from_config(config()).walk_revisions())
