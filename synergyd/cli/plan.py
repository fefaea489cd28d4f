"""`synergyctl plan`: the best plans of a model on given GPUs, dry."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict

import click
from rich.console import Console
from rich.table import Table

from synergyd.errors import UsageError
from synergyd.task.hardware import GIB
from synergyd.task.model_spec import load_model
from synergyd.task.plan_table import MAX_GPUS, GpuCount, PlanTable, plan_table


def numbers(text: str, option: str) -> tuple[int, int]:
    """(low, high) of `N` or `LO:HI`. Raises UsageError naming `option`."""
    low, colon, high = text.partition(":")
    words = (low, high) if colon else (low, low)
    if not all(w.isascii() and w.isdecimal() and len(w) <= 9 for w in words):
        raise UsageError(option, f"{text!r} is not a number or a range", f"give {option} N or {option} LO:HI")
    first, last = int(words[0]), int(words[1])
    if not 1 <= first <= last:
        raise UsageError(option, f"{text} is not a range", "it must be LO:HI with 1 <= LO <= HI")
    return first, last


def gpu_counts(text: str) -> list[int]:
    """`N` is itself; `A:B` is A, 2A, 4A, ... and B."""
    first, last = numbers(text, "--gpus")
    if last > MAX_GPUS:
        raise UsageError("--gpus", f"{last} is too many", f"at most {MAX_GPUS}")
    counts = []
    while first < last:
        counts.append(first)
        first *= 2
    return [*counts, last]


@click.command("plan")
@click.option(
    "--model",
    "model_name",
    required=True,
    metavar="NAME|PATH",
    help="Preset (llama3-8b, gpt3-175b, ...) or config.json.",
)
@click.option("--gpus", required=True, metavar="N|A:B", help="GPU count; A:B tries A, 2A, 4A, ... and B.")
@click.option(
    "--gpu-type",
    required=True,
    metavar="TYPE",
    help="v100, a100-40, a100, a40, a10, l20, h100, h200, gh200, b200, cpu, ...",
)
@click.option("--gpus-per-node", default=8, show_default=True, metavar="G", help="GPUs a node.")
@click.option(
    "--global-batch", default="256", show_default=True, metavar="N|LO:HI", help="Sequences a step; LO:HI is a range."
)
@click.option(
    "--noise-scale",
    type=float,
    metavar="PHI",
    help="Gradient noise scale in sequences: lets the batch move in its range.",
)
@click.option("--seq", type=click.IntRange(1, 10_000_000), metavar="S", help="Sequence length, if not the model's own.")
@click.option("--tp", type=click.IntRange(1), metavar="T", help="Fix the tensor-parallel degree.")
@click.option("--pp", type=click.IntRange(1), metavar="P", help="Fix the pipeline-parallel degree.")
@click.option("--micro-batch", type=click.IntRange(1), metavar="B", help="Fix the micro-batch.")
@click.option(
    "--top",
    default=10,
    show_default=True,
    type=click.IntRange(1, 1000),
    metavar="K",
    help="Plans shown for each GPU count.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON (seconds, bytes) instead of tables.")
def plan(
    model_name: str,
    gpus: str,
    gpu_type: str,
    gpus_per_node: int,
    global_batch: str,
    noise_scale: float | None,
    seq: int | None,
    tp: int | None,
    pp: int | None,
    micro_batch: int | None,
    top: int,
    as_json: bool,
) -> None:
    """Show the best 3D-parallel plans of a model on given GPUs, without running anything.

    All ways to split the GPUs into tensor (tp), pipeline (pp) and data (dp) parallel degrees, with every micro-batch,
    are predicted; those that do not fit the GPU's memory are dropped and the others ranked by goodput: sequences a
    second, times the statistical efficiency of the batch size where --noise-scale is given. Without it the batch stays
    at the low end of --global-batch. The time columns say where a step goes, in percent.

    \b
    Examples:
      synergyctl plan --model llama3-70b --gpus 512 --gpu-type h100 --global-batch 1024
      synergyctl plan --model gpt3-13b --gpus 8:64 --gpu-type a100-40 --global-batch 128:1024 --noise-scale 600
      synergyctl plan --model ./config.json --seq 4096 --gpus 16 --gpu-type a40 --gpus-per-node 4 --json

    Exit code: 0; 1 if no plan fits on any of the GPU counts; 2 if an option is wrong.
    """
    try:
        table = plan_table(
            load_model(model_name, seq),
            gpu_type,
            gpu_counts(gpus),
            gpus_per_node,
            numbers(global_batch, "--global-batch"),
            noise_scale=noise_scale,
            tp=tp,
            pp=pp,
            micro_batch=micro_batch,
            top=top,
        )
    except UsageError as error:
        click.echo(f"synergyctl plan: {error}", err=True)
        sys.exit(2)
    if as_json:
        click.echo(json.dumps(asdict(table), indent=2))
    else:
        # piped output is for people too: never cut a column off there
        show(table, Console() if sys.stdout.isatty() else Console(width=160))
    if not any(count.rows for count in table.counts):
        sys.exit(1)


def show(table: PlanTable, console: Console) -> None:
    """Print `table` for people."""
    if table.note:
        console.print(f"note: {table.note}", markup=False)
    for count in table.counts:
        if count.rows:
            console.print(_rich(table, count))
        else:
            console.print(f"{count.gpus} GPUs: {count.why_none}", markup=False)
        if count.ruled_out:
            reasons = "; ".join(f"{n} {reason}" for reason, n in count.ruled_out.items())
            console.print(f"{count.fitting} plans fit; ruled out: {reasons}", markup=False)


def _rich(table: PlanTable, count: GpuCount) -> Table:
    title = f"{table.model.name} on {count.gpus} {table.gpu_type}, {table.gpus_per_node} a node"
    result = Table(title=title, title_justify="left")
    for name in ("#", "tp", "pp", "dp", "mb", "batch", "recompute", "step s", "tokens/s", "MFU %", "goodput", "GiB"):
        result.add_column(name, justify="right")
    for name in count.rows[0].time:
        result.add_column(f"{name} %", justify="right")
    for row in count.rows:
        cell = row.cell
        p = cell.plan
        whole = sum(row.time.values())
        degrees = [str(n) for n in (row.rank, p.tp, p.pp, p.dp, p.micro_batch, p.global_batch)]
        speed = [f"{cell.step_s:.3g}", f"{row.tokens_per_s:,.0f}", f"{100 * row.mfu:.1f}", f"{cell.goodput:.3g}"]
        shares = [f"{100 * part / whole:.0f}" for part in row.time.values()]
        result.add_row(*degrees, p.recompute, *speed, f"{cell.memory_bytes / GIB:.1f}", *shares)
    return result
