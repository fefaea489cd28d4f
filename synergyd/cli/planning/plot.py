"""`synergyctl plan --plot`: how tokens/s scale with GPUs, and where each way to split them wins."""

from __future__ import annotations

from pathlib import Path

from synergy_core.errors import UsageError
from synergy_core.records import Plan

from synergyd.jobmodel.plan_table import PlanTable

_CURVES = 8  # ways to split that are drawn: those that win somewhere, then the best of the rest


def split(plan: Plan) -> str:
    """Return the way a plan splits the model, without what grows with the GPUs: `tp 8 pp 4 vpp 2`."""
    degrees = {"tp": plan.tp, "pp": plan.pp, "vpp": plan.vpp, "cp": plan.cp, "ep": plan.ep}
    words = [f"{name} {n}" for name, n in degrees.items() if n > 1 or name in ("tp", "pp")]
    words += [f"ZeRO-{plan.zero_stage}"] * (plan.zero_stage > 1)
    return " ".join(words + [plan.exchange] * (plan.exchange != "exact"))


def curves(table: PlanTable) -> dict[str, list[tuple[int, float]]]:
    """Map each split to (GPUs, tokens/s) of its best plan at each GPU count where one fits; winners first, at most _CURVES."""
    points: dict[str, dict[int, float]] = {}
    for count in table.counts:
        for row in count.rows:
            # the best comes first: not always the fastest, which may need too much memory
            points.setdefault(split(row.cell.plan), {}).setdefault(count.gpus, row.tokens_per_s)
    winners = [name for _, name in best(table)]
    rest = sorted((n for n in points if n not in winners), key=lambda n: (-len(points[n]), -max(points[n].values())))
    plans = [*dict.fromkeys(winners), *rest][: max(_CURVES, len(set(winners)))]
    return {name: sorted(points[name].items()) for name in plans}


def best(table: PlanTable) -> list[tuple[int, str]]:
    """Return (GPUs, split of the best plan), one for each GPU count where a plan fits."""
    return [(count.gpus, split(count.rows[0].cell.plan)) for count in table.counts if count.rows]


def draw(table: PlanTable, path: Path) -> None:
    """Write the picture. Raises UsageError: matplotlib is not installed, no plan fits, the file can't be written."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise UsageError(
            "--plot", "matplotlib is not installed", "pip install 'synergy-slurm[plot]', or use --json"
        ) from None
    winners = best(table)
    if not winners:
        raise UsageError("--plot", "there is nothing to draw: no plan fits", "run without --plot to see why")
    figure = Figure(figsize=(12, 5), layout="constrained")
    scaling, shares = figure.subplots(1, 2)
    figure.suptitle(f"{table.model.name} on {table.gpu_type}, {table.gpus_per_node} a node")
    first = next(count for count in table.counts if count.rows)
    tokens = [(c.gpus, c.rows[0].tokens_per_s) for c in table.counts if c.rows]
    ideal = [(gpus, first.rows[0].tokens_per_s / first.gpus * gpus) for gpus, _ in tokens]
    scaling.plot(*zip(*ideal, strict=True), "--", color="0.6", label="linear")
    scaling.plot(*zip(*tokens, strict=True), "o-", label="best plan")
    scaling.set(xlabel="GPUs", ylabel="tokens/s", xscale="log", yscale="log", title="Scaling")
    scaling.legend()
    for name, points in curves(table).items():
        shares.plot([g for g, _ in points], [rate / g for g, rate in points], "o-", label=name, markersize=4)
    at = {count.gpus: count.rows[0].tokens_per_s / count.gpus for count in table.counts if count.rows}
    shares.plot([g for g, _ in winners], [at[g] for g, _ in winners], "k*", markersize=11, label="best")
    shares.set(xlabel="GPUs", ylabel="tokens/s a GPU", xscale="log", title="Where each plan wins")
    shares.legend(fontsize="small", loc="center left", bbox_to_anchor=(1.0, 0.5))
    for axes in (scaling, shares):
        axes.set_xticks([g for g, _ in winners], [str(g) for g, _ in winners])
        axes.minorticks_off()
        axes.grid(alpha=0.3)
    try:
        figure.savefig(path)
    except (OSError, ValueError) as error:  # ValueError: an ending that is no picture's
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise UsageError("--plot", f"{path} can't be written: {reason}", "give a path such as plans.png") from None
