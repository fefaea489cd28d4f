"""synergy-launch: runs a training script with the plan Synergy chose, in place of torchrun.

Three roles, by where the process runs:
- outside a step that covers the allocation (in the batch script, or under an srun with stale sizes): starts such a step;
- one task a node in a covering step: runs torchrun for that node, watches it, reports;
- any further task of a wrongly sized step: leaves at once.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import click

from synergy_launch.agent import run_folder
from synergy_launch.agent.settings import number_of
from synergy_launch.batch.tuner import batch_range
from synergy_launch.launcher import allocation as slurm
from synergy_launch.launcher import job_secret, no_adapter
from synergy_launch.launcher.allocation import JobAllocation
from synergy_launch.launcher.crew import Crew
from synergy_launch.launcher.in_place import CRASHES, LOST_HOLD_S, Restarts
from synergy_launch.launcher.kept_output import OutputKeeper
from synergy_launch.launcher.node_run import run_node
from synergy_launch.launcher.plan_guard import FIRST_STEP_S, HOLD_S, PlanGuard, hold
from synergy_launch.launcher.plan_source import find_plan_file
from synergy_launch.launcher.start import NodeCommand, is_megatron, node_command
from synergy_launch.launcher.status_reports import spoken_for
from synergy_launch.megatron_lm import arguments as megatron_arguments
from synergy_launch.megatron_lm import batch_arguments, fsdp2_checkpoint
from synergy_launch.megatron_lm import options as megatron_options
from synergy_launch.megatron_lm.batch_arguments import Trained
from synergy_launch.megatron_lm.older_checkpoint import REMARK as OLDER_FORMAT
from synergy_launch.megatron_lm.older_checkpoint import loads_older_format
from synergy_launch.megatron_lm.supervisor import Supervisor
from synergyd import __version__
from synergyd.errors import SynergyError, UsageError
from synergyd.records import Plan
from synergyd.wire.plan_file import PlanFile
from synergyd.wire.report import status_to_report


@dataclass(frozen=True, kw_only=True)
class LaunchOptions:
    """What the user wrote; the options' help describes each."""

    checkpoint: str
    runner: str
    style: str
    batch_limits: str
    script: tuple[str, ...]
    dry_run: bool


def _loadable(options: LaunchOptions, plan_file: PlanFile | None, remark: str) -> tuple[PlanFile | None, str]:
    """The plan file without its plan where what the script resumes from loads with the script's own degrees alone; and a remark."""
    if plan_file is None or plan_file.plan is None or not is_megatron(options.style, options.script[1:]):
        return plan_file, remark
    checkpoint = options.checkpoint or plan_file.checkpoint
    if not loads_older_format(options.script[1:], Path(checkpoint) if checkpoint else None):
        return plan_file, remark
    return replace(plan_file, plan=None), "; ".join(filter(None, (remark, OLDER_FORMAT)))


def _own_plan(options: LaunchOptions, allocation: JobAllocation) -> Plan | None:
    """Return the plan that Megatron-LM's options, as the user wrote them, amount to here; None for other scripts."""
    if not is_megatron(options.style, options.script[1:]):
        return None
    return megatron_arguments.plan_of(options.script[1:], allocation.world)


def _resizable(options: LaunchOptions, allocation: JobAllocation, plan_file: PlanFile | None) -> PlanFile | None:
    """Return the plan file; with the script's own plan where a job of Megatron-LM's starts at the size asked for and was given none: so
    it saves when it is asked to, in a format that another size can load."""
    if plan_file is None or plan_file.plan is not None or not plan_file.report or plan_file.asked is None:
        return plan_file
    as_asked = (plan_file.asked.nodes, plan_file.asked.gpus_per_node) == (len(allocation.nodes), allocation.gpus)
    own = _own_plan(options, allocation) if as_asked else None
    return plan_file if own is None else replace(plan_file, plan=own, own_batch=True)


def _guarded(options: LaunchOptions, allocation: JobAllocation, plan_file: PlanFile | None, remark: str) -> int:
    """Runs this node's command; where Synergy's plan fails at once, again with what works. Returns the exit code."""
    checkpoint = options.checkpoint or (plan_file.checkpoint if plan_file else "")
    first_step_s = number_of(os.environ, "SYNERGY_FIRST_STEP_S", float, FIRST_STEP_S)
    folder = Path(checkpoint) if checkpoint else None
    own = _own_plan(options, allocation)
    guard = PlanGuard(allocation, plan_file, folder, first_step_s=first_step_s, own=own)
    # a job that is not Synergy's ends as without it
    crashes = number_of(os.environ, "SYNERGY_CRASH_RESTARTS", int, CRASHES) if plan_file else 0
    in_place = os.environ.get("SYNERGY_IN_PLACE", "1")
    crew, able = None, in_place != "0"
    # on several nodes only where the user asks for it: one node's end is then another's too
    if in_place == "nodes" and allocation.job_id is not None and len(allocation.nodes) > 1:
        secret = job_secret.secret_in(os.environ)
        crew = Crew(allocation, slurm.address_of(allocation.nodes[0]), os.getuid(), secret)
    restarts = Restarts(allocation, folder, crashes=crashes, crew=crew, able=able)
    output = OutputKeeper(allocation, lambda: guard.ending, lambda: _is_synergys(allocation), os.environ)
    output.start()
    going = True
    while going:
        code = _run(options, restarts.allocation, guard.plan_file, remark, guard, restarts)
        going = not guard.ending and restarts.goes_on(code, guard)
        if text := restarts.words or guard.words():
            click.echo(f"synergy-launch: {text}", err=True)
        if going:
            guard.plan_file = _with_address(allocation, guard.plan_file)
            guard.begin()
    if guard.waits and not guard.ending and allocation.job_id is not None:
        failed = None
        if guard.tells and guard.failure is not None:
            # that it has followed an order must be told here, where the run failed before any other report
            told = restarts.told if restarts.told.number else None
            over = {**spoken_for(allocation), "ended": True}
            failed = status_to_report(over, allocation.job_id, allocation.restarts, guard.failure, told)
        lost = crew is not None and bool(crew.lost)
        most_s = LOST_HOLD_S if lost else HOLD_S
        hold(failed, lambda: _daemon(allocation), lambda: guard.ending, most_s)
    if crew is not None:
        crew.close()
    code = restarts.code or code  # all nodes end with what the first one does
    output.close()
    return code


def _with_address(allocation: JobAllocation, given: PlanFile | None) -> PlanFile | None:
    """`given`, and where to report: a job that started without a daemon has one by now."""
    if given is None or given.report:
        return given
    found, _ = find_plan_file(allocation.job_id, os.environ)
    return given if found is None else replace(found, plan=given.plan)


def _is_synergys(allocation: JobAllocation) -> bool:
    """Tell whether a daemon or the plugin has written to this job."""
    return find_plan_file(allocation.job_id, os.environ)[0] is not None


def _daemon(allocation: JobAllocation) -> tuple[str, int | None]:
    """Address and uid of the daemon that leads now."""
    plan_file, _ = find_plan_file(allocation.job_id, os.environ)
    return (plan_file.report, plan_file.by) if plan_file else ("", None)


def _run(
    options: LaunchOptions,
    allocation: JobAllocation,
    plan_file: PlanFile | None,
    remark: str,
    guard: PlanGuard | None = None,
    restarts: Restarts | None = None,
) -> int:
    """Runs, or prints, this node's command once. Returns the exit code."""
    # a dry run beside a running one must leave that one's folder alone
    folder_of = run_folder.path_of if options.dry_run else run_folder.make
    run_dir = folder_of(allocation.job_id, allocation.restarts, allocation.node_rank)
    # Megatron-LM counts what is in the checkpoint folder by iterations, of a batch that may change
    checkpoint = options.checkpoint or (plan_file.checkpoint if plan_file else "")
    megatron = is_megatron(options.style, options.script[1:])
    trained = batch_arguments.read(Path(checkpoint)) if megatron and checkpoint else Trained()
    if megatron:
        batch_arguments.rule_of("")  # a wrong word ends the start, not the run at its first change
        fsdp2_checkpoint.check(options.script[1:], Path(checkpoint) if checkpoint else None, allocation.world)
    limits = options.batch_limits or os.environ.get("SYNERGY_GLOBAL_BATCH", "")
    plain = no_adapter.check(options.script[0], plan_file.plan if plan_file else None, limits)
    node = node_command(
        options.script,
        allocation,
        plan_file,
        run_dir=run_dir,
        checkpoint=options.checkpoint,
        runner=options.runner,
        master=slurm.address_of(allocation.nodes[0]) if len(allocation.nodes) > 1 else "",
        style=options.style,
        # one compute thread a process unless the user asks for more: torchrun's own default, without its warning
        threads=os.environ.get("OMP_NUM_THREADS", "1"),
        trained=trained,
        batch_limits=limits,
        version=megatron_arguments.version_beside(Path(options.script[0])),
        run=restarts.told.number if restarts else 0,
    )
    if options.dry_run:
        for key, value in sorted(node.environment.items()):
            click.echo(f"{key}={shlex.quote(value)} \\")
        click.echo(shlex.join(node.argv))
        return 0
    remarks = [remark, plain if allocation.node_rank == 0 else ""]
    if megatron and checkpoint and allocation.node_rank == 0:
        remarks += _megatron_remarks(node, Path(checkpoint), trained)
    for text in filter(None, (*remarks, *node.remarks)):
        click.echo(f"synergy-launch: {text}", err=True)
    supervisor = _supervisor(node, allocation) if megatron else None
    return run_node(node, allocation, plan_file, run_dir, supervisor, guard, restarts)


def _megatron_remarks(node: NodeCommand, folder: Path, trained: Trained) -> list[str]:
    """Notes from which iteration on Megatron-LM runs with the plan's batch. Returns what the user should know."""
    remarks = []
    if node.plan:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            batch_arguments.write(folder, trained.with_batch(node.plan.global_batch))
        except OSError as error:
            why = f"the batch can't be noted ({error.strerror})"
            remarks.append(f"{folder}: {why}: after a change the run may end too early or late")
    if node.plan and fsdp2_checkpoint.keeps_size(node.argv):
        remarks.append(fsdp2_checkpoint.REMARK)
    if not megatron_options.has(node.argv, "--save-interval"):
        remarks.append(
            "without --save-interval Megatron-LM saves only on request and at its end: a failure loses all steps since then"
        )
    return remarks


def _supervisor(node: NodeCommand, allocation: JobAllocation) -> Supervisor:
    """For a command of Megatron-LM's, by its final arguments."""
    arguments = node.argv
    folder = (megatron_options.values(arguments, "--save") or [""])[-1]
    accepts = json.loads(node.environment.get("SYNERGY_ACCEPTS_JSON", "null"))
    if not folder:  # it can't be asked for a checkpoint
        accepts = {**(accepts or {}), "own_size": True}
    return Supervisor(
        node.plan or megatron_arguments.plan_of(arguments, allocation.world),
        folder,
        megatron_options.number(arguments, "--seq-length", 0),
        step_log=node.environment.get("SYNERGY_STEP_LOG", ""),
        resharding=node.plan is not None and megatron_arguments.reshards(arguments),
        accepts=accepts,
        nodes=len(allocation.nodes),
        restarts=allocation.restarts,
    )


def run_leader(allocation: JobAllocation, arguments: Sequence[str]) -> int:
    """Starts a step that covers the allocation, and waits for it. Raises UsageError where there is no srun."""
    # by the same entry, which may know where click lies
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
              help="How the script learns its degrees: Megatron's arguments, or SYNERGY_PLAN_JSON alone.")  # fmt: skip
@click.option("--module", "-m", is_flag=True, help="SCRIPT is a module name, as with python -m.")
@click.option("--global-batch", "batch_limits", default="", metavar="LO:HI",
              help="Without a daemon: the script may choose its global batch in this range as its gradient noise grows.")  # fmt: skip
@click.option("--dry-run", is_flag=True, help="Print what would be run on this node, and stop.")
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
    script: str,
    arguments: tuple[str, ...],
) -> None:
    """Run SCRIPT with the degrees, batch and GPUs that Synergy chose for this job.

    Use it in a batch script in place of torchrun:

    \b
        srun synergy-launch pretrain_gpt.py --num-layers 32 ...

    It takes the plan (a file of the daemon's, else AdminComment), derives nodes, ranks and rendezvous from the allocation,
    sets Megatron's arguments (or SYNERGY_PLAN_JSON for other scripts), and runs torchrun on each node. SIGUSR2 asks the
    script for a checkpoint, SIGTERM ends it with one. Without a plan it runs with what Slurm gave; outside Slurm it runs on
    this machine.

    Shell completion: eval "$(_SYNERGY_LAUNCH_COMPLETE=bash_source synergy-launch)"
    """
    if batch_limits:
        batch_range(batch_limits, "--global-batch")
    if not module and not dry_run and not os.access(script, os.R_OK):
        raise UsageError(
            "synergy-launch", f"script {script!r} does not exist or can't be read", "give a path, or -m MODULE"
        )
    allocation = slurm.read(os.environ)
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
    )
    run = _run if dry_run else _guarded
    plan_file = _resizable(options, allocation, plan_file)
    sys.exit(run(options, allocation, *_loadable(options, plan_file, remark)))


def main() -> None:
    """Entry point: one line and exit code 2 for a user's mistake."""
    try:
        command(prog_name="synergy-launch")
    except SynergyError as error:
        click.echo(f"synergy-launch: {error}", err=True)
        sys.exit(2 if isinstance(error, UsageError) else 1)


if __name__ == "__main__":
    main()
