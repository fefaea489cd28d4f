"""synergyctl pause, resume and set: its owner steers a job."""

from __future__ import annotations

import click
from synergy_core.steering import format_steering

from synergyd.cli.shared.context import Context, pass_context
from synergyd.cli.shared.job_names import JOB_NAME


@click.command()
@click.argument("job", type=JOB_NAME)
@pass_context
def pause(context: Context, job: str) -> None:
    """Leave JOB at its present size until `synergyctl resume JOB`. A resize that is under way is finished."""
    with context.backend() as backend:
        backend.set_paused(backend.job_id(job), True)
    click.echo(f"job {job}: paused; it keeps its present size")


@click.command()
@click.argument("job", type=JOB_NAME)
@pass_context
def resume(context: Context, job: str) -> None:
    """Let Synergy resize JOB again."""
    with context.backend() as backend:
        backend.set_paused(backend.job_id(job), False)
    click.echo(f"job {job}: Synergy may resize it again")


@click.command("set")
@click.argument("job", type=JOB_NAME)
@click.argument("change", nargs=-1, required=True, metavar="KEY=VALUE...")
@pass_context
def set_verb(context: Context, job: str, change: tuple[str, ...]) -> None:
    """Change what JOB's #SYNERGY lines say, from the next epoch on: min_gpus=, max_gpus=, weight=.

    A key with nothing behind = goes back to the script's value. MaxWeight and Slurm's limits hold as before.

    \b
    synergyctl set 4711 max_gpus=16
    synergyctl set 4711 min_gpus= weight=2
    """
    with context.backend() as backend:
        after = backend.steer(backend.job_id(job), change)
    click.echo(f"job {job}: {format_steering(after)}")
