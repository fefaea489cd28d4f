"""`synergyctl plan`: the best plans of a model on given GPUs, dry."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from synergy_core.errors import UsageError
from synergy_core.exchange import parse_kinds
from synergy_core.kernels import LOCAL, UNKNOWN, kernels_message
from synergy_core.recompute import format_recompute
from synergy_core.records import Plan

from synergyd.cli.planning.script import script
from synergyd.cli.shared.console import console
from synergyd.cli.shared.fitted_table import FittedTable, figure_column, text_column
from synergyd.cli.shared.key_values import WithOldOptions, key_values
from synergyd.jobmodel.fit.profile_file import read_profile
from synergyd.jobmodel.model.arrays import PRECISION
from synergyd.jobmodel.model.figures_file import read_figures
from synergyd.jobmodel.model.hardware import GIB, GpuFigures, figures, link_figures
from synergyd.jobmodel.model.spec import load_model
from synergyd.jobmodel.plan_table import MAX_GPUS, GpuCount, PlanTable, plan_table

# Columns that are shown only where a row differs from what is usual.
_RARE = {
    "vpp": 1,
    "cp": 1,
    "cp_comm": "p2p",
    "ep": 1,
    "zero_stage": 1,
    "shard": 0,
    "recompute": "none",
    "exchange": "exact",
}
_SHORT = {"zero_stage": "zero", "micro_batch": "mb", "global_batch": "batch", "recompute": "recomp"}
_ALL = 1000  # of each GPU count, for a plot of where each plan wins


def numbers(text: str, option: str) -> tuple[int, int]:
    """Return (low, high) of `N` or `LO:HI`. Raises UsageError naming `option`."""
    low, colon, high = text.partition(":")
    words = (low, high) if colon else (low, low)
    if not all(w.isascii() and w.isdecimal() and len(w) <= 9 for w in words):
        raise UsageError(option, f"{text!r} is not a number or a range", f"give {option} N or {option} LO:HI")
    first, last = int(words[0]), int(words[1])
    if not 1 <= first <= last:
        raise UsageError(option, f"{text} is not a range", "it must be LO:HI with 1 <= LO <= HI")
    return first, last


def gpu_counts(text: str, gpus_per_node: int) -> list[int]:
    """Return the GPU counts of `N` or `A:B`.

    `N` is itself. `A:B` is the part of 1, 2, 4, ... GPUs of one node, the whole node, and 2, 4, 8, ... nodes that lies in the
    range, besides A and B, rounded to whole nodes inwards. Raises UsageError if that leaves none.
    """
    first, last = numbers(text, "--gpus")
    if last > MAX_GPUS:
        raise UsageError("--gpus", f"{last} is too many", f"at most {MAX_GPUS}")
    if ":" not in text:
        return [first]
    node = max(1, gpus_per_node)
    ends = {n for n in (first, last) if n <= node} | {-(-first // node) * node, last // node * node}
    usual = {2**i for i in range(node.bit_length())} | {node * 2**i for i in range((last // node).bit_length())}
    counts = sorted(n for n in usual | ends if first <= n <= last and (n <= node or n % node == 0))
    if not counts:
        raise UsageError("--gpus", f"{text} holds no whole nodes of {node} GPUs", "widen it, or give --gpus-per-node")
    return counts


#: keys of --set
FIXED: dict[str, click.ParamType[Any]] = {
    "tp": click.IntRange(1),
    "pp": click.IntRange(1),
    "vpp": click.IntRange(1),
    "cp": click.IntRange(1),
    "ep": click.IntRange(1),
    "zero": click.IntRange(0, 3),
    "precision": click.Choice(PRECISION),
    "micro_batch": click.IntRange(1),
    "seq": click.IntRange(1, 10_000_000),
    "comm": click.STRING,
    "intra": click.STRING,
    "inter": click.STRING,
    "kernels": click.Choice(("fused", "local")),
}
_OLD = {f"--{key.replace('_', '-')}": key for key in FIXED if key != "kernels"}


@click.command("plan", cls=WithOldOptions, old=_OLD)
@click.option(
    "--model",
    "model_name",
    required=True,
    metavar="NAME|PATH",
    help="Preset (llama3-8b, gpt3-175b, mixtral-8x7b, ...) or config.json.",
)
@click.option("--gpus", required=True, metavar="N|A:B", help="GPU count; A:B tries powers of two and whole nodes.")
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
@click.option(
    "--set",
    "fixed_texts",
    multiple=True,
    metavar="KEY=VALUE",
    help="Fix a figure; may be given several times. Keys: " + ", ".join(FIXED) + ".",
)
@click.option(
    "--figures",
    "figures_file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="GPU figures over the built-in ones, as `profiles measure` writes them.",
)
@click.option(
    "--profile",
    "profile_file",
    type=click.Path(path_type=Path),
    metavar="PROFILE",
    help="What `profiles fit` wrote from measured rows.",
)
@click.option(
    "--top",
    default=10,
    show_default=True,
    type=click.IntRange(1, _ALL),
    metavar="K",
    help="Plans shown for each GPU count.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON (seconds, bytes) instead of tables.")
@click.option(
    "--render",
    is_flag=True,
    help="Print a batch script for the best plan on the most GPUs, with Megatron-LM's pretrain_gpt.py.",
)
@click.option(
    "--plot",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE.png",
    help="Draw how tokens/s scale and where each plan wins (needs matplotlib).",
)
def plan(
    model_name: str,
    gpus: str,
    gpu_type: str,
    gpus_per_node: int,
    global_batch: str,
    noise_scale: float | None,
    fixed_texts: tuple[str, ...],
    figures_file: Path | None,
    profile_file: Path | None,
    top: int,
    as_json: bool,
    render: bool,
    plot: Path | None,
) -> None:
    """Show the best parallel plans of a model on given GPUs, without running anything.

    Every split of the GPUs into tensor (tp), pipeline (pp, with vpp virtual stages), context (cp), expert (ep) and data (dp)
    parallel degrees is predicted with each micro-batch, each ZeRO stage and the least recompute that fits. Plans that fit
    into memory are ranked by goodput: sequences per second, times the probability that the plan fits and, with
    --noise-scale, the statistical efficiency of the batch. Without it the batch is the smallest of --global-batch that a plan
    divides.

    +- % is one sigma of the step time, OOM % the probability that memory does not suffice. The second and third table
    divide step time and memory. The last lines name the measurement that would narrow +- most, and the assumed kernels.

    --set zero= takes 0 to 3 (3 is FSDP), seq= the sequence length, intra= a link inside a node (nvlink4, pcie4, ..., or 1e9
    bytes/s per GPU), inter=LINK[/N] one between nodes (ib-ndr, roce-200/2, 4x25gbe/8), shared by N GPUs. comm=local,compressed adds plans
    that exchange less over slow links, with the progress per example that the papers report. kernels=local predicts Megatron-LM without
    Transformer Engine and Apex; a job's own kernels are detected. Options of 0.2.0 such as --tp still work.

    \b
    Examples:
      synergyctl plan --model llama3-70b --gpus 8:512 --gpu-type h100 --global-batch 1024
      synergyctl plan --model gpt3-13b --gpus 8:64 --gpu-type a100-40 --global-batch 128:1024 --noise-scale 600
      synergyctl plan --model mixtral-8x7b --gpus 64 --gpu-type a100 --set inter=roce-200/2 --plot plans.png
      synergyctl plan --model llama3-405b --gpus 16384 --gpu-type h100 --global-batch 2048 --render > job.sh
      synergyctl plan --model ./config.json --set seq=4096 --gpus 16 --gpu-type a40 --gpus-per-node 4

    Exit code: 0; 2 if an option is wrong or no plan fits on any of the GPU counts.
    """
    try:
        fixed_values = key_values(fixed_texts, FIXED)
        links = fixed_values.pop("intra", None), fixed_values.pop("inter", None)
        kernels = LOCAL if fixed_values.pop("kernels", "fused") == "local" else UNKNOWN
        comm = parse_kinds(fixed_values.pop("comm", "exact"), "--set comm")
        table = plan_table(
            load_model(model_name, fixed_values.pop("seq", None)),
            gpu_type,
            gpu_counts(gpus, gpus_per_node),
            gpus_per_node,
            numbers(global_batch, "--global-batch"),
            noise_scale=noise_scale,
            top=_ALL if plot else top,
            comm=comm,
            kernels=kernels,
            gpu=_figures(gpu_type, profile_file, _overrides(gpu_type, figures_file, *links)),
            **fixed_values,
        )
        _print_table(table, top, as_json, render, plot)
    except UsageError as error:
        click.echo(f"synergyctl plan: {error}", err=True)
        sys.exit(2)
    if not any(count.rows for count in table.counts):
        sys.exit(2)


def _print_table(table: PlanTable, top: int, as_json: bool, render: bool, plot: Path | None) -> None:
    """Print, draw or render `table`. Raises UsageError: no plan fits, or options that contradict each other."""
    if not as_json and not any(count.rows for count in table.counts):
        raise UsageError("", f"{table.counts[-1].gpus} GPUs: {table.counts[-1].why_none}")
    if plot:
        from synergyd.cli.planning.plot import draw

        draw(table, plot)
    if render:
        if as_json:
            raise UsageError("--render", "with --json", "one of them")
        click.echo(script(table), nl=False)
        return
    table = table.first(top)
    if as_json:
        click.echo(json.dumps(asdict(table), indent=2))
    else:
        show(table, console())


def _figures(gpu_type: str, profile: Path | None, overrides: dict[str, dict[str, float]]) -> GpuFigures:
    return read_profile(profile).figures(gpu_type, overrides=overrides) if profile else figures(gpu_type, overrides)


def _overrides(gpu_type: str, path: Path | None, intra: str | None, inter: str | None) -> dict[str, dict[str, float]]:
    """Return the file's figures, with the links over them."""
    result = read_figures(path) if path else {}
    links = (link_figures(intra, "intra") if intra else {}) | (link_figures(inter, "inter") if inter else {})
    if links:
        key = next((name for name in result if name.lower() == gpu_type.strip().lower()), gpu_type)
        result[key] = {**result.get(key, {}), **links}
    return result


def show(table: PlanTable, console: Console) -> None:
    """Print `table` for people."""
    if table.note:
        console.print(f"note: {table.note}", markup=False)
    for count in table.counts:
        if count.rows:
            console.print(_speeds(table, count))
            console.print(_times(count))
            console.print(_memory(table, count))
        else:
            console.print(f"{count.gpus} GPUs: {count.why_none}", markup=False)
        if count.ruled_out:
            reasons = "; ".join(f"{n} {reason}" for reason, n in count.ruled_out.items())
            console.print(f"{count.fitting} plans fit; ruled out: {reasons}", markup=False)
        if count.rows and count.closest:
            console.print(f"the leanest that did not fit: {count.closest}", markup=False)
    if table.measure is not None:
        what, before, after = table.measure
        console.print(f"+- {100 * before:.0f} % becomes {100 * after:.0f} % by measuring {what}", markup=False)
        console.print(kernels_message(table.kernels, "--set kernels=local"), markup=False)


def degrees(plan: Plan) -> dict[str, str]:
    """Return what tells a plan from others, by column."""
    names = (
        "tp",
        "pp",
        "vpp",
        "cp",
        "cp_comm",
        "dp",
        "ep",
        "zero_stage",
        "shard",
        "micro_batch",
        "global_batch",
    )
    return {
        **{name: str(getattr(plan, name)) for name in names},
        "recompute": format_recompute(plan.recompute, plan.recompute_layers),
        "exchange": plan.exchange.removeprefix("compressed:"),
    }


def _speeds(table: PlanTable, count: GpuCount) -> FittedTable:
    """Return the first view: what tells the plans apart, how fast each is, how sure that is, and whether it fits."""
    plans = [row.cell.plan for row in count.rows]
    precision, batches = plans[0].precision, sorted({p.global_batch for p in plans})
    title = f"{table.model.name} on {count.gpus} {table.gpu_type}, {table.gpus_per_node} a node, {precision}"
    title += f", batch {batches[0]}" if len(batches) == 1 else ""
    figures = (
        figure_column("step s"),
        figure_column("+- %"),
        figure_column("tokens/s"),
        figure_column("MFU %", drop=1),
        figure_column("OOM %"),
    )
    result = FittedTable((figure_column("#"), text_column("plan", least=24, folds=True), *figures), title)
    usual = _RARE | ({"global_batch": batches[0]} if len(batches) == 1 else {})
    for row in count.rows:
        words = degrees(row.cell.plan)
        degree_texts = [f"{_SHORT.get(n, n)} {text}" for n, text in words.items() if text != str(usual.get(n, ""))]
        result.add_row(
            str(row.rank),
            "  ".join(degree_texts),
            f"{row.cell.step_s:.3g}",
            f"{100 * row.cell.uncertainty:.0f}",
            f"{row.tokens_per_s:,.0f}",
            f"{100 * row.mfu:.1f}",
            f"{100 * row.risk:.0f}",
        )
    return result


def _times(count: GpuCount) -> FittedTable:
    columns = [figure_column(name) for name in ("#", *count.rows[0].time)]
    result = FittedTable(columns, "where a step goes, %")
    for row in count.rows:
        whole = sum(row.time.values())
        result.add_row(str(row.rank), *(f"{100 * part / whole:.0f}" for part in row.time.values()))
    return result


def _memory(table: PlanTable, count: GpuCount) -> FittedTable:
    columns = [figure_column(name) for name in ("#", "in all", *count.rows[0].memory)]
    result = FittedTable(columns, f"GiB a GPU, of {table.usable_bytes / GIB:.1f} usable")
    for row in count.rows:
        parts = [row.cell.memory_bytes, *row.memory.values()]
        whole, *rest = (f"{part / GIB:.1f}" for part in parts)
        result.add_row(str(row.rank), whole, *rest)
    return result
