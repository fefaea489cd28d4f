"""The command synergy-launch: it runs a training script with the plan Synergy chose, in place of torchrun.

Three roles, by where the process runs:
- outside a step that covers the allocation (in the batch script, or under an srun with stale sizes): starts such a step;
- one task a node in a covering step: runs torchrun for that node, watches it, reports;
- any further task of a wrongly sized step: leaves at once.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import click
from synergy_core import __version__
from synergy_core.errors import SynergyError, UsageError

from synergy_launch.batch.tuner import parse_batch_range
from synergy_launch.launcher import more_nodes, trial
from synergy_launch.launcher.commands import other_launchers
from synergy_launch.launcher.job import allocation as slurm
from synergy_launch.launcher.job import job_secret
from synergy_launch.launcher.job.allocation import JobAllocation
from synergy_launch.launcher.job.plan_source import find_plan_file
from synergy_launch.launcher.runs import LaunchOptions, adapt_plan_file, run_once, run_to_end


def run_leader(allocation: JobAllocation, arguments: Sequence[str]) -> int:
    """Start a step that covers the allocation, and wait for it. Raises UsageError where there is no srun."""
    # start it by the same entry, which may know where click lies
    own = Path(sys.argv[0]).name in ("synergy-launch", "synergy-launch.pyz")
    entry = [sys.argv[0]] if own else ["-m", "synergy_launch.launcher.command"]
    command = slurm.step_command(allocation, os.environ, [sys.executable, *entry, *arguments])
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)  # the step's own launchers get it too
    try:
        environment = {job_secret.VARIABLE: job_secret.new_secret(), **slurm.without_stale(os.environ)}
        child = subprocess.Popen(command, env=environment)
    except OSError as error:  # in a container there is no srun
        n = len(allocation.nodes)
        what = f"srun, which would start the launcher once on each node, can't be run ({error.strerror})"
        raise UsageError("synergy-launch", what, f"start it so yourself: srun -N {n} -n {n} ...") from None
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda n, _: child.send_signal(n) if child.poll() is None else None)
    code = child.wait()
    return code if code >= 0 else 128 - code


@click.command(
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False, "max_content_width": 100}
)
@click.option(
    "--checkpoint", default="", metavar="DIR", help="Checkpoint folder; default: the directive's checkpoint=."
)
@click.option("--runner", type=click.Choice(["torchrun", "python"]), default="torchrun", show_default=True,
              help="'python' starts the script itself, once a node.")  # fmt: skip
@click.option("--style", type=click.Choice(["auto", "megatron", "env"]), default="auto", show_default=True,
              help="How the script learns its degrees: Megatron's arguments, or only SYNERGY_PLAN_JSON.")  # fmt: skip
@click.option("--module", "-m", is_flag=True, help="SCRIPT is a module name, as with python -m.")
@click.option("--global-batch", "batch_limits", default="", metavar="LO:HI",
              help="Without a daemon: the script may choose its global batch in this range as its gradient noise grows.")  # fmt: skip
@click.option("--dry-run", is_flag=True, help="Print what would be run on this node, and stop.")
@click.option("--try", "is_trial", is_flag=True,
              help="Compare a few steps at two sizes here with an undisturbed run, and stop. Exit code 1: they differ.")  # fmt: skip
@click.version_option(__version__, prog_name="synergy-launch")
@click.argument("script")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def command(
    checkpoint: str,
    runner: str,
    style: str,
    module: bool,
    batch_limits: str,
    dry_run: bool,
    is_trial: bool,
    script: str,
    arguments: tuple[str, ...],
) -> None:
    """Run SCRIPT with the degrees, batch and GPUs that Synergy chose for this job.

    Use it in a batch script in place of torchrun:

    \b
        srun synergy-launch pretrain_gpt.py --num-layers 32 ...

    It derives nodes, ranks and rendezvous from the allocation, sets Megatron's arguments (or SYNERGY_PLAN_JSON for other
    scripts) by the plan, and runs torchrun on each node. SIGUSR2 asks the script for a checkpoint, SIGTERM ends it with one.
    Without a plan it uses what Slurm gave; outside Slurm it runs on this machine. SCRIPT may be another launcher's command,
    such as `torchrun --nproc-per-node 8 train.py`.

    Shell completion: eval "$(_SYNERGY_LAUNCH_COMPLETE=bash_source synergy-launch)"
    """
    if batch_limits:
        parse_batch_range(batch_limits, "--global-batch")
    if is_trial:
        sys.exit(trial.run_trial(script, arguments, module, checkpoint, style))
    translation = other_launchers.translate(script, arguments, module)
    script, arguments, module = translation.script, translation.arguments, translation.module
    os.environ.update(translation.environment)
    if not module and not dry_run:
        other_launchers.check_script(script)
    member = more_nodes.membership(os.environ)
    allocation = slurm.read(os.environ) if member is None else more_nodes.read_joined_allocation(member, os.environ)
    if member is not None:
        os.environ.update(more_nodes.environment_of_job(member, os.environ))
        del os.environ[more_nodes.JOINED]  # for what the script starts
    if not allocation.in_step and not dry_run:
        if not allocation.leader:
            sys.exit(0)  # one task too many: the leader starts one on each node
        sys.exit(run_leader(allocation, sys.argv[1:]))
    plan_file, remark = find_plan_file(allocation.job_id, os.environ)
    options = LaunchOptions(
        checkpoint=checkpoint,
        runner=runner,
        style=style,
        batch_limits=batch_limits,
        script=(f"module:{script}" if module else script, *arguments),
        dry_run=dry_run,
        local_rank=translation.local_rank,
        remark=translation.remark if allocation.node_rank == 0 else "",
    )
    allocation = other_launchers.with_processes(translation, allocation, plan_file.asked if plan_file else None)
    plan_file, remark = adapt_plan_file(options, allocation, plan_file, remark)
    if dry_run:
        sys.exit(run_once(options, allocation, plan_file, remark))
    sys.exit(run_to_end(options, allocation, plan_file, remark, member))


def main() -> None:
    """Run the command; report a user's mistake in one line and with exit code 2."""
    try:
        command(prog_name="synergy-launch")
    except SynergyError as error:
        click.echo(f"synergy-launch: {error}", err=True)
        sys.exit(2 if isinstance(error, UsageError) else 1)


if __name__ == "__main__":
    main()
