"""synergyctl check: a batch script's #SYNERGY lines before sbatch, and whether its deadline can be met."""

from __future__ import annotations

import os
import pwd
import re
import shlex
import shutil
import textwrap
import time
from pathlib import Path

import click
from synergy_core.errors import UsageError, one_line
from synergy_core.ordinary_file import read_bytes
from synergy_core.records import Cell, Cluster, Directive, Job, JobState, Profile, Shape
from synergy_launch.launcher.commands.batch_script import LAUNCHER, find_translation
from synergy_launch.launcher.commands.other_launchers import check_processes
from synergy_launch.launcher.script.detection import detect
from synergy_launch.launcher.script.kind import DISTRIBUTIONS

from synergyd.cli.checks import run_command
from synergyd.cli.shared.context import Context, pass_context
from synergyd.slurm.directives.directive import calls_launcher, notes, parse_script
from synergyd.slurm.directives.grammar import MAX_LOOK, message
from synergyd.slurm.directives.second_run import second_run_problems

_SBATCH = re.compile(r"^#SBATCH[ \t]+(.*)$", re.MULTILINE)
_GPUS = re.compile(r"--(?:gres=gpu|gpus-per-node=?)[:=]?(?:([A-Za-z][\w.-]*):)?([0-9]{1,4})(?:\s|,|$)")
_NODES = re.compile(r"(?:--nodes[= ]|-N ?)([0-9]{1,6})(?:\s|$)")

COLUMNS = 80  # of the table: a terminal's
_ASK_VERSIONS = """
import sys
from importlib import metadata
found = []
for name in sys.argv[1:]:
    try:
        found.append(f"{name} {metadata.version(name)}")
    except metadata.PackageNotFoundError:
        pass
print(", ".join(found))
"""


@click.command()
@click.argument("script", type=click.Path(path_type=Path, dir_okay=False))
@click.option(
    "--samples",
    type=click.IntRange(1),
    metavar="N",
    help="Remaining training examples (sequences), for the deadline.",
)
@pass_context
def check(context: Context, script: Path, samples: int | None) -> None:
    """Check the #SYNERGY lines of a batch SCRIPT, show what can change in its training, and whether its deadline can be met.

    Exit code 1: the deadline can't be met. 2: a line is wrong.
    """
    try:
        text = read_bytes(script, MAX_LOOK).decode(errors="surrogateescape")
    except OSError as error:
        raise UsageError(str(script), f"can't be read: {error.strerror}", "name a batch script") from None
    directive = parse_script(text)
    for line, remark in notes(text):
        click.echo(f"{script} line {line}: {remark}")
    if directive is None:
        click.echo(f"{script}: no #SYNERGY line: a plain Slurm job")
        return
    problems = list(second_run_problems(text)) if directive.resize else []
    for line, problem in problems:
        click.echo(f"{script} line {line}: {problem}; a resize runs the script again, so the job keeps its size")
    click.echo(f"{script}: the #SYNERGY lines are right")
    if directive.resize and not problems:
        click.echo(f"{script}: {_size_remark(text)}")
    for row in script_table(text, script.parent, directive):
        click.echo(row)
    if directive.deadline_s is None:
        return
    from synergyd.control.notices import deadline_obstacle

    now_s = time.time()
    cells = best_cells(context, text, directive) if samples is not None and directive.deadline_s > now_s else ()
    if why := deadline_obstacle(directive.deadline_s, samples, cells, now_s):
        click.echo(f"{script}: {why}")
        raise SystemExit(1)
    if samples is None:
        click.echo(f"{script}: its deadline has not passed; --samples tells whether it can be met")
    else:
        left_s = samples / max(c.goodput for c in cells)
        click.echo(f"{script}: its deadline can be met: at best {left_s:.0f} s of {directive.deadline_s - now_s:.0f} s")


def script_table(text: str, folder: Path, directive: Directive) -> list[str]:
    """Return the launcher's detection of what the batch script `text` trains, as the lines of a table of at most COLUMNS characters.

    A relative path is that of a file in the working directory, else in `folder`, the batch script's.
    """
    try:
        translation, (nodes, gpus) = find_translation(text), _requested_size(text)
        if nodes and gpus:
            check_processes(translation, [Shape("", nodes, gpus)])
    except UsageError as error:
        return _row("command", f"{error.what}; {error.right}" if error.right else error.what)
    command = ("-m",) * translation.module + (translation.script, *translation.arguments)
    if not Path(command[0]).is_file() and (folder / command[0]).is_file():
        command = (str(folder / command[0]), *command[1:])
    low, high = directive.global_batch or (0, 0)
    detected = detect(
        command,
        gpus=(gpus or 1) * (nodes or 1),
        checkpoint=directive.checkpoint or "",
        loop=directive.loop,
        global_batch=(f"{low}:{high}" if low != high else str(low)) if low else "",
        resize=directive.resize,
    )
    rows = [
        ("command", shlex.join((LAUNCHER, *command))),
        ("trainer", detected.trainer),
        ("versions", _versions(DISTRIBUTIONS[detected.kind.trainer])),
        ("checkpoint", detected.checkpoint),
        ("batch", detected.batch),
        ("can change", detected.can_change),
        ("to change it", detected.to_do),
    ]
    return [line for name, value in rows if value for line in _row(name, value)]


def _requested_size(text: str) -> tuple[int, int]:
    """Return the nodes of the script's #SBATCH lines and the GPUs of each, 0 where they name none."""
    options = "\n".join(_SBATCH.findall(text))
    gpus, nodes = _GPUS.search(options), _NODES.search(options)
    return int(nodes[1]) if nodes else 0, int(gpus[2]) if gpus else 0


def _row(name: str, value: str) -> list[str]:
    value = one_line(value, 1000)
    return textwrap.wrap(
        value, COLUMNS, initial_indent=f"{name:<14}", subsequent_indent=" " * 14, break_on_hyphens=False
    )


def _versions(distributions: tuple[str, ...]) -> str:
    """Return the versions in the python on PATH, which is the job's if its environment is active here."""
    python = shutil.which("python") or shutil.which("python3")
    if python is None or not distributions:
        return ""
    ok, text = run_command(python, "-c", _ASK_VERSIONS, *distributions)
    has = f"{text.strip()} in {python}" if ok and text.strip() else f"none of {', '.join(distributions)} in {python}"
    return has if ok and text.strip() else f"{has}: run this in the job's environment"


def _size_remark(text: str) -> str:
    """Return what size such a job will have."""
    if not calls_launcher(text):
        what, right = message("no_launch", {})
        return f"{what}; {right}"
    return "it keeps the size it asks for until a run of its program has reported that it can change size"


def best_cells(context: Context, text: str, directive: Directive) -> tuple[Cell, ...]:
    """Return the Cells that such a job could have on this cluster if it were empty. Raises UsageError if there is none, SlurmError."""
    from synergyd.daemon.forecast import Forecast
    from synergyd.slurm.command_line import CommandLine
    from synergyd.slurm.parsed.snapshot import cluster_from_rows

    settings = context.settings
    cluster = cluster_from_rows(CommandLine().nodes(), settings.partition_names)
    result = Forecast(settings).cells(job_of_script(text, directive, cluster), Profile(), None, cluster)
    if not result.cells:
        raise UsageError("deadline", f"no size of the job is known: {result.why_none}", "name a model= that fits here")
    return result.cells


def job_of_script(text: str, directive: Directive, cluster: Cluster) -> Job:
    """Return the job that sbatch would make of the script, as far as its sizes go: one GPU if the script names none."""
    options = "\n".join(_SBATCH.findall(text))
    gpus = _GPUS.search(options)
    kind = gpus[1] if gpus and gpus[1] else next(iter(cluster.gpu_types()), "")
    nodes, n = _requested_size(text)
    shape_asked = Shape(kind, nodes or 1, n or 1)
    uid = os.getuid()
    try:
        user = pwd.getpwuid(uid).pw_name
    except KeyError:
        user = str(uid)
    return Job(
        job_id=0, name="check", user=user, uid=uid, partition="", state=JobState.PENDING, reason="", submit_s=0.0,
        start_s=None, begin_s=None, restarts=0, shape=shape_asked, asked=shape_asked, directive=directive,
    )  # fmt: skip
