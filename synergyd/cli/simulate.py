"""`synergyctl simulate`: policies on a recorded or made-up workload, side by side."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from synergyd.cli.console import console
from synergyd.cli.simulate_contention import WithWorkloads
from synergyd.cli.simulate_links import link_options, with_links
from synergyd.errors import UsageError
from synergyd.settings import Settings
from synergyd.sim.ideal import Ideals, LowerBound, lower_bound
from synergyd.sim.metrics import Metrics, metrics_of
from synergyd.sim.records import Costs, Run, Scenario, cluster_of
from synergyd.sim.simulate import checked, policies, simulate
from synergyd.sim.traces.kinds import KINDS, gpu_type_of, read_trace

MAX_NODES = 100_000


@click.command("simulate", cls=WithWorkloads)
@click.option("--trace", required=True, metavar="KIND:PATH", help=f"Workload; KIND is {', '.join(KINDS)}.")
@click.option(
    "--profiles",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Measurements that the jobs' true speeds come from, where they are not beside the workload.",
)
@click.option(
    "--nodes", default=16, show_default=True, type=click.IntRange(1, MAX_NODES), help="Nodes (of --gpu-type)."
)
@click.option("--gpus-per-node", default=4, show_default=True, type=click.IntRange(1, 64), help="GPUs a node.")
@click.option(
    "--gpu-type", default="", metavar="TYPE", help="GPU type; default: the one that the trace was measured on."
)
@click.option(
    "--types", default="", metavar="TYPE=NODESxGPUS,...", help="Several GPU types, in place of the three above."
)
@click.option("--policy", "names", default="synergy", show_default=True, metavar="NAME,...", help=", ".join(policies()))
@click.option("--oracle", is_flag=True, help="Schedule from the true speeds instead of models learnt from reports.")
@click.option("--epoch", "epoch_s", default=60.0, show_default=True, type=click.FloatRange(1, 86400), help="Seconds.")
@click.option("--rounds", is_flag=True, help="Count whole seconds, as the reference simulators do.")
@click.option(
    "--fairness", default=0.0, show_default=True, type=click.FloatRange(-8, 1), help="As the setting Fairness."
)
@click.option("--start-cost", type=click.FloatRange(0, 86400), metavar="S", help="Seconds of a job's first start.")
@click.option(
    "--resize-cost",
    type=click.FloatRange(0, 86400),
    metavar="S",
    help="Seconds of a resize: checkpoint, requeue, start.",
)
@click.option(
    "--seed", default=0, show_default=True, type=click.IntRange(0), help="Of the generator and the reports' noise."
)
@link_options
@click.option(
    "--json", "json_file", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE", help="'-': stdout."
)
@click.option(
    "--plot",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE.png",
    help="JCT distribution, allocation over time and goodput (needs matplotlib).",
)
def simulate_verb(
    trace: str,
    profiles: Path | None,
    nodes: int,
    gpus_per_node: int,
    gpu_type: str,
    types: str,
    names: str,
    oracle: bool,
    epoch_s: float,
    rounds: bool,
    fairness: float,
    start_cost: float | None,
    resize_cost: float | None,
    seed: int,
    json_file: Path | None,
    plot: Path | None,
    **links: Any,
) -> None:
    """Run policies on a workload, in simulated time, with the daemon's own code.

    The jobs' true speeds come from measurements and are hidden from the scheduler, which learns from simulated reports
    (unless --oracle). Every run goes on until the last job is done. Beside the policies stands a lower bound of the
    average job completion time (JCT) that no scheduler can beat.

    \b
    Examples:
      synergyctl simulate --trace pollux:workloads/workload-6.csv --policy tiresias,fifo,synergy
      synergyctl simulate --trace pollux:workloads/workload-6.csv --policy tiresias --rounds --json -
      synergyctl simulate --trace generate:200 --nodes 32 --gpus-per-node 8 --policy fifo,synergy --plot out.png

    Jobs that share links, task by task: synergyctl simulate --workload contention --help

    Exit code: 0; 2 if an option or the trace is wrong.
    """
    try:
        chosen = policy_names(names)
        told = groups(types) if types else {gpu_type or gpu_type_of(trace): (nodes, gpus_per_node)}
        cluster = cluster_of(told)
        first, (_, each) = next(iter(told.items()))
        loaded = read_trace(trace, profiles, first, sum(n * g for n, g in told.values()), each, seed)
        costs = with_costs(loaded.costs, start_cost, resize_cost)
        scenario = checked(Scenario(loaded.jobs, cluster, costs, epoch_s, whole_seconds=rounds, seed=seed))
        scenario, settings = with_links(scenario, Settings(fairness=fairness), **links)
        ideals = Ideals(scenario)
        bound = lower_bound(scenario, ideals)
        runs = run_all(scenario, chosen, settings, oracle, ideals)
        measured = {run.policy: metrics_of(run, ideals) for run in runs}
        if json_file is not None:
            write_json(json_file, as_json(scenario, measured, bound))
        if plot is not None:
            from synergyd.cli.simulate_plot import draw

            draw(runs, bound, plot)
    except UsageError as error:
        click.echo(f"synergyctl simulate: {error}", err=True)
        sys.exit(2)
    if json_file != Path("-"):
        show(scenario, measured, bound, console())


def policy_names(text: str) -> list[str]:
    """`NAME,NAME`, each once. Raises UsageError."""
    found = list(dict.fromkeys(word.strip() for word in text.split(",") if word.strip()))
    for name in found:
        if name not in policies():
            raise UsageError("--policy", f"no policy is called {name!r}", f"one of: {', '.join(policies())}")
    if not found:
        raise UsageError("--policy", "names none", f"some of: {', '.join(policies())}")
    return found


def groups(text: str) -> dict[str, tuple[int, int]]:
    """`a100=8x8,t4=16x4`: type -> (nodes, GPUs a node). Raises UsageError."""
    found: dict[str, tuple[int, int]] = {}
    for word in text.split(","):
        name, equals, size = word.strip().partition("=")
        nodes, _, gpus = size.partition("x")
        numbers = all(n.isascii() and n.isdecimal() and 1 <= int(n) <= MAX_NODES for n in (nodes, gpus))
        if not name or not equals or not numbers or name in found:
            raise UsageError("--types", f"{word!r} is not TYPE=NODESxGPUS", "such as a100=8x8,t4=16x4, each type once")
        found[name] = int(nodes), int(gpus)
    return found


def with_costs(costs: Costs, start_s: float | None, resize_s: float | None) -> Costs:
    """The trace's own costs with those of the command line in their place; a resize keeps its proportions."""
    factor = 1.0 if resize_s is None else resize_s / costs.resize_s if costs.resize_s else 0.0
    first = costs.first_start_s if start_s is None else start_s
    return Costs(first, costs.checkpoint_s * factor, costs.requeue_s * factor, costs.start_s * factor)


def run_all(scenario: Scenario, names: list[str], settings: Settings, oracle: bool, ideals: Ideals) -> list[Run]:
    """One Run a policy, with a progress bar of jobs done on a terminal."""
    shown = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    runs = []
    with Progress(*columns, console=shown, transient=True, disable=not shown.is_terminal) as progress:
        for name in names:
            task = progress.add_task(name, total=len(scenario.jobs))

            def moved(done: int, now_s: float, task: Any = task, name: str = name) -> None:
                progress.update(task, completed=done, description=f"{name} at {now_s / 3600:.1f} h")

            runs.append(simulate(scenario, name, settings, oracle=oracle, ideals=ideals, on_progress=moved))
    return runs


def as_json(scenario: Scenario, measured: dict[str, Metrics], bound: LowerBound) -> dict[str, Any]:
    return {
        "jobs": len(scenario.jobs),
        "gpus": scenario.gpus,
        "epoch_s": scenario.epoch_s,
        "costs": asdict(scenario.costs),
        "seed": scenario.seed,
        "policies": {name: asdict(one) for name, one in measured.items()},
        "lower_bound_avg_jct_s": bound.average_s,
        "lower_bounds": asdict(bound),
    }


def write_json(path: Path, content: dict[str, Any]) -> None:
    text = json.dumps(content, indent=2)
    if path == Path("-"):
        click.echo(text)
        return
    try:
        path.write_text(text + "\n")
    except OSError as error:
        raise UsageError("--json", f"{path} can't be written: {error.strerror}") from None


def show(scenario: Scenario, measured: dict[str, Metrics], bound: LowerBound, out: Console) -> None:
    """Print the policies side by side, for people."""
    title = f"{len(scenario.jobs)} jobs on {scenario.gpus} GPUs; no scheduler can beat an average JCT of {bound.average_s:,.0f} s"
    table = Table(title=title, title_justify="left")
    names = ("policy", "avg JCT s", "median", "p99", "makespan s", "queued s", "restarts a job", "GPU h", "used %")
    for name in (*names, "useful %", "worst FTF", "unfair %", "decision ms", "h/s"):
        table.add_column(name, justify="left" if name == "policy" else "right")
    for name, one in measured.items():
        table.add_row(
            name,
            f"{one.avg_jct_s:,.2f}",
            f"{one.median_jct_s:,.0f}",
            f"{one.p99_jct_s:,.0f}",
            f"{one.makespan_s:,.0f}",
            f"{one.avg_queueing_s:,.0f}",
            f"{one.restarts_per_job:.2f}",
            f"{one.gpu_hours:,.0f}",
            f"{100 * one.utilisation:.0f}",
            f"{100 * one.efficiency:.0f}",
            "" if one.worst_ftf is None else f"{one.worst_ftf:.2f}",
            "" if one.unfair_share is None else f"{100 * one.unfair_share:.1f}",
            "" if one.decision_ms_median is None else f"{one.decision_ms_median:.1f}",
            f"{one.simulated_hours_per_s:.1f}",
        )
    out.print(table)
    out.print(
        f"lower bounds of the average: each job alone {bound.alone_s:,.0f} s, GPU seconds on one machine {bound.work_s:,.0f} s, "
        f"mean busy times {bound.both_s:,.0f} s",
        markup=False,
    )
