"""synergyctl pause and resume."""

from __future__ import annotations

import time

import click

from synergyd.cli.context import JOB_ID, Context, pass_context
from synergyd.errors import UsageError


@click.command()
@click.argument("job", type=JOB_ID)
@pass_context
def pause(context: Context, job: int) -> None:
    """Leave JOB at its present size until `synergyctl resume JOB`. A resize that is under way is finished."""
    _set(context, job, True)
    click.echo(f"job {job}: paused; it keeps its present size")


@click.command()
@click.argument("job", type=JOB_ID)
@pass_context
def resume(context: Context, job: int) -> None:
    """Let Synergy resize JOB again."""
    _set(context, job, False)
    click.echo(f"job {job}: Synergy may resize it again")


def _set(context: Context, job: int, paused: bool) -> None:
    with context.store() as store:
        if job not in store.lifecycles() and not store.decisions_of(job, 1):
            raise UsageError(f"job {job}", "was never seen by the daemon", "synergyctl status lists the jobs it knows")
        store.set_paused(job, paused, time.time())
