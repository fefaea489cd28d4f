"""The schema's revision: what a database has, what this version needs, and the way up."""

from __future__ import annotations

import threading
from importlib.resources import files

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from alembic.util import CommandError
from sqlalchemy import Connection

from synergyd.errors import NoSchemaError, UsageError
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
    """Alembic's configuration, made here so that an installed package needs no alembic.ini."""
    made = Config()
    # Alembic reads options through configparser, where % begins an interpolation
    made.set_main_option("script_location", str(files("synergyd_migrations")).replace("%", "%%"))
    return made


def needed() -> str:
    """The revision that this version of Synergy works with."""
    head = ScriptDirectory.from_config(config()).get_current_head()
    if head is None:
        raise UsageError("sql/versions", "holds no migrations", "install the package again")
    return head


def found(connection: Connection) -> str | None:
    """The revision that the database has; None for an empty one."""
    heads = MigrationContext.configure(connection).get_current_heads()
    return heads[0] if heads else None


def check(connection: Connection, where: str) -> None:
    """Raises UsageError, naming both revisions, unless the schema is exactly the one this version needs."""
    has, needs = found(connection), needed()
    if has == needs:
        return
    if has is None:
        raise NoSchemaError(where, f"the database has no schema, revision {needs} is needed", UPGRADE)
    if _known(has):
        raise NoSchemaError(where, f"the schema is at revision {has}, revision {needs} is needed", UPGRADE)
    raise UsageError(
        where, f"the schema is at revision {has}, this version knows up to {needs}", "install a newer Synergy"
    )


def upgrade(url: str) -> tuple[str | None, str]:
    """Brings the database to the newest revision, in one transaction; a SQLite file is made if it is missing.

    Returns the revisions before and after. Raises UsageError or UnavailableError.
    """
    parsed = parse_url(url)
    engine = make_engine(parsed, create=True, migrating=True, pooled=False)
    try:
        with plain_errors(parsed), engine.begin() as connection:
            make_namespace(connection, parsed)
            return upgrade_on(connection, show(parsed))
    finally:
        engine.dispose()


def upgrade_on(connection: Connection, where: str) -> tuple[str | None, str]:
    """`upgrade` on an open connection, inside its transaction."""
    before, needs = found(connection), needed()
    if before is not None and not _known(before):
        check(connection, where)
    made = config()
    made.attributes["connection"] = connection
    try:
        with _ALEMBIC:
            command.upgrade(made, "head")
    except CommandError as error:
        raise UsageError(
            where, f"the migration can't run: {error}", "restore the database or install a newer Synergy"
        ) from None
    return before, needs


def revision(url: str) -> str | None:
    """The revision of the database at `url`; None for one that is empty, or a SQLite file that is not there."""
    parsed = parse_url(url)
    path = sqlite_path(parsed)
    if path is not None and not file_exists(parsed, path):
        return None
    engine = make_engine(parsed, pooled=False)
    try:
        with plain_errors(parsed), engine.connect() as connection:
            return found(connection)
    finally:
        engine.dispose()


def is_older(revision: str) -> bool:
    """A revision that this version can upgrade."""
    return revision != needed() and _known(revision)


def _known(name: str) -> bool:
    return any(s.revision == name for s in ScriptDirectory.from_config(config()).walk_revisions())
