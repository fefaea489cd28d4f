"""What all verbs share: settings read when first needed, the store, errors as one line."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cached_property
from pathlib import Path

import click

from synergyd.errors import SynergyError, UsageError
from synergyd.settings import Settings
from synergyd.slurm.conf import LoadedSettings, find_slurm_conf, load_settings
from synergyd.store.store import Store, open_store


JOB_ID = click.IntRange(1, 2**32 - 1)


class Context:
    """`ctx.obj` of every verb. `conf`: a slurm.conf named on the command line; `database`: a URL named there."""

    def __init__(self, conf: Path | None = None, database: str = "") -> None:
        self.conf = conf
        self.database = database

    @cached_property
    def loaded(self) -> LoadedSettings:
        """Settings with their origins; raises UsageError where there is no slurm.conf."""
        return load_settings(self.conf or find_slurm_conf())

    @cached_property
    def settings(self) -> Settings:
        """The settings; raises UsageError for the first line that is wrong."""
        from dataclasses import replace

        for problem in self.loaded.errors():
            raise UsageError(problem.where, problem.what, problem.right)
        settings = self.loaded.settings
        return replace(settings, database=self.database) if self.database else settings

    def store(self) -> Store:
        """The daemon's database; raises one line when there is none yet."""
        url = self.database or self.settings.database_url()
        return open_store(url)


pass_context = click.make_pass_decorator(Context)


def guarded(name: str, command: Callable[[], object]) -> None:
    """Runs a command line; a user's mistake is one line and exit code 2, something that is away is 1."""
    try:
        command()
    except SynergyError as error:
        click.echo(f"{name}: {error}", err=True)
        sys.exit(2 if isinstance(error, UsageError) else 1)
    except BrokenPipeError:
        sys.exit(0)
