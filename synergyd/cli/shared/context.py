"""What all verbs share: settings read when first needed, the store, errors as one line."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import click

from synergyd.errors import SynergyError, UsageError
from synergyd.settings import Settings

if TYPE_CHECKING:  # --help and completion, at each Tab, do without the database's library
    from synergyd.cli.shared.desk import Desk
    from synergyd.slurm.directives.conf import LoadedSettings
    from synergyd.store.store import Store


# what the extra `server` of setup.cfg brings; compute nodes do without
SERVER_LIBRARIES = frozenset({"numpy", "scipy", "highspy", "sqlalchemy", "alembic", "rich", "prometheus_client"})
REST_LIBRARIES = frozenset({"starlette", "uvicorn", "jwt"})


def need_server_part() -> None:
    """Raises ModuleNotFoundError, which `guarded` tells in one line, where one of SERVER_LIBRARIES is not installed; imports none."""
    for name in sorted(SERVER_LIBRARIES):
        if find_spec(name) is None:
            raise ModuleNotFoundError(name, name=name)


class Context:
    """`ctx.obj` of every verb. `conf`: a slurm.conf named on the command line; `database`: a URL named there; `cluster`: another one
    than slurm.conf's, in the same PostgreSQL."""

    def __init__(self, conf: Path | None = None, database: str = "", cluster: str = "") -> None:
        self.conf = conf
        self.database = database
        self.cluster = cluster

    @cached_property
    def loaded(self) -> LoadedSettings:
        """Settings with their origins; raises UsageError where there is no slurm.conf."""
        from synergyd.slurm.directives.conf import find_slurm_conf, load_settings

        return load_settings(self.conf or find_slurm_conf(), self.cluster)

    @cached_property
    def settings(self) -> Settings:
        """The settings; raises UsageError for the first line that is wrong."""
        for problem in self.loaded.errors():
            raise UsageError(problem.where, problem.what, problem.right)
        settings = self.loaded.settings
        return replace(settings, database=self.database) if self.database else settings

    def desk(self) -> AbstractContextManager[Desk]:
        """Jobs, to read and to steer: over the REST service for those who may not open the database, else the database."""
        from synergyd.cli.shared.desk import RestDesk, database_desk
        from synergyd.cli.shared.rest_client import RestClient

        if self.database or self.cluster or not (services := self._services()):
            return database_desk(self.store())
        return nullcontext(RestDesk(RestClient(*services)))

    def daemon_hosts(self) -> tuple[str, ...]:
        """The hosts on one of which the daemon and the REST service run."""
        return (self.settings.report_host,) if self.settings.report_host else self.loaded.controllers

    def _services(self) -> Sequence[Path | tuple[str, int]]:
        """Where the REST service may be; nothing where there is none, and for root where the database is."""
        settings = self.settings
        at_database = bool(settings.database) or (settings.state_dir / "synergy.db").exists()
        if os.geteuid() == 0 and at_database:
            return ()
        if settings.rest_socket().is_socket():
            return (settings.rest_socket(),)
        if not settings.rest_port:
            return ()
        return [(host, settings.rest_port) for host in self.daemon_hosts()]

    def store(self) -> Store:
        """The daemon's database; raises one line when there is none yet."""
        from synergyd.store.store import open_store

        url = self.database or self.settings.database_url()
        return open_store(url)


def not_both(cluster: str, url: str | None) -> None:
    """Raises UsageError where another cluster is named, and a database as well: one of them would be passed over."""
    if cluster and url is not None:
        raise UsageError(f"--cluster {cluster}", "a database is named as well", "name one of them")


pass_context = click.make_pass_decorator(Context)


def guarded(name: str, command: Callable[[], object]) -> None:
    """Runs a command line; a user's mistake is one line and exit code 2, something that is away is 1."""
    try:
        command()
    except SynergyError as error:
        click.echo(f"{name}: {error}", err=True)
        sys.exit(2 if isinstance(error, UsageError) else 1)
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing not in SERVER_LIBRARIES | REST_LIBRARIES:
            raise
        part = "rest" if missing in REST_LIBRARIES else "server"
        click.echo(f"{name} needs the {part} part: pip install 'synergy-slurm[{part}]'", err=True)
        sys.exit(2)
    except BrokenPipeError:
        sys.exit(0)
