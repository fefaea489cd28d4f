"""synergy-launch: runs a training script with the plan Synergy chose, in place of torchrun.

Three roles, told apart by where the process finds itself:
- outside a step that covers the allocation (in the batch script, or under an srun with stale sizes): starts such a step;
- one task a node in a covering step: runs torchrun for that node, watches it, reports;
- any further task of a wrongly sized step: leaves at once.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import FrameType

import click

from synergy_launch.agent import run_folder
from synergy_launch.agent.settings import TOLD, number_of
from synergy_launch.batch.tuner import batch_range
from synergy_launch.launcher import allocation as slurm
from synergy_launch.launcher import old_names
from synergy_launch.launcher.allocation import JobAllocation
from synergy_launch.launcher.reporter import Reporter
from synergy_launch.launcher.stall_detector import StallDetector
from synergy_launch.megatron_lm import arguments as megatron_arguments
from synergy_launch.megatron_lm import batch_arguments, options
from synergy_launch.megatron_lm.batch_arguments import Trained
from synergy_launch.megatron_lm.capabilities import accepts
from synergy_launch.megatron_lm.supervisor import Supervisor
from synergyd import __version__
from synergyd.errors import SynergyError, UsageError
from synergyd.records import NOTHING_MORE, Plan
from synergyd.wire import plan_file as handovers
from synergyd.wire.plan_file import PlanFile
from synergyd.wire.report import status_to_report

DEFAULT_STATE_DIR = "/var/lib/synergy"
POLL_S = 0.2
ASK_AGAIN_S = 15.0
URGENT = ("checkpoint_requests", "state", "note", "stalled_s")


@dataclass(frozen=True)
class Start:
    """What one node runs: the command, what is added to the environment, and remarks for the log."""

    command: tuple[str, ...]
    environment: dict[str, str]
    remarks: tuple[str, ...] = ()


def fit(plan: Plan | None, world: int) -> tuple[Plan | None, str]:
    """The plan for `world` GPUs: itself where it fits, else the same but for another dp, else none; and a remark.

    They differ when Slurm started the job with another size than the one planned (a daemon that died half-way).
    """
    if plan is None or plan.gpus == world:
        return plan, ""
    dp, rest = divmod(world, plan.tp * plan.pp * plan.cp)
    # virtual stages want a multiple of pp micro-batches, experts a multiple of ep replicas
    unit = dp * (plan.pp if plan.vpp > 1 else 1)
    if not rest and dp and plan.global_batch % unit == 0 and dp % plan.ep == 0:
        micro = plan.micro_batch
        while plan.global_batch % (unit * micro):
            micro -= 1
        return replace(plan, dp=dp, micro_batch=micro), f"plan was for {plan.gpus} GPUs, there are {world}: dp is {dp}"
    return None, f"plan was for {plan.gpus} GPUs, there are {world}: the script's own degrees are used"


def find_handover(job_id: int | None, environment: Mapping[str, str]) -> tuple[PlanFile | None, str]:
    """The plan file of $SYNERGY_PLAN or of the state folder, else the one in AdminComment; and a remark when one was unusable."""
    if job_id is None:
        given = environment.get("SYNERGY_PLAN", "")
        return (handovers.read(Path(given), 0), "") if given else (None, "")
    named = environment.get("SYNERGY_PLAN")
    path = (
        Path(named)
        if named
        else handovers.plan_path(Path(environment.get("SYNERGY_STATE_DIR", DEFAULT_STATE_DIR)), job_id)
    )
    remark = ""
    if _may_exist(path):
        try:
            return handovers.read(path, job_id), ""
        except UsageError as error:
            remark = str(error)
    try:
        return handovers.from_admin_comment(_admin_comment(job_id), job_id), remark
    except UsageError as error:
        return None, str(error)


def _may_exist(path: Path) -> bool:
    """False only where there is surely nothing: a folder that may not be looked into is told of by whoever reads."""
    try:
        return path.exists()
    except OSError:
        return True


def _admin_comment(job_id: int) -> str:
    if not shutil.which("scontrol"):
        return ""
    try:
        done = subprocess.run(
            ["scontrol", "show", "job", str(job_id)],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=60,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    # a job name with a newline could imitate this line; it could only lead its own owner's job astray
    found = [x.strip() for x in done.stdout.splitlines() if x.strip().startswith("AdminComment=")]
    return found[-1].removeprefix("AdminComment=") if found else ""


def start_of(
    script: Sequence[str],
    where: JobAllocation,
    given: PlanFile | None,
    *,
    run_dir: Path,
    checkpoint: str,
    runner: str,
    master: str,
    style: str = "auto",
    step_log: str = "",
    threads: str = "1",
    batch_limits: str = "",
    trained: Trained = megatron_arguments.NOTHING_YET,
    version: tuple[int, int] = megatron_arguments.NEWEST,
) -> Start:
    """What this node runs; `threads` becomes OMP_NUM_THREADS, `batch_limits` (LO:HI) what the run may choose from.

    `trained`: where a Megatron-LM checkpoint stands; `version`: its own. Pure.
    """
    world = where.processes * len(where.nodes)
    plan, remark = fit(given.plan if given else None, world)
    checkpoint = checkpoint or (given.checkpoint if given else "")
    name, arguments = script[0], list(script[1:])
    taken = accepts(arguments) if style in ("auto", "megatron") else NOTHING_MORE
    if plan and _is_megatron(style, arguments):
        arguments = megatron_arguments.with_plan(arguments, plan, checkpoint, trained, version)
    environment = {
        "SYNERGY_RUN_DIR": str(run_dir),
        "SYNERGY_RESTARTS": str(where.restarts),
        "TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "60",
        "OMP_NUM_THREADS": threads,
    }
    if taken != NOTHING_MORE:
        environment["SYNERGY_ACCEPTS_JSON"] = json.dumps(asdict(taken))
    # where a daemon is told of the run, it chooses
    environment["SYNERGY_GLOBAL_BATCH"] = TOLD if given and given.report else batch_limits
    if plan:
        environment["SYNERGY_PLAN_JSON"] = json.dumps(asdict(plan))
        # Megatron wants it for tp and cp, and refuses it where parameters are shared out
        if (plan.tp > 1 or plan.cp > 1) and not megatron_arguments.is_sharded(arguments):
            environment["CUDA_DEVICE_MAX_CONNECTIONS"] = "1"
    if given and given.links and len(where.nodes) > 1:
        environment["SYNERGY_LINK_ARBITER"] = given.links
        if given.by is not None:
            environment["SYNERGY_LINK_ARBITER_UID"] = str(given.by)
    if checkpoint:
        environment["SYNERGY_CHECKPOINT_DIR"] = checkpoint
        environment["SYNERGY_STEP_LOG"] = step_log or str(Path(checkpoint) / "steps.jsonl")
    target = ["-m", name.removeprefix("module:")] if name.startswith("module:") else [name]
    if "SYNERGY_LINK_ARBITER" in environment and _is_megatron(style, arguments):
        target = ["-m", "synergy_launch.links.gated_script", *target]
    if runner == "python":
        return Start((sys.executable, *target, *arguments), environment, (remark,) if remark else ())
    rendezvous = ["--standalone"]
    if len(where.nodes) > 1:
        port = slurm.rendezvous_port(where.job_id or 0, where.restarts)
        rendezvous = ["--node-rank", str(where.node_rank), "--master-addr", master, "--master-port", str(port)]
    command = (
        sys.executable, "-P", "-m", "synergy_launch.launcher.torchrun", "--nnodes", str(len(where.nodes)),
        "--nproc-per-node", str(where.processes), *rendezvous, *target, *arguments,
    )  # fmt: skip
    return Start(command, environment, (remark,) if remark else ())


def _is_megatron(style: str, arguments: Sequence[str]) -> bool:
    return style == "megatron" or (style == "auto" and megatron_arguments.is_megatron(arguments))


def _watch(start: Start, where: JobAllocation, given: PlanFile | None, plan: Plan | None) -> Supervisor:
    """For a command of Megatron-LM's, by the arguments that it was given in the end."""
    arguments = list(start.command)
    reshards = plan is not None and megatron_arguments.reshards(arguments)
    told = megatron_arguments.plan_of(arguments, where.processes * len(where.nodes))
    folder = (options.values(arguments, "--save") or [""])[-1]
    step_log = start.environment.get("SYNERGY_STEP_LOG", "")
    accepted = json.loads(start.environment.get("SYNERGY_ACCEPTS_JSON", "null"))
    seq = options.number(arguments, "--seq-length", 0)
    return Supervisor(plan or told, folder, seq, step_log, reshards, accepted, len(where.nodes), where.restarts)


def _keep_batch(folder: Path, trained: Trained, plan: Plan) -> str:
    """Notes from which iteration on Megatron-LM runs with the plan's batch; why not, "" if it did."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        batch_arguments.write(folder, trained.with_batch(plan.global_batch))
    except OSError as error:
        return (
            f"{folder}: the batch can't be noted ({error.strerror}): after a change the run may end too early or late"
        )
    return ""


def run_node(
    start: Start, where: JobAllocation, given: PlanFile | None, run_dir: Path, watch: Supervisor | None = None
) -> int:
    """Runs the node's command to its end: passes signals on, hands checkpoint requests over, reports. Returns the exit code.

    `watch`: it is Megatron-LM's, which may have no agent of Synergy's in it: its output is read, and where it left because a
    checkpoint was asked for it is started again when nobody has ended the job meanwhile.
    """
    requests = 0
    ending = False
    hold_s = number_of(os.environ, "SYNERGY_HOLD_S", float, 20.0) if watch else 0.0

    def on_usr2(_signal: int, _frame: FrameType | None) -> None:
        nonlocal requests
        requests += 1

    def on_term(number: int, _frame: FrameType | None) -> None:
        nonlocal ending
        ending = True
        # Slurm signals every process of the step itself, and a second SIGTERM makes torchrun give up its clean end
        if where.job_id is None and child is not None and child.poll() is None:
            child.send_signal(number)

    def spawn() -> subprocess.Popen[bytes]:
        # ignored across the exec: an unhandled USR2 would kill torchrun and leave its workers behind; they set a handler of their own
        signal.signal(signal.SIGUSR2, signal.SIG_IGN)
        environment = {**os.environ, **old_names.python_path(os.environ), **start.environment}
        started = subprocess.Popen(start.command, env=environment, stdout=subprocess.PIPE if watch else None)
        signal.signal(signal.SIGUSR2, on_usr2)
        if watch:
            watch.follow(started)
        return started

    child: subprocess.Popen[bytes] | None = None
    signal.signal(signal.SIGTERM, on_term)
    signal.signal(signal.SIGINT, on_term)
    child = spawn()
    if ending:
        child.terminate()
    # an agent is heard of on the first node, Megatron-LM's log is written on the last one
    heard_here = (0, len(where.nodes) - 1) if watch else (0,)
    reports = where.node_rank in heard_here and where.job_id is not None

    told_by = given.by if given else None

    def address() -> str:
        nonlocal told_by
        found, _ = find_handover(where.job_id, os.environ)
        told_by = found.by if found else told_by
        return found.report if found else ""

    def heard(plan: Plan) -> None:
        try:
            run_folder.propose_batch(run_dir, plan)
        except OSError as error:  # as with a checkpoint's request
            click.echo(f"synergy-launch: {run_dir}: batch can't be handed over ({error.strerror})", err=True)

    def reporter_to(place: str) -> Reporter | None:
        return Reporter(place, find=address, heard=heard, by=lambda: told_by) if place else None

    reporter = reporter_to(given.report) if reports and given else None
    every_s = ASK_AGAIN_S
    ask_again_s = time.monotonic() + every_s
    seen: dict[str, object] = {}
    stall = StallDetector(time.monotonic())
    told = 0
    held_until = 0.0
    while True:
        if child.poll() is not None:
            if watch is None or (not held_until and not watch.left(child.returncode, requests)):
                break
            held_until = held_until or time.monotonic() + hold_s
            watch.met(requests)
            if ending:
                break
            if time.monotonic() >= held_until:
                start = replace(start, command=tuple(megatron_arguments.resumed(start.command)))
                held_until, child = 0.0, spawn()
                if ending:  # it came between the look above and the start
                    child.terminate()
        elif watch:
            watch.ask(requests, child, "synergy_launch.launcher.torchrun" in start.command)
        if requests > told:
            told = requests
            try:
                run_folder.request_checkpoint(run_dir, told)
            except OSError as error:  # a full or cleaned /tmp must not end the training
                click.echo(f"synergy-launch: {run_dir}: checkpoint can't be asked for ({error.strerror})", err=True)
        if reporter:
            seen = _offer(reporter, run_dir, where, seen, stall, watch)
        elif reports and time.monotonic() > ask_again_s:
            # started as a plain job: a daemon that comes later says where to report
            every_s = min(
                2 * every_s, 20 * ASK_AGAIN_S
            )  # each may cost slurmctld an RPC, and there may never be a daemon
            ask_again_s = time.monotonic() + every_s
            reporter = reporter_to(address())
        time.sleep(POLL_S)
    if reporter:
        _offer(reporter, run_dir, where, {}, None, watch)
        reporter.close()
    status = run_folder.read_status(run_dir) or {}
    done = status.get("state") == "done"
    shutil.rmtree(run_dir, ignore_errors=True)
    # torchrun says 1 for a run that ended well after SIGTERM: the status file knows better
    if ending and done and not status.get("failed"):
        return 0
    return child.returncode if child.returncode >= 0 else 128 - child.returncode


def _offer(
    reporter: Reporter,
    run_dir: Path,
    where: JobAllocation,
    seen: dict[str, object],
    stall: StallDetector | None = None,
    watch: Supervisor | None = None,
) -> dict[str, object]:
    status = run_folder.read_status(run_dir) or (watch.status(where.restarts) if watch else None)
    if status is not None and stall is not None:
        status["stalled_s"] = stall.check(status, time.monotonic())
    if status is None or status == seen or where.job_id is None:
        return seen
    urgent = any(status.get(k) != seen.get(k) for k in URGENT) or (status.get("step_s") and not seen.get("step_s"))
    reporter.offer(status_to_report(status, where.job_id, where.restarts), urgent=bool(urgent))
    return status


def run_leader(where: JobAllocation, arguments: Sequence[str]) -> int:
    """Starts a step that covers the allocation, and waits for it."""
    command = slurm.step_command(
        where, os.environ, [sys.executable, "-m", "synergy_launch.launcher.command", *arguments]
    )
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)  # the step's own launchers get it too
    child = subprocess.Popen(command, env=slurm.without_stale(os.environ))
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
    name = f"module:{script}" if module else script
    if batch_limits:
        batch_range(batch_limits, "--global-batch")
    if not module and not dry_run and not os.access(script, os.R_OK):
        raise UsageError(
            "synergy-launch", f"script {script!r} does not exist or can't be read", "give a path, or -m MODULE"
        )
    where = slurm.read(os.environ)
    if not where.in_step and not dry_run:
        if not where.leader:
            sys.exit(0)  # a task too many: the leader starts one a node
        sys.exit(run_leader(where, sys.argv[1:]))
    given, remark = find_handover(where.job_id, os.environ)
    # a dry run beside a running one must leave that one's folder alone
    place = run_folder.path_of if dry_run else run_folder.make
    run_dir = place(where.job_id, where.restarts, where.node_rank)
    # what lies in the checkpoint folder counts, or is begun, by iterations of a batch that may change
    folder = checkpoint or (given.checkpoint if given else "")
    megatron = bool(folder) and _is_megatron(style, arguments)
    trained = batch_arguments.read(Path(folder)) if megatron else Trained()
    several = len(where.nodes) > 1
    master = slurm.address_of(where.nodes[0]) if several else ""
    start = start_of(
        [name, *arguments],
        where,
        given,
        run_dir=run_dir,
        checkpoint=checkpoint,
        runner=runner,
        master=master,
        style=style,
        # one compute thread a process unless the user says otherwise: torchrun's own default, without its warning
        threads=os.environ.get("OMP_NUM_THREADS", "1"),
        trained=trained,
        batch_limits=batch_limits or os.environ.get("SYNERGY_GLOBAL_BATCH", ""),
        version=megatron_arguments.version_beside(Path(script)),
    )
    if dry_run:
        for key, value in sorted(start.environment.items()):
            click.echo(f"{key}={shlex.quote(value)} \\")
        click.echo(shlex.join(start.command))
        return
    plan, _ = fit(given.plan if given else None, where.processes * len(where.nodes))
    problem = _keep_batch(Path(folder), trained, plan) if megatron and plan and where.node_rank == 0 else ""
    seldom = ""
    if megatron and where.node_rank == 0 and not options.has(start.command, "--save-interval"):
        seldom = "without --save-interval Megatron-LM saves when it is asked to and at its end only: a failure costs the rest"
    for text in filter(None, (remark, problem, seldom, *start.remarks)):
        click.echo(f"synergy-launch: {text}", err=True)
    watch = _watch(start, where, given, plan) if _is_megatron(style, arguments) else None
    sys.exit(run_node(start, where, given, run_dir, watch))


def main() -> None:
    """Entry point: one line and exit code 2 for a user's mistake."""
    try:
        command(prog_name="synergy-launch")
    except SynergyError as error:
        click.echo(f"synergy-launch: {error}", err=True)
        sys.exit(2 if isinstance(error, UsageError) else 1)


if __name__ == "__main__":
    main()
