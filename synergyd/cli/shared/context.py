"""The context that all verbs share: settings read when first needed, the store, errors as one line."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import click
from synergy_core.errors import SetupError, SynergyError, UnavailableError, UsageError

from synergyd.settings import Settings

if TYPE_CHECKING:  # --help and completion, at each Tab, do without the database's library
    from synergyd.cli.shared.backend import Backend
    from synergyd.cli.shared.rest_client import RestClient
    from synergyd.slurm.directives.conf import LoadedSettings
    from synergyd.store.store import Store


# libraries of the extra `server` of setup.cfg; compute nodes do without them
SERVER_LIBRARIES = frozenset({"numpy", "scipy", "highspy", "sqlalchemy", "alembic", "rich", "prometheus_client"})
REST_LIBRARIES = frozenset({"starlette", "uvicorn", "jwt"})


def need_server_part() -> None:
    """Raise ModuleNotFoundError if one of SERVER_LIBRARIES is not installed; `run_command_line` reports it in one line. Import none."""
    for name in sorted(SERVER_LIBRARIES):
        if find_spec(name) is None:
            raise ModuleNotFoundError(name, name=name)


class Context:
    """The `ctx.obj` of every verb.

    `conf`: a slurm.conf named on the command line; `database`: a URL named there; `cluster`: another one than slurm.conf's, in
    the same PostgreSQL.
    """

    def __init__(self, conf: Path | None = None, database: str = "", cluster: str = "") -> None:
        self.conf = conf
        self.database = database
        self.cluster = cluster

    @cached_property
    def loaded_settings(self) -> LoadedSettings:
        """Return the settings with their origins. Raises UsageError if there is no slurm.conf."""
        from synergyd.slurm.directives.conf import find_slurm_conf, load_settings

        return load_settings(self.conf or find_slurm_conf(), self.cluster)

    @cached_property
    def settings(self) -> Settings:
        """Return the settings. Raises UsageError for the first line that is wrong."""
        for problem in self.loaded_settings.errors():
            raise UsageError(problem.where, problem.what, problem.right)
        settings = self.loaded_settings.settings
        return replace(settings, database=self.database) if self.database else settings

    @contextmanager
    def backend(self) -> Iterator[Backend]:
        """Open access to jobs, to read and to steer.

        It goes over the REST service for those who may not open the database, else to the database. Where neither is
        open to an ordinary user, UnavailableError says so, without advice that only an admin could follow.
        """
        from synergyd.cli.shared.backend import DatabaseBackend, RestBackend
        from synergyd.cli.shared.rest_client import START_SERVICE, RestClient

        if not (self.database or self.cluster) and (services := self._services()):
            yield RestBackend(RestClient(*services))
            return
        try:
            with self.store() as store:
                yield DatabaseBackend(store)
        except SetupError:
            if self.database or self._administers():
                raise
            what = "Synergy's REST service does not run here, and its database is its admin's alone"
            raise UnavailableError("", what, START_SERVICE) from None

    def rest_client(self) -> RestClient:
        """Return a client of the REST service, for what the database alone does not do. Raises UnavailableError if there is none."""
        from synergyd.cli.shared.rest_client import START_SERVICE, RestClient

        if not (services := self._all_services()):
            raise UnavailableError("", "Synergy's REST service does not run here", START_SERVICE)
        return RestClient(*services)

    def _administers(self) -> bool:
        """Return whether this user can put the database right: root, or the daemon's user."""
        try:
            return os.geteuid() in (0, self.settings.state_dir.stat().st_uid)
        except OSError:
            return os.geteuid() == 0

    def daemon_hosts(self) -> tuple[str, ...]:
        """Return the hosts on one of which the daemon and the REST service run."""
        return (self.settings.report_host,) if self.settings.report_host else self.loaded_settings.controllers

    def _services(self) -> Sequence[Path | tuple[str, int]]:
        """Return where the REST service may be, or nothing if there is none, or for root on the host of the database."""
        settings = self.settings
        at_database = bool(settings.database) or os.access(settings.state_dir / "synergy.db", os.F_OK)
        if os.geteuid() == 0 and at_database:
            return ()
        return self._all_services()

    def _all_services(self) -> Sequence[Path | tuple[str, int]]:
        settings = self.settings
        # a StateDir that is closed to this user hides the socket too
        if os.access(settings.rest_socket(), os.F_OK) and settings.rest_socket().is_socket():
            return (settings.rest_socket(),)
        if not settings.rest_port:
            return ()
        return [(host, settings.rest_port) for host in self.daemon_hosts()]

    def store(self) -> Store:
        """Return the daemon's database. Raises one line when there is none yet."""
        from synergyd.store.store import open_store

        url = self.database or self.settings.database_url()
        return open_store(url)


def not_both(cluster: str, url: str | None) -> None:
    """Raise UsageError if another cluster is named, and a database as well: one of them would be passed over."""
    if cluster and url is not None:
        raise UsageError(f"--cluster {cluster}", "a database is named as well", "name one of them")


pass_context = click.make_pass_decorator(Context)


def run_command_line(name: str, command: Callable[[], object]) -> None:
    """Run a command line. Exit with one line and code 2 for a user's mistake, and code 1 for something that is away."""
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
