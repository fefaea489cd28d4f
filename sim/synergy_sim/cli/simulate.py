"""`synergyctl simulate`: policies on a recorded or made-up workload, side by side."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from synergy_core.errors import SynergyError, UsageError

from synergy_sim.cli.contention import WithWorkloads
from synergy_sim.cli.json_file import write_json
from synergy_sim.cli.links import link_options, with_links
from synergy_sim.ideal import Ideals, LowerBound, compute_lower_bound
from synergy_sim.metrics import RunMetrics, compute_metrics
from synergy_sim.records import Costs, Scenario, SimulatedRun, build_cluster
from synergy_sim.runs import check_scenario, policies, simulate
from synergy_sim.traces.kinds import KINDS, LoadedTrace, cluster_of_trace, find_gpu_type, read_trace
from synergy_sim.traces.queue import Replay, replay_queue
from synergyd.cli.shared.console import console
from synergyd.cli.shared.context import Context
from synergyd.cli.shared.fitted_table import FittedTable, figure_column, text_column
from synergyd.cli.shared.key_values import FiniteRange
from synergyd.settings import Settings
from synergyd.slurm.directives.conf import with_values

if TYPE_CHECKING:
    from synergyd.store.records import Recording

MAX_NODES = 100_000
SILENT_S = 30.0  # a run in a pipe says how far it is as often
Source = Callable[[], "tuple[str, Recording]"]  # (where it comes from, for messages; the past of a queue)
_SILENT = ("morphling", "arena", "gavel")  # their times are whole steps
_OPTIONS = {"restartcost": "--resize-cost", "policy": "--policy"}  # settings that are options here


#: options of 0.2.0 -> settings
_OLD = {"--epoch": "Epoch", "--fairness": "Fairness", "--link-aware": "LinkAware"}


@click.command("simulate", cls=WithWorkloads, old=_OLD, flags=["--link-aware"])
@click.option("--trace", default="", metavar="KIND:PATH", help=f"Workload; KIND is {', '.join(KINDS)}.")
@click.option(
    "--from-database",
    "database",
    default="",
    metavar="URL",
    help="In place of --trace: the queue that a daemon recorded, on its last cluster.",
)
@click.option(
    "--from-queue",
    "queue",
    is_flag=True,
    help="The same of this cluster's daemon, over the REST service (root on its host: its database).",
)
@click.option(
    "--profiles",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Measurements of the jobs' true speeds, if not beside the workload.",
)
@click.option(
    "--nodes",
    default=16,
    show_default=True,
    type=click.IntRange(1, MAX_NODES),
    metavar="N",
    help="Nodes (of --gpu-type); morphling and arena bring their own.",
)
@click.option(
    "--gpus-per-node", default=4, show_default=True, type=click.IntRange(1, 64), metavar="N", help="GPUs a node."
)
@click.option("--gpu-type", default="", metavar="TYPE", help="GPU type; default: that of the trace.")
@click.option(
    "--types", default="", metavar="TYPE=NODESxGPUS,...", help="Several GPU types, in place of the three above."
)
@click.option("--policy", "names", default="synergy", show_default=True, metavar="NAME,...", help=", ".join(policies()))
@click.option("--oracle", is_flag=True, help="Schedule from the true speeds instead of models learnt from reports.")
@click.option("--rounds", is_flag=True, help="Count whole seconds, as the reference simulators do.")
@click.option(
    "--set",
    "given",
    multiple=True,
    metavar="KEY=VALUE",
    help="Any setting, as in slurm.conf: --set Epoch=30 --set Fairness=-2.",
)
@click.option("--unknown-lengths", is_flag=True, help="Jobs don't report how much is left to do.")
@click.option("--start-cost", type=FiniteRange(0, 86400), metavar="S", help="Seconds of a job's first start.")
@click.option(
    "--resize-cost",
    type=FiniteRange(0, 86400),
    metavar="S",
    help="Seconds of a resize: checkpoint, requeue, start.",
)
@click.option(
    "--seed",
    default=0,
    show_default=True,
    type=click.IntRange(0),
    metavar="N",
    help="Of the generator and the reports' noise.",
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
    database: str,
    queue: bool,
    profiles: Path | None,
    nodes: int,
    gpus_per_node: int,
    gpu_type: str,
    types: str,
    names: str,
    oracle: bool,
    rounds: bool,
    given: tuple[str, ...],
    unknown_lengths: bool,
    start_cost: float | None,
    resize_cost: float | None,
    seed: int,
    json_file: Path | None,
    plot: Path | None,
    **links: Any,
) -> None:
    """Run policies on a workload, in simulated time, with the daemon's own code.

    The jobs' true speeds come from measurements. The scheduler learns them from simulated reports, unless --oracle. Every
    run ends with the last job. The output includes a lower bound on the mean job completion time (JCT) of any scheduler.

    \b
    Examples:
      synergyctl simulate --trace pollux:workloads/workload-6.csv --policy tiresias,fifo,synergy
      synergyctl simulate --trace pollux:workloads/workload-6.csv --policy tiresias --rounds --json -
      synergyctl simulate --from-database sqlite:////var/lib/synergy/synergy.db --policy fifo,synergy --set Fairness=-2
      synergyctl simulate --from-queue --policy fifo,synergy --set RestartShare=0.05
      synergyctl simulate --trace generate:200 --nodes 32 --gpus-per-node 8 --policy fifo,synergy --plot out.png

    Jobs that share links, task by task: synergyctl simulate --workload contention --help

    Exit code: 0; 2 if an option or the trace is wrong; 1 if the database can't be reached.
    """
    try:
        chosen = parse_policies(names)
        source = find_source(database, queue)
        for option in ("contention", "comm"):
            if links[option] and (source or trace.partition(":")[0] in _SILENT):
                what = "nobody measured what these jobs send"
                raise UsageError(f"--{option}", what, "leave it out, or take another trace")
        loaded, groups_of_trace, replayed = read_workload(trace, source, profiles, types, (nodes, gpus_per_node), seed)
        costs = with_costs(loaded.costs, start_cost, resize_cost)
        settings = parse_settings(given)
        scenario = Scenario(
            loaded.jobs,
            build_cluster(groups_of_trace),
            costs,
            settings.epoch_s,
            whole_seconds=rounds,
            lengths_known=not unknown_lengths,
            seed=seed,
        )
        check_scenario(scenario)
        scenario, settings = with_links(scenario, settings, **links)
        ideals = Ideals(scenario)
        bound = compute_lower_bound(scenario, ideals)
        runs = run_all(scenario, chosen, settings, oracle, ideals)
        measured = {run.policy: compute_metrics(run, ideals) for run in runs}
        if json_file is not None:
            write_json(json_file, as_json(scenario, measured, bound) | recorded_fields(replayed))
        if plot is not None:
            from synergy_sim.cli.plot import draw_plot

            draw_plot(runs, bound, plot)
    except SynergyError as error:
        click.echo(f"synergyctl simulate: {error}", err=True)
        sys.exit(2 if isinstance(error, UsageError) else 1)
    if replayed is not None and replayed.excluded_jobs:
        click.echo(f"synergyctl simulate: {replayed.format_excluded_jobs()}", err=True)
    if json_file != Path("-"):
        show(scenario, measured, bound, console())
        print_recorded_jct(replayed)


def print_recorded_jct(replayed: Replay | None) -> None:
    """Print the number and average JCT of the jobs that left the daemon's queue, as recorded."""
    if replayed is not None and replayed.recorded_jcts_s:
        count, average = len(replayed.recorded_jcts_s), fmean(replayed.recorded_jcts_s)
        click.echo(f"as recorded: {count} of these jobs have left the queue, average JCT {average:,.2f} s")


def find_source(database: str, queue: bool) -> Source | None:
    """Return the source of a daemon's recorded queue, or None where no option asks for one. Raises UsageError."""
    if database and queue:
        raise UsageError("--from-queue", "--from-database is given too", "give one of them")
    if queue:
        context = click.get_current_context().find_object(Context) or Context()

        def ask() -> tuple[str, Recording]:
            with context.backend() as backend:
                return backend.recording()

        return ask
    if not database:
        return None
    from synergy_sim.cli.database import read_database

    return lambda: read_database(database)


def read_recorded_queue(
    source: Source, groups: dict[str, tuple[int, int]]
) -> tuple[dict[str, tuple[int, int]], Replay]:
    """Return the cluster and the trace of a daemon's database.

    The cluster is the one in `groups`, else the recorded one with the options that were given in their place.
    """
    from synergy_sim.cli.database import recorded_cluster, recorded_jobs

    where, kept = source()
    found = recorded_jobs(kept)
    if not found:
        return groups, replay_queue((), where, ())
    if not groups:
        groups = with_cluster_options(recorded_cluster(kept, where))
    return groups, replay_queue(found, where, groups)


def with_cluster_options(groups: dict[str, tuple[int, int]]) -> dict[str, tuple[int, int]]:
    """Return a trace's cluster with --nodes, --gpus-per-node and --gpu-type in their place where they are on the command line.

    Raises UsageError if the cluster has several types, to which these options don't apply.
    """
    context = click.get_current_context()
    names = ("nodes", "gpus_per_node", "gpu_type")
    options = {n: context.params[n] for n in names if context.get_parameter_source(n) is not ParameterSource.DEFAULT}
    if not options:
        return groups
    if len(groups) > 1:
        raise UsageError(
            "--nodes", f"the trace's cluster has {len(groups)} GPU types", "give --types TYPE=NODESxGPUS,..."
        )
    [(had_type, (had_nodes, had_each))] = groups.items()
    return {
        options.get("gpu_type") or had_type: (options.get("nodes", had_nodes), options.get("gpus_per_node", had_each))
    }


def recorded_fields(replayed: Replay | None) -> dict[str, Any]:
    """Return what the JSON says in addition of a recorded queue."""
    if replayed is None:
        return {}
    jcts = replayed.recorded_jcts_s
    recorded = {"jobs": len(jcts), "avg_jct_s": fmean(jcts) if jcts else None}
    return {"left_out": dict(replayed.excluded_jobs), "recorded": recorded}


def read_workload(
    trace: str, source: Source | None, profiles: Path | None, types: str, size: tuple[int, int], seed: int
) -> tuple[LoadedTrace, dict[str, tuple[int, int]], Replay | None]:
    """Return the jobs, the cluster's (nodes, GPUs a node) by GPU type, and, where a daemon recorded the workload, its recording.

    `size`: nodes and GPUs a node where neither `types` nor the trace names a cluster. Raises SynergyError.
    """
    if bool(trace) == (source is not None):
        raise UsageError("--trace", "give it or --from-database or --from-queue, one of them")
    groups_of: dict[str, tuple[int, int]] = parse_groups(types) if types else {}
    if source is not None:
        groups_of, replayed = read_recorded_queue(source, groups_of)
        return LoadedTrace(replayed.jobs), groups_of, replayed
    own = None if groups_of else cluster_of_trace(trace, profiles)
    groups_of = groups_of or with_cluster_options(own or {find_gpu_type(trace): size})
    first, (_, each) = next(iter(groups_of.items()))
    gpus = sum(n * g for n, g in groups_of.values())
    return read_trace(trace, profiles, first, gpus, each, seed), groups_of, None


def parse_settings(lines: tuple[str, ...]) -> Settings:
    """Return the settings with what each --set says. Raise UsageError."""
    settings = with_values(Settings(), "--set", lines)
    for text in lines:
        key = text.partition("=")[0].lower()
        if key in _OPTIONS:
            raise UsageError("--set", f"{key} has an option of its own", f"give {_OPTIONS[key]}")
    return settings


def parse_policies(text: str) -> list[str]:
    """Parse `NAME,NAME`, each once. Raises UsageError."""
    found = list(dict.fromkeys(word.strip() for word in text.split(",") if word.strip()))
    for name in found:
        if name not in policies():
            raise UsageError("--policy", f"no policy is called {name!r}", f"one of: {', '.join(policies())}")
    if not found:
        raise UsageError("--policy", "names none", f"some of: {', '.join(policies())}")
    return found


def parse_groups(text: str) -> dict[str, tuple[int, int]]:
    """Parse `a100=8x8,t4=16x4` into type -> (nodes, GPUs a node). Raises UsageError."""
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
    """Return the trace's own costs with those of the command line in their place; a resize keeps its proportions."""
    factor = 1.0 if resize_s is None else resize_s / costs.resize_s if costs.resize_s else 0.0
    first = costs.first_start_s if start_s is None else start_s
    phases = {name: getattr(costs, name) * factor for name in ("checkpoint_s", "requeue_s", "start_s")}
    return replace(costs, first_start_s=first, **phases)


def run_all(
    scenario: Scenario, names: list[str], settings: Settings, oracle: bool, ideals: Ideals
) -> list[SimulatedRun]:
    """Return one Run per policy. A terminal shows a progress bar of jobs done, a pipe a line each SILENT_S."""
    shown = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    runs = []
    with Progress(*columns, console=shown, transient=True, disable=not shown.is_terminal) as progress:
        for name in names:
            task = progress.add_task(name, total=len(scenario.jobs))

            said_s = [progress.get_time()]

            def show_progress(
                done: int, now_s: float, task: Any = task, name: str = name, said_s: list[float] = said_s
            ) -> None:
                progress.update(task, completed=done, description=f"{name} at {now_s / 3600:.1f} h")
                if not shown.is_terminal and progress.get_time() >= said_s[-1] + SILENT_S:
                    said_s.append(progress.get_time())
                    shown.print(f"{name}: {done} of {len(scenario.jobs)} jobs at {now_s / 3600:.1f} h", highlight=False)

            runs.append(simulate(scenario, name, settings, oracle=oracle, ideals=ideals, on_progress=show_progress))
    return runs


def as_json(scenario: Scenario, measured: dict[str, RunMetrics], bound: LowerBound) -> dict[str, Any]:
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


def show(scenario: Scenario, measured: dict[str, RunMetrics], bound: LowerBound, out: Console) -> None:
    """Print the policies side by side, for people."""
    title = f"{len(scenario.jobs)} jobs on {scenario.gpus} GPUs; no scheduler can beat an average JCT of {bound.average_s:,.0f} s"
    columns = (
        text_column("policy"),
        figure_column("avg JCT s"),
        figure_column("median", 3),
        figure_column("p99", 2),
        figure_column("makespan s", 4),
        figure_column("queued s"),
        figure_column("restarts a job", 5),
        figure_column("GPU h", 6),
        figure_column("kWh", 11),
        figure_column("used %", 7),
        figure_column("useful %", 8),
        figure_column("throughput", 9),
        figure_column("worst FTF", 1),
        figure_column("unfair %", 10),
        figure_column("decision ms", 12),
        figure_column("h/s", 13),
    )
    table = FittedTable(columns, title)
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
            "" if one.energy_kwh is None else f"{one.energy_kwh:,.0f}",
            f"{100 * one.utilisation:.0f}",
            f"{100 * one.efficiency:.0f}",
            "" if one.throughput_jobs is None else f"{one.throughput_jobs:.1f}",
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
