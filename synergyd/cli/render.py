"""synergyctl render: the script of a job with the degrees chosen for it."""

from __future__ import annotations

import click
from synergy_core.errors import UsageError
from synergy_core.wire import admin_comment
from synergy_launch.launcher.commands.batch_script import ScriptRequest, find_command
from synergy_launch.launcher.commands.batch_script import render as rendered

from synergyd.cli.shared.context import Context, pass_context
from synergyd.cli.shared.job_names import JOB_NAME
from synergyd.slurm.client import DeniedError
from synergyd.slurm.command_line import CommandLine
from synergyd.slurm.directives.directive import parse_script


@click.command()
@click.argument("name", metavar="JOB", type=JOB_NAME)
@pass_context
def render(context: Context, name: str) -> None:
    """Print a batch script that runs JOB by hand, with torchrun, exactly as Synergy last decided. It is never run by the daemon."""
    with context.backend() as backend:
        job = backend.job_id(name)
        decision = backend.explain(job).decision
    if decision is None or decision.cell is None:
        raise UsageError(f"job {job}", "has no plan of Synergy's", "synergyctl explain tells why")
    slurm = CommandLine()
    row = slurm.job(job)
    try:
        script = slurm.batch_script(row.het_job_id or job if row else job)
    except DeniedError:
        raise UsageError(f"job {job}", "Slurm shows its script to its owner alone", "ask its owner") from None
    if script is None:
        raise UsageError(f"job {job}", "Slurm has no script of it any more", "only jobs in the queue can be rendered")
    directive = parse_script(script)
    cell = decision.cell
    stamp = admin_comment.decode(slurm.admin_comment(job))
    # a job that no daemon has stamped yet tells by its directive alone
    own_batch = directive is not None and not (directive.global_batch or directive.adapt)
    click.echo(
        rendered(
            ScriptRequest(
                job_name=row.name if row else str(job),
                command=find_command(script),
                shape=cell.shape,
                plan=cell.plan,
                nodes=decision.node_names,
                checkpoint=(directive.checkpoint if directive else None) or "",
                why=decision.why,
                own_batch=stamp.own_batch if stamp is not None and stamp.plan is not None else own_batch,
                requested_shape=stamp.requested_shape if stamp is not None else None,
            )
        ),
        nl=False,
    )
