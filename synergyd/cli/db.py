"""`synergyctl db`: the database's schema."""

from __future__ import annotations

import click

from synergyd.cli.shared.context import not_both
from synergyd.store import private_file, schema
from synergyd.store.before_upgrade import keep_copy, refuse_if_used
from synergyd.store.connect import parse_url, show, sqlite_path


@click.group()
def db() -> None:
    """Create the database's schema, bring it up to date, or show its revision.

    The database is the one of `#SYNERGY Database=` in slurm.conf (a SQLite file in StateDir if that is not set), or
    the one of --url.
    """


_url = click.option(
    "--url",
    metavar="URL",
    help="Database to work on, in place of the configured one: sqlite:////path/synergy.db or"
    " postgresql+psycopg://user:password@host/database.",
)


@db.command()
@_url
@click.option("--existing", is_flag=True, help="Only a database that has a schema: make none.")
@click.option("--no-copy", is_flag=True, help="Keep no copy of a SQLite file.")
@click.pass_context
def upgrade(ctx: click.Context, url: str | None, existing: bool, no_copy: bool) -> None:
    """Bring the schema to the revision that this version of Synergy needs.

    It creates the schema in an empty database. It is one transaction: a failure changes nothing. Stop the daemon before an
    upgrade from an older version; while one runs, the upgrade is refused. A SQLite file is copied beside it first; copy
    PostgreSQL with pg_dump.

    \b
    Example:
      createdb synergy
      synergyctl db upgrade --url postgresql+psycopg://synergy@dbhost/synergy
    """
    target = _target(ctx, url)
    parsed = parse_url(target)
    where, path = show(parsed), sqlite_path(parsed)
    revision_before = schema.revision(target)
    if revision_before is None and existing:
        click.echo(f"{where}: there is no schema to upgrade")
        return
    if revision_before is not None and schema.is_older(revision_before):
        refuse_if_used(target)
        if path is not None and not no_copy:
            click.echo(f"{where}: copied to {keep_copy(path, revision_before)}")
    before, after = schema.upgrade(target)
    if path is not None:
        private_file.tighten(path)
    if before == after:
        click.echo(f"{where}: schema is at revision {after} already")
    elif before is None:
        click.echo(f"{where}: schema created, revision {after}")
    else:
        click.echo(f"{where}: schema upgraded from revision {before} to {after}")


@db.command()
@_url
@click.pass_context
def current(ctx: click.Context, url: str | None) -> None:
    """Show the schema's revision, and the one that this version needs.

    Ends with exit code 1 if they differ.
    """
    target = _target(ctx, url)
    present, newest = schema.revision(target), schema.needed_revision()
    where = show(parse_url(target))
    if present == newest:
        click.echo(f"{where}: schema is at revision {present}, as needed")
        return
    has = "the database has no schema" if present is None else f"schema is at revision {present}"
    click.echo(f"{where}: {has}, revision {newest} is needed; run: synergyctl db upgrade")
    ctx.exit(1)


def _target(ctx: click.Context, url: str | None) -> str:
    """Return the URL to work on. slurm.conf is read only if none was given."""
    not_both(ctx.obj.cluster, url)
    return url if url is not None else str(ctx.obj.settings.database_url())
