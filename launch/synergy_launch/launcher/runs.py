"""The runs of one node in one incarnation of the job, one after another: what each starts with, and what follows its end."""

from __future__ import annotations

import json
import os
import shlex
import signal
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import NoReturn

import click
from synergy_core.records import Plan
from synergy_core.wire.plan_file import PlanFile
from synergy_core.wire.report import status_to_report

from synergy_launch.agent import run_folder
from synergy_launch.agent.settings import TRY, read_number
from synergy_launch.launcher import more_nodes
from synergy_launch.launcher.before_run import JOIN_IMPORT_S, NodeChecker, compute_threads, environment_at_import
from synergy_launch.launcher.commands.start import NodeCommand, is_megatron, node_command
from synergy_launch.launcher.failures.plan_guard import FIRST_STEP_S, HOLD_S, PlanGuard, hold
from synergy_launch.launcher.group.launcher_group import LauncherGroup
from synergy_launch.launcher.in_place import CRASHES, LEAVE_S, LOST_HOLD_S, Grow, Restarts
from synergy_launch.launcher.job import allocation as slurm
from synergy_launch.launcher.job import job_secret
from synergy_launch.launcher.job.allocation import JobAllocation
from synergy_launch.launcher.job.kept_output import OutputKeeper
from synergy_launch.launcher.job.plan_source import find_plan_file
from synergy_launch.launcher.memory.copies import make_memory_copies
from synergy_launch.launcher.more_nodes import Membership, MoreNodes
from synergy_launch.launcher.node_run import run_node
from synergy_launch.launcher.script import kind as script_kind
from synergy_launch.launcher.script import no_adapter
from synergy_launch.launcher.status_reports import describe_launcher
from synergy_launch.megatron_lm import arguments as megatron_arguments
from synergy_launch.megatron_lm import batch_arguments, fsdp2_checkpoint
from synergy_launch.megatron_lm import options as megatron_options
from synergy_launch.megatron_lm.batch_arguments import Trained
from synergy_launch.megatron_lm.kernels import detect_kernels, torch_version
from synergy_launch.megatron_lm.older_checkpoint import REMARK as OLDER_FORMAT
from synergy_launch.megatron_lm.older_checkpoint import is_resumed_from_older_format
from synergy_launch.megatron_lm.supervisor import Supervisor
from synergy_launch.warm_start.starter import Starter

#: "0" in it: each start of the training processes is a start of Python
WARM_START = "SYNERGY_WARM_START"


@dataclass(frozen=True, kw_only=True)
class LaunchOptions:
    """The options that the user wrote; the options' help describes each."""

    checkpoint: str
    runner: str
    style: str
    batch_limits: str
    script: tuple[str, ...]
    dry_run: bool
    local_rank: str  # the option by which the script gets its local rank; "": none
    remark: str = ""


def adapt_plan_file(
    options: LaunchOptions, allocation: JobAllocation, plan_file: PlanFile | None, remark: str
) -> tuple[PlanFile | None, str]:
    """Return the plan file as the script can follow it here, and the remark with what the user should know of that."""
    return _loadable(options, _resizable(options, allocation, plan_file), remark)


def _loadable(options: LaunchOptions, plan_file: PlanFile | None, remark: str) -> tuple[PlanFile | None, str]:
    """Return the plan file and the remark, without the plan if the checkpoint loads only with the script's own degrees.

    A remark that says so is then added.
    """
    if plan_file is None or plan_file.plan is None or not is_megatron(options.style, options.script[1:]):
        return plan_file, remark
    checkpoint = options.checkpoint or plan_file.checkpoint
    if not is_resumed_from_older_format(options.script[1:], Path(checkpoint) if checkpoint else None):
        return plan_file, remark
    return replace(plan_file, plan=None), "; ".join(filter(None, (remark, OLDER_FORMAT)))


def _own_plan(options: LaunchOptions, allocation: JobAllocation) -> Plan | None:
    """Return the plan that Megatron-LM's options, as the user wrote them, amount to here; None for other scripts."""
    if not is_megatron(options.style, options.script[1:]):
        return None
    return megatron_arguments.read_plan(options.script[1:], allocation.world)


def _resizable(options: LaunchOptions, allocation: JobAllocation, plan_file: PlanFile | None) -> PlanFile | None:
    """Return the plan file, with the script's own plan for a Megatron-LM job that starts at the size asked for without a plan.

    The job then saves on request, in a format that another size can load.
    """
    if plan_file is None or plan_file.plan is not None or not plan_file.is_decided_about:
        return plan_file
    own = _own_plan(options, allocation) if allocation.has_size(plan_file.asked) else None
    return plan_file if own is None else replace(plan_file, plan=own, own_batch=True)


def run_to_end(
    options: LaunchOptions,
    allocation: JobAllocation,
    plan_file: PlanFile | None,
    remark: str,
    member: Membership | None = None,
) -> int:
    """Run this node's command, and run it again with a plan that works if Synergy's plan fails at once. Returns the exit code.

    `member`: this node is beside the job's own allocation, and takes part from the job's next run on.
    """
    checkpoint = options.checkpoint or (plan_file.checkpoint if plan_file else "")
    first_step_s = read_number(os.environ, "SYNERGY_FIRST_STEP_S", float, FIRST_STEP_S)
    folder = Path(checkpoint) if checkpoint else None
    own = _own_plan(options, allocation)
    guard = PlanGuard(allocation, plan_file, folder, first_step_s=first_step_s, own=own)
    restarts = _make_restarts(options, allocation, plan_file, folder, member)
    output = OutputKeeper(allocation, lambda: guard.ending, lambda: _is_synergys(allocation), os.environ)
    output.start()
    starter = _starter(options, allocation)
    # it measures with torch, which torchrun's own ranks need too
    is_checked = plan_file is not None and options.runner == "torchrun"
    checker = NodeChecker(allocation, os.environ, guard, restarts, starter, enabled=is_checked)

    def end(_number: int, _frame: FrameType | None) -> None:
        guard.ending = True

    # until the run has its own: a job that is preempted during its check is requeued
    signal.signal(signal.SIGTERM, end)
    signal.signal(signal.SIGINT, end)
    began_s = time.monotonic()
    checker.check_first(joins=member is not None)
    if member is not None:
        starter.prepare(environment_at_import(os.environ))
        starter.await_ready(max(0.0, began_s + JOIN_IMPORT_S - time.monotonic()))  # the run trains on meanwhile
    code = 0
    going = member is None or restarts.await_first_run(guard)
    if member is not None and going:
        guard.begin()
    while going:
        code = run_once(options, restarts.allocation, guard.plan_file, remark, guard, restarts, starter)
        order = restarts.report_part.order
        going = not guard.ending and restarts.begin_next_run(code, guard)
        if text := restarts.message or guard.format_outcome():
            click.echo(f"synergy-launch: {text}", err=True)
        if going:
            if restarts.report_part.order == order:
                checker.check_after_failure(code)
            guard.plan_file = _with_address(allocation, guard.plan_file)
            guard.begin()
    starter.close()
    if guard.waits and not guard.ending and allocation.job_id is not None:
        _hold_for_daemon(allocation, allocation.job_id, guard, restarts)
    code = 0 if restarts.leaves else restarts.code or code  # all nodes end with the first one's code
    output.close()
    restarts.close(0.0 if guard.ending else LEAVE_S)
    alone = restarts.is_alone
    if restarts.leaves:
        _end_process(code)
    if restarts.group is not None:
        restarts.group.close()  # last: the first node takes it as the end of this one
    if alone:
        more_nodes.release(os.environ)
    return code


def _end_process(code: int) -> NoReturn:
    """End this process now. The kernel closes its connections then: the first node may not give this node back before."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _make_restarts(
    options: LaunchOptions,
    allocation: JobAllocation,
    plan_file: PlanFile | None,
    folder: Path | None,
    member: Membership | None,
) -> Restarts:
    """Return what starts this node's runs again without a requeue, as far as the environment and the kind of job allow it."""
    # a job that is not Synergy's ends as it would without Synergy
    crashes = read_number(os.environ, "SYNERGY_CRASH_RESTARTS", int, CRASHES) if plan_file else 0
    in_place = os.environ.get("SYNERGY_IN_PLACE", "1")
    able, several = in_place != "0", len(allocation.nodes) > 1

    def new_group() -> LauncherGroup:
        secret = job_secret.read_secret(os.environ)
        return LauncherGroup(allocation, slurm.find_address(allocation.nodes[0]), os.getuid(), secret)

    def start(number: int, names: tuple[str, ...], joining: Membership) -> MoreNodes:
        return MoreNodes(number, names, joining, allocation, os.environ)

    is_grouped = able and several and (plan_file or in_place == "nodes") and allocation.job_id is not None
    # a heterogeneous job has no other like it, and a step elsewhere would not be in this one's container
    grows = able and plan_file is not None and allocation.job_id is not None and allocation.het_group is None
    grows = grows and more_nodes.can_start_steps(os.environ)
    return Restarts(
        allocation,
        folder,
        crashes=crashes,
        group=new_group() if is_grouped else None,
        memory=make_memory_copies(os.environ, allocation) if is_grouped else None,
        able=able,
        # torchrun's nodes end together; others' do where the user says so by `nodes`, the word of before 0.3
        mends=in_place == "nodes" or not several or member is not None,
        mends_checkpoints=options.runner == "torchrun",
        grow=Grow(new_group, start) if grows and allocation.node_rank == 0 else None,
        member=member,
    )


def _hold_for_daemon(allocation: JobAllocation, job_id: int, guard: PlanGuard, restarts: Restarts) -> None:
    """Wait for the daemon to requeue the job, and report how the run failed if its plan failed at once."""
    failed, group = None, restarts.group
    if guard.tells and guard.failure is not None:
        # the followed order must be told here if the run failed before any other report
        followed = restarts.report_part if restarts.report_part.number else None
        over = {**describe_launcher(allocation), "ended": True}
        failed = status_to_report(over, job_id, allocation.restarts, guard.failure, followed, fault=guard.fault)
    has_lost_nodes = restarts.mends and group is not None and bool(group.lost_ranks)
    most_s = LOST_HOLD_S if has_lost_nodes else HOLD_S
    hold(failed, lambda: _daemon(allocation), lambda: guard.ending, most_s)


def _starter(options: LaunchOptions, allocation: JobAllocation) -> Starter:
    """Return what starts this node's command: from a process that has made its imports, where torchrun runs ranks of this job."""
    warm = options.runner == "torchrun" and allocation.job_id is not None and os.environ.get(WARM_START, "1") != "0"
    return Starter(script_kind.heavy_imports(options.script[0], options.script[1:], options.style) if warm else ())


def _with_address(allocation: JobAllocation, plan_file: PlanFile | None) -> PlanFile | None:
    """Return `plan_file` with the address to report to, if a daemon has come since the job started without one."""
    if plan_file is None or plan_file.is_decided_about:
        return plan_file
    newer_file, _ = find_plan_file(allocation.job_id, os.environ)
    return plan_file if newer_file is None else replace(newer_file, plan=plan_file.plan)


def _is_synergys(allocation: JobAllocation) -> bool:
    """Return whether a daemon or the plugin has written to this job."""
    return find_plan_file(allocation.job_id, os.environ)[0] is not None


def _daemon(allocation: JobAllocation) -> tuple[str, int | None]:
    """Return the address and uid of the daemon that leads now."""
    plan_file, _ = find_plan_file(allocation.job_id, os.environ)
    return (plan_file.report, plan_file.by) if plan_file else ("", None)


def run_once(
    options: LaunchOptions,
    allocation: JobAllocation,
    plan_file: PlanFile | None,
    remark: str,
    guard: PlanGuard | None = None,
    restarts: Restarts | None = None,
    starter: Starter | None = None,
) -> int:
    """Run, or print, this node's command once. Return the exit code."""
    # a dry run beside a running one must leave that one's folder alone
    folder_of = run_folder.folder_pattern if options.dry_run else run_folder.make
    run_dir = folder_of(allocation.job_id, allocation.restarts, allocation.node_rank)
    # Megatron-LM counts the training in the checkpoint folder in iterations, whose batch may change
    checkpoint = options.checkpoint or (plan_file.checkpoint if plan_file else "")
    megatron = is_megatron(options.style, options.script[1:])
    trained = batch_arguments.read(Path(checkpoint)) if megatron and checkpoint else Trained()
    if megatron:
        batch_arguments.choose_rule("")  # a wrong word ends the start, not the run at its first change
        fsdp2_checkpoint.check(options.script[1:], Path(checkpoint) if checkpoint else None, allocation.world)
    limits = options.batch_limits or os.environ.get("SYNERGY_GLOBAL_BATCH", "")
    is_hooked = plan_file is not None and script_kind.is_hooked(options.script, options.style, plan_file.loop)
    kind = script_kind.classify_script(options.script[0], options.script[1:], options.style)
    plan = plan_file.plan if plan_file else None
    plain = "" if is_hooked else no_adapter.check(options.script[0], plan, limits, kind)
    version = megatron_arguments.find_version(Path(options.script[0]))
    node = node_command(
        options.script,
        allocation,
        plan_file,
        run_dir=run_dir,
        checkpoint=options.checkpoint,
        runner=options.runner,
        master=slurm.find_address(allocation.nodes[0]) if len(allocation.nodes) > 1 else "",
        style=options.style,
        threads=compute_threads(os.environ),
        trained=trained,
        batch_limits=limits,
        version=version,
        run=restarts.report_part.number if restarts else 0,
        local_rank=options.local_rank,
        is_hooked=is_hooked or bool(os.environ.get(TRY)),
    )
    if options.dry_run:
        for key, value in sorted(node.environment.items()):
            click.echo(f"{key}={shlex.quote(value)} \\")
        click.echo(shlex.join(node.argv))
        return 0
    remarks = [options.remark, remark, plain if allocation.node_rank == 0 else ""]
    if megatron and checkpoint and allocation.node_rank == 0:
        remarks += _megatron_remarks(node, Path(checkpoint), trained)
    for text in filter(None, (*remarks, *node.remarks)):
        click.echo(f"synergy-launch: {text}", err=True)
    supervisor = _supervisor(node, allocation, version) if megatron else None
    node = replace(node, environment={**node.environment, **restarts.memory_environment()}) if restarts else node
    return run_node(node, allocation, plan_file, run_dir, supervisor, guard, restarts, starter)


def _megatron_remarks(node: NodeCommand, folder: Path, trained: Trained) -> list[str]:
    """Record the iteration from which Megatron-LM runs with the plan's batch. Return what the user should know."""
    remarks = []
    if node.plan:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            batch_arguments.write(folder, trained.with_batch(node.plan.global_batch))
        except OSError as error:
            why = f"the batch can't be noted ({error.strerror})"
            remarks.append(f"{folder}: {why}: after a change the run may end too early or late")
    if node.plan and fsdp2_checkpoint.is_bound_to_size(node.argv):
        remarks.append(fsdp2_checkpoint.REMARK)
    if not megatron_options.has_option(node.argv, "--save-interval"):
        remarks.append(
            "without --save-interval Megatron-LM saves only on request and at its end: a failure loses all steps since then"
        )
    return remarks


def _supervisor(node: NodeCommand, allocation: JobAllocation, version: tuple[int, int] | None) -> Supervisor:
    """Return the supervisor for a Megatron-LM command, from its final arguments; `version`: Megatron-LM's."""
    arguments = node.argv
    folder = (megatron_options.option_values(arguments, "--save") or [""])[-1]
    accepts = json.loads(node.environment.get("SYNERGY_ACCEPTS_JSON", "null"))
    if not folder:  # it can't be asked for a checkpoint
        accepts = {**(accepts or {}), "own_size": True}
    return Supervisor(
        node.plan or megatron_arguments.read_plan(arguments, allocation.world),
        folder,
        megatron_options.option_number(arguments, "--seq-length", 0),
        step_log=node.environment.get("SYNERGY_STEP_LOG", ""),
        resharding=node.plan is not None and megatron_arguments.can_reshard(arguments),
        accepts=accepts,
        kernels=detect_kernels(arguments, version, torch=torch_version()),
        nodes=len(allocation.nodes),
        restarts=allocation.restarts,
    )
