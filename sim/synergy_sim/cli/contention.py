"""`synergyctl simulate --workload contention`: who may send when, on links that jobs share; task by task."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from synergy_core.errors import UsageError

from synergy_sim.cli.json_file import write_json
from synergy_sim.contention.run import POLICIES, ContentionRun, Setup, parse_policy, run_contention, summary
from synergyd.cli.shared.console import console
from synergyd.cli.shared.fitted_table import FittedTable, figure_column, text_column
from synergyd.cli.shared.key_values import WithOldOptions, key_values

WORKLOADS = ("contention",)
OPTION = "--workload"
_PLACEMENTS = "lwf-1+ (as without), first-fit+, lwf-KAPPA+"
_SHOWN = ("median_jct_s", "p95_jct_s", "makespan_s", "multi_node_jct_s", "waited_s", "sending_s")
_HEADS = ("policy", "placement", "mean JCT s", "of the first", "median", "95 %", "makespan s", "multi-node JCT")


#: keys of --set
KEYS: dict[str, click.ParamType[Any]] = {
    "exclusive": click.BOOL,
    "link": click.STRING,
    "penalty": click.FLOAT,
    "message": click.FLOAT,
    "load": click.FLOAT,
    "scale": click.FLOAT,
}


class WithWorkloads(WithOldOptions):
    """A verb that uses a workload of its own, with its own options, where `--workload` is among the arguments."""

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        if any(word == OPTION or word.startswith(f"{OPTION}=") for word in args):
            return contention_verb.make_context(info_name, args, parent, **extra)
        return super().make_context(info_name, args, parent, **extra)

    def invoke(self, ctx: click.Context) -> Any:
        return super().invoke(ctx) if ctx.command is self else ctx.command.invoke(ctx)


@click.command("simulate", cls=WithOldOptions, old={f"--{key}": key for key in KEYS}, flags=["--exclusive"])
@click.option(OPTION, required=True, metavar="NAME", help=f"What is simulated: {', '.join(WORKLOADS)}.")
@click.option(
    "--policy",
    "names",
    default=",".join(POLICIES),
    show_default=True,
    metavar="NAME,...",
    help=f"srsf-T (T tasks on a link at most), ada-srsf, look-ahead; srsf and ada-srsf also with -time and -reserve "
    f"behind. A placement may stand before each: {_PLACEMENTS}.",
)
@click.option(
    "--seed", default=0, show_default=True, type=click.IntRange(0), metavar="N", help="The first seed of the jobs."
)
@click.option(
    "--seeds", default=1, show_default=True, type=click.IntRange(1, 10_000), metavar="N", help="Number of seeds."
)
@click.option(
    "--jobs",
    default=160,
    show_default=True,
    type=click.IntRange(1, 100_000),
    metavar="N",
    help="Jobs, in the same mix.",
)
@click.option("--nodes", default=16, show_default=True, type=click.IntRange(1, 10_000), metavar="N", help="Nodes.")
@click.option(
    "--gpus-per-node", default=4, show_default=True, type=click.IntRange(1, 64), metavar="N", help="GPUs a node."
)
@click.option(
    "--set",
    "assignments",
    multiple=True,
    metavar="KEY=VALUE",
    help="Change the set-up; may be given several times. Keys: " + ", ".join(KEYS) + ".",
)
@click.option(
    "--json", "json_file", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE", help="'-': stdout."
)
def contention_verb(
    workload: str,
    names: str,
    seed: int,
    seeds: int,
    jobs: int,
    nodes: int,
    gpus_per_node: int,
    assignments: tuple[str, ...],
    json_file: Path | None,
) -> None:
    """Simulate jobs whose all-reduces share links, under rules of who may send when.

    The set-up is that of arXiv 2002.10105: 16 nodes x 4 GPUs on 10 GbE, 160 jobs of four models; each of k tasks on a link
    needs k b + (k-1) h ms per MB. look-ahead simulates the rules at each change and follows the one with the least mean JCT.

    --set exclusive=yes puts one job on a GPU, otherwise as many as its 32 GiB hold. link=NAME is a node's link (10gbe).
    penalty, message and load (1) multiply the loss on shared links, the models' sizes and the rate of arrivals. scale (5; the
    paper's is 1000, slow) is the iterations of the shortest job; arrivals scale with it.

    \b
    Examples:
      synergyctl simulate --workload contention --policy srsf-1,srsf-2,ada-srsf --seeds 10
      synergyctl simulate --workload contention --policy ada-srsf,first-fit+ada-srsf --set load=0.3 --json -

    Exit code: 0; 2 if an option is wrong.
    """
    try:
        if workload not in WORKLOADS:
            raise UsageError(OPTION, f"no workload is called {workload!r}", f"one of: {', '.join(WORKLOADS)}")
        policy_names = parse_policies(names)
        setup = Setup(nodes, gpus_per_node, jobs=jobs, **{"scale": 5.0} | key_values(assignments, KEYS))
        try:
            setup.check()
        except UsageError as error:
            where = f"--set {error.where}" if error.where in KEYS else f"--{error.where.replace('_', '-')}"
            raise UsageError(where, error.what, error.right) from None
        runs = run_all(policy_names, range(seed, seed + seeds), setup)
        if json_file is not None:
            write_json(json_file, as_json(setup, runs))
    except UsageError as error:
        click.echo(f"synergyctl simulate: {error}", err=True)
        sys.exit(2)
    if json_file != Path("-"):
        show(setup, runs, console())


def parse_policies(text: str) -> list[str]:
    """Parse `NAME,NAME`, each once. Raises UsageError."""
    names = list(dict.fromkeys(word.strip() for word in text.split(",") if word.strip()))
    right = f"some of: {', '.join(POLICIES)}; a placement may stand before it, such as first-fit+srsf-1"
    for name in names:
        try:
            parse_policy(name)
        except UsageError as error:
            raise UsageError("--policy", error.what, right) from None
    if not names:
        raise UsageError("--policy", "names none", right)
    return names


def run_all(names: Sequence[str], seeds: Sequence[int], setup: Setup) -> dict[str, list[ContentionRun]]:
    """Return one Run per seed, by policy; show a progress bar on a terminal."""
    terminal = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=terminal, transient=True, disable=not terminal.is_terminal) as progress:
        task = progress.add_task("", total=len(names) * len(seeds))

        def one(name: str, seed: int) -> ContentionRun:
            progress.update(task, description=f"{name}, seed {seed}")
            run = run_contention([name], seed, setup)[0]
            progress.advance(task)
            return run

        return {name: [one(name, seed) for seed in seeds] for name in names}


def as_json(setup: Setup, runs: dict[str, list[ContentionRun]]) -> dict[str, Any]:
    """Return the set-up and, by policy, the means over seeds with every seed's own numbers."""
    return {
        "workload": "contention",
        "setup": asdict(setup),
        "policies": {
            name: mean_over_seeds(some, next(iter(runs.values()))) | {"runs": [summary(run) for run in some]}
            for name, some in runs.items()
        },
    }


def mean_over_seeds(runs: Sequence[ContentionRun], first: Sequence[ContentionRun]) -> dict[str, float | None]:
    """Return the means over the seeds.

    For the mean JCT, also return its standard deviation over the seeds and its ratio to that of the runs `first` on the same jobs.
    """
    summaries = [summary(run) for run in runs]
    ratios = [a.jct_s / b.jct_s for a, b in zip(runs, first, strict=True)]
    means: dict[str, float | None] = {
        "mean_jct_s": statistics.fmean(run.jct_s for run in runs),
        "mean_jct_sd_s": _deviation([run.jct_s for run in runs]),
        "of_first": statistics.fmean(ratios),
        "of_first_sd": _deviation(ratios),
    }
    for key in _SHOWN:
        values = [float(value) for one in summaries if isinstance(value := one[key], (int, float))]
        means[key] = statistics.fmean(values) if values else None
    return means


def _deviation(values: Sequence[float]) -> float:
    return statistics.stdev(values) if len(values) > 1 else 0.0


def show(setup: Setup, runs: dict[str, list[ContentionRun]], out: Console) -> None:
    """Print the policies side by side, for people."""
    first = next(iter(runs.values()))
    seeds = f"{len(first)} seed{'s' * (len(first) != 1)} from {first[0].seed}"
    title = f"{setup.jobs} jobs on {setup.nodes} x {setup.gpus} GPUs, {setup.link}; {seeds} (± over seeds)"
    columns = [text_column("policy"), text_column("placement"), *map(figure_column, _HEADS[2:4])]
    columns += [figure_column(name, drop) for drop, name in enumerate((*_HEADS[4:], "gated s", "sending s"), 1)]
    table = FittedTable(columns, title)
    for some in runs.values():
        means = mean_over_seeds(some, first)
        table.add_row(
            some[0].policy,
            some[0].placement,
            f"{means['mean_jct_s']:,.1f} ±{means['mean_jct_sd_s']:,.1f}",
            f"{means['of_first']:.3f} ±{means['of_first_sd']:.3f}",
            *("" if (value := means[key]) is None else f"{value:,.1f}" for key in _SHOWN),
        )
    out.print(table)
