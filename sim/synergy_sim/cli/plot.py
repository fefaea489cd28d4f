"""`synergyctl simulate --plot`: JCT distribution, goodput and allocation over time, side by side for the policies."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from synergy_core.errors import UsageError

from synergy_sim.ideal import LowerBound
from synergy_sim.records import SimulatedRun

_BARS = 20_000  # incarnations drawn; beyond that those of the fewest GPU seconds are left out


def draw_plot(runs: list[SimulatedRun], bound: LowerBound, path: Path) -> None:
    """Write the picture. Raises UsageError: matplotlib is not installed, the file can't be written."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise UsageError(
            "--plot", "matplotlib is not installed", "pip install 'synergy-slurm[plot]', or use --json"
        ) from None
    figure = Figure(figsize=(14, 4 + 3 * len(runs)), layout="constrained")
    grid = figure.add_gridspec(1 + len(runs), 2)
    spread, speed = figure.add_subplot(grid[0, 0]), figure.add_subplot(grid[0, 1])
    for run in runs:
        jcts = np.sort([result.jct_s / 3600 for result in run.jobs])
        spread.step(jcts, 100 * np.arange(1, len(jcts) + 1) / len(jcts), where="post", label=run.policy)
        if run.goodput:
            times, values = np.array(run.goodput).T
            speed.plot(times / 3600, values, label=run.policy, linewidth=0.8)
    spread.axvline(bound.average_s / 3600, color="0.5", linestyle="--", label="lower bound of the average")
    spread.set(xlabel="job completion time, hours", ylabel="% of jobs", xscale="log", title="Completion times")
    speed.set(xlabel="hours", ylabel="ideal GPUs' worth", title="Goodput of the cluster", ylim=(0, None))
    last_h = max(result.finish_s for run in runs for result in run.jobs) / 3600
    for index, run in enumerate(runs, start=1):
        axes = figure.add_subplot(grid[index, :])
        _gantt(axes, run)
        axes.set(xlabel="hours", ylabel="GPU", title=f"{run.policy}: who held which GPU", xlim=(0, last_h))
    for axes in (spread, speed):
        axes.grid(alpha=0.3)
        axes.legend(fontsize="small")
    try:
        figure.savefig(path)
    except (OSError, ValueError) as error:  # ValueError: an ending that is no picture's
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise UsageError("--plot", f"{path} can't be written: {reason}", "give a path such as runs.png") from None


def gpu_bars(run: SimulatedRun) -> list[tuple[int, float, float, int]]:
    """Return (row of the GPU, start s, seconds, job) of every GPU that was held. Each node's GPUs have rows of their own."""
    first, rows = 0, {}
    for node in run.scenario.cluster.nodes:
        rows[node.name] = range(first, first + node.gpus)
        first += node.gpus
    free_s = [0.0] * first  # until when each row is taken
    bars = []
    occupancies = sorted(run.occupancies, key=lambda h: h.gpus * (h.start_s - h.end_s))[:_BARS]
    for one in sorted(occupancies, key=lambda h: h.start_s):
        for name, gpus in one.nodes:
            for row in [r for r in rows[name] if free_s[r] <= one.start_s + 1e-9][:gpus]:
                free_s[row] = one.end_s
                bars.append((row, one.start_s, one.end_s - one.start_s, one.job))
    return bars


def _gantt(axes: object, run: SimulatedRun) -> None:
    from matplotlib import colormaps
    from matplotlib.collections import PolyCollection

    colours = colormaps["tab20"]
    bars = gpu_bars(run)
    boxes = [[(s / 3600, r), ((s + d) / 3600, r), ((s + d) / 3600, r + 1), (s / 3600, r + 1)] for r, s, d, _ in bars]
    shades = [colours(job % 20) for *_, job in bars]
    axes.add_collection(PolyCollection(boxes, facecolors=shades, linewidths=0))  # type: ignore[attr-defined]
    axes.set_ylim(0, run.scenario.gpus)  # type: ignore[attr-defined]
