"""synergyctl check: a batch script's #SYNERGY lines before sbatch, and whether its deadline can be met."""

from __future__ import annotations

import os
import pwd
import re
import time
from pathlib import Path

import click

from synergyd.cli.shared.context import Context, pass_context
from synergyd.errors import UsageError
from synergyd.ordinary_file import read_bytes
from synergyd.records import Cell, Cluster, Directive, Job, JobState, Profile, Shape
from synergyd.slurm.directives.directive import calls_launcher, notes, parse_script
from synergyd.slurm.directives.grammar import MAX_LOOK, message
from synergyd.slurm.directives.second_run import second_run_problems

_SBATCH = re.compile(r"^#SBATCH[ \t]+(.*)$", re.MULTILINE)
_GPUS = re.compile(r"--(?:gres=gpu|gpus-per-node=?)[:=]?(?:([A-Za-z][\w.-]*):)?([0-9]{1,4})(?:\s|,|$)")
_NODES = re.compile(r"(?:--nodes[= ]|-N ?)([0-9]{1,6})(?:\s|$)")


@click.command()
@click.argument("script", type=click.Path(path_type=Path, dir_okay=False))
@click.option(
    "--samples",
    type=click.IntRange(1),
    help="Training examples (sequences) that are left: what a deadline is judged by.",
)
@pass_context
def check(context: Context, script: Path, samples: int | None) -> None:
    """Check the #SYNERGY lines of a batch SCRIPT, and whether its deadline can be met on this cluster.

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
    if directive.deadline_s is None:
        return
    from synergyd.control.notices import too_late

    now_s = time.time()
    cells = best_cells(context, text, directive) if samples is not None and directive.deadline_s > now_s else ()
    if why := too_late(directive.deadline_s, samples, cells, now_s):
        click.echo(f"{script}: {why}")
        raise SystemExit(1)
    if samples is None:
        click.echo(f"{script}: its deadline has not passed; --samples tells whether it can be met")
    else:
        left_s = samples / max(c.goodput for c in cells)
        click.echo(f"{script}: its deadline can be met: at best {left_s:.0f} s of {directive.deadline_s - now_s:.0f} s")


def _size_remark(text: str) -> str:
    """Return what size such a job will have."""
    if not calls_launcher(text):
        what, right = message("no_launch", {})
        return f"{what}; {right}"
    return "it keeps the size it asks for until a run of its program has reported that it can change size"


def best_cells(context: Context, text: str, directive: Directive) -> tuple[Cell, ...]:
    """What such a job could have on this cluster if it were empty. Raises UsageError where there is nothing, SlurmError."""
    from synergyd.daemon.forecast import Forecast
    from synergyd.slurm.command_line import CommandLine
    from synergyd.slurm.parsed.snapshot import cluster_of

    settings = context.settings
    cluster = cluster_of(CommandLine().nodes(), settings.partitions)
    offered = Forecast(settings).cells(job_of_script(text, directive, cluster), Profile(), None, cluster)
    if not offered.cells:
        raise UsageError("deadline", f"no size of the job is known: {offered.why_none}", "name a model= that fits here")
    return offered.cells


def job_of_script(text: str, directive: Directive, cluster: Cluster) -> Job:
    """The job that sbatch would make of it, as far as its sizes go: one GPU where the script names none."""
    options = "\n".join(_SBATCH.findall(text))
    gpus, nodes = _GPUS.search(options), _NODES.search(options)
    kind = gpus[1] if gpus and gpus[1] else next(iter(cluster.gpu_types()), "")
    asked = Shape(kind, max(1, int(nodes[1])) if nodes else 1, max(1, int(gpus[2])) if gpus else 1)
    uid = os.getuid()
    try:
        user = pwd.getpwuid(uid).pw_name
    except KeyError:
        user = str(uid)
    return Job(
        job_id=0, name="check", user=user, uid=uid, partition="", state=JobState.PENDING, reason="", submit_s=0.0,
        start_s=None, begin_s=None, restarts=0, shape=asked, asked=asked, directive=directive,
    )  # fmt: skip
