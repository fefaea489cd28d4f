"""A forecast in words and tables that fit 80 columns."""

from __future__ import annotations

from collections import Counter
from datetime import datetime

from synergy_sim.forecast.estimate import COVERAGE, Forecast, Range, ShareForecast
from synergy_sim.records import Costs
from synergyd.cli.shared.fitted_table import FittedTable, figure_column, text_column
from synergyd.jobmodel.speed_up import MEASURED, PRIORS

_HOUR = 3600.0


def describe(forecast: Forecast) -> list[str]:
    """Return what the history holds, one line each."""
    history, measured = forecast.history, forecast.measured_outcome
    first, last = (f"{datetime.fromtimestamp(s):%Y-%m-%d}" for s in (history.from_s, history.to_s))
    days = (history.to_s - history.from_s) / 86400
    count = len(history.forecast_jobs)
    users = len({job.user for job in history.jobs})
    kinds = Counter((kind, gpus) for kind, each in history.nodes.items() for gpus in each)
    cluster = ", ".join(f"{n} x {gpus} {kind}" for (kind, gpus), n in sorted(kinds.items()))
    held_s = sum(job.gpus * (job.end_s - max(job.start_s, history.from_s)) for job in history.jobs)
    busy = 100 * held_s / (history.gpus * (history.to_s - history.from_s))
    return [
        f"history   {first} to {last} ({days:.0f} days): {count:,} jobs with GPUs of {users:,} user{'s' * (users != 1)},",
        f"          {forecast.multi:,} with several GPUs",
        f"cluster   {history.gpus:,} GPUs: {cluster} (from {history.source})",
        f"measured  mean wait {format_s(measured.wait_s)}, mean completion {format_s(measured.completion_s)},",
        f"          {measured.gpu_h:,.0f} GPU hours held (with jobs that still run: {busy:.0f} % of all)",
        f"replayed  mean wait {format_s(forecast.replayed_outcome.wait_s)} without Synergy",
        "",
    ]


def assumptions(forecast: Forecast) -> list[str]:
    """Return what the numbers rest on, and what nobody can know from a history."""
    history, costs = forecast.history, Costs()
    draws = forecast.of_prior(MEASURED.name)[0].draws
    wait, run = format_s(forecast.sigmas.wait_s), format_s(forecast.sigmas.run_s)
    lines = [
        _replay_message(forecast),
        f"Jobs that never reported scale by a prior, not by anything known of them: {MEASURED.text}. The second table shows two others.",
        "The jobs that take part are drawn by chance among those with several GPUs. Jobs with one GPU only hold it; CPU jobs are left out.",
        "Jobs that take part can train on any number of GPUs from one up, unless the prior says otherwise, and their users allow it.",
        f"A resize costs {costs.resize_s:.0f} s and a start {costs.first_start_s:.0f} s.",
        "Users submit the same jobs at the same times, however long they wait.",
        "Jobs start first come, first served, with backfilling by time limits.",
        "All GPUs of a type are open to all jobs that ran on it. Partitions and limits of accounts are not modelled.",
        f"The intervals hold {100 * COVERAGE:.0f} % of cases if this is so. They count the prior's spread ({draws} draws) and the queue "
        f"model's own error (one sigma: {wait} of the wait, {run} of the run time).",
        f"The whole span was replayed, {len(history.jobs):,} runs of jobs; none was sampled.",
    ]
    if any(job.goes_on for job in history.jobs):
        lines.append(
            f"{sum(job.goes_on for job in history.jobs):,} jobs still run: they hold GPUs here, and count for no mean."
        )
    if history.waiting:
        lines.append(f"{history.waiting:,} jobs wait now; they are left out.")
    if history.too_large:
        lines.append(f"{history.too_large:,} jobs don't fit on the cluster as it is known, and are left out.")
    if history.unreadable:
        lines.append(f"{history.unreadable:,} jobs with an unreadable node count or list are left out.")
    if history.source != "sinfo":
        lines.append("Nodes that ran no GPU job in the span are not seen: give --nodes.")
    if len({job.user for job in history.jobs}) == 1:
        lines.append(
            "Only one user's jobs were seen: sacct may show you your own alone (PrivateData=jobs); others' jobs hold GPUs, too."
        )
    return lines


def _replay_message(forecast: Forecast) -> str:
    measured_s, replayed_s = forecast.measured_outcome.wait_s, forecast.replayed_outcome.wait_s
    if replayed_s <= 0:
        return "The queue model sees no wait for GPUs: whatever jobs waited for, Synergy can't shorten it."
    if replayed_s < measured_s:
        share = f"{100 * replayed_s / measured_s:.0f} %"
        return f"The queue model explains {share} of the measured wait; the rest (limits, reservations, priorities) stays as it is."
    part = f"{100 * forecast.explained_share:.0f} %"
    return f"The queue model waits longer than was measured, or as long; the wait that it saves is scaled to {part}."


def format_tables(forecast: Forecast) -> list[FittedTable | str]:
    """Return the tables, and the assumptions between and behind them."""
    heads = ("MEAN WAIT", "MEAN COMPLETION", "GPU HOURS HELD")
    title = f"With Synergy (in brackets: {100 * COVERAGE:.0f} % intervals)"
    head = FittedTable((text_column("TAKE PART"), *map(figure_column, heads)), title)
    measured = forecast.measured_outcome
    head.add_row("none", format_s(measured.wait_s), format_s(measured.completion_s), f"{measured.gpu_h:,.0f}")
    for one in forecast.of_prior(MEASURED.name):
        head.add_row(_share(one), format_range(one.wait_s), format_range(one.completion_s), _hours(one.gpu_h))
    priors = [figure_column(prior.name.upper()) for prior in PRIORS]
    other = FittedTable((text_column("TAKE PART"), *priors), "If jobs scale otherwise: mean wait / mean completion")
    for share in forecast.of_prior(MEASURED.name):
        row = [one for prior in PRIORS for one in forecast.of_prior(prior.name) if one.share == share.share]
        other.add_row(_share(share), *(f"{format_s(o.wait_s.middle)} / {format_s(o.completion_s.middle)}" for o in row))
    texts = [f"{prior.name.upper()}: {prior.text}." for prior in PRIORS]
    return [
        head,
        other,
        *texts,
        "",
        "Assumptions, and what a history can't say:",
        *(f"- {t}" for t in assumptions(forecast)),
    ]


def format_s(seconds: float) -> str:
    """Return a time in the unit that suits it."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 2 * _HOUR else f"{seconds / _HOUR:.1f} h"


def format_range(one: Range) -> str:
    """Return `4.1 h (3.2-5.0)`, all three in the unit that suits the largest."""
    unit = format_s(one.high).split()[1]
    by = {"s": 1.0, "min": 60.0, "h": _HOUR}[unit]
    digits = 1 if unit == "h" else 0
    return f"{one.middle / by:.{digits}f} {unit} ({one.low / by:.{digits}f}-{one.high / by:.{digits}f})"


def _hours(one: Range) -> str:
    return f"{one.middle:,.0f} ({one.low:,.0f}-{one.high:,.0f})"


def _share(one: ShareForecast) -> str:
    return f"{100 * one.share:.0f} %"
