"""synergyctl render: the script of a job with the degrees chosen for it."""

from __future__ import annotations

import click
from synergy_launch.launcher.batch_script import ScriptRequest, command_in
from synergy_launch.launcher.batch_script import render as rendered

from synergyd.cli.context import JOB_ID, Context, pass_context
from synergyd.errors import UsageError
from synergyd.slurm.command_line import CommandLine
from synergyd.slurm.directive import parse_script


@click.command()
@click.argument("job", type=JOB_ID)
@pass_context
def render(context: Context, job: int) -> None:
    """Print a batch script that runs JOB by hand, with torchrun, exactly as Synergy last decided. It is never run by the daemon."""
    with context.desk() as desk:
        decision = desk.explain(job).decision
    if decision is None or decision.cell is None:
        raise UsageError(f"job {job}", "has no decided size", "synergyctl explain tells why")
    slurm = CommandLine()
    script = slurm.batch_script(job)
    if script is None:
        raise UsageError(f"job {job}", "Slurm has no script of it any more", "only jobs in the queue can be rendered")
    row = slurm.job(job)
    directive = parse_script(script)
    cell = decision.cell
    click.echo(
        rendered(
            ScriptRequest(
                job_name=row.name if row else str(job),
                command=command_in(script),
                shape=cell.shape,
                plan=cell.plan,
                nodes=decision.node_names,
                checkpoint=(directive.checkpoint if directive else None) or "",
                why=decision.why,
            )
        ),
        nl=False,
    )
