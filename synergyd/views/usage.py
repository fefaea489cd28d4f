"""GPU hours of users and accounts over a span of time, and of one job's incarnations, as `synergyctl usage` shows them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import groupby
from operator import attrgetter, itemgetter

from synergyd.errors import UsageError
from synergyd.store.store import Store
from synergyd.usage import Sum, Usage, totals, within, without_overlaps
from synergyd.views.json_records import Incarnation, JobUsageJson, UsageJson, UsageJsonRow
from synergyd.wire.hostlist import expand

#: the longest span of one answer
LONGEST_S = 3660 * 86400.0
Visible = Callable[[Usage], bool]


def collect(
    store: Store,
    from_s: float,
    to_s: float,
    user: str = "",
    account: str = "",
    visible: Visible = lambda _: True,
) -> UsageJson:
    """Return the GPU hours of a span, of a user and an account where they are named; of what `visible` lets through."""
    whole, of_owner = Sum(), defaultdict[tuple[str, str], Sum](Sum)
    for part in store.usage_between(from_s, to_s, user, account):
        if visible(part) and (cut := within(part, from_s, to_s)) is not None:
            whole.add(cut)
            of_owner[cut.account, cut.user].add(cut)
    rows = tuple(
        UsageJsonRow(account=a, user=u, usage=found.totals())
        for (a, u), found in sorted(of_owner.items(), key=itemgetter(0))
    )
    return UsageJson(from_s=from_s, to_s=to_s, rows=rows, total=whole.totals())


def collect_job(store: Store, job_id: int, visible: Visible = lambda _: True) -> JobUsageJson:
    """Return all incarnations of a job that are kept, of what `visible` lets through. Raise UsageError where there are none."""
    parts = [part for part in without_overlaps(store.usage_of([job_id])) if visible(part)]
    if any(part.is_open for part in parts) and (epoch := store.latest_epoch()) is not None:
        # what runs is stored now and then only: it held its GPUs still at the last epoch
        parts = [replace(p, to_s=max(p.to_s, epoch.started_s)) if p.is_open else p for p in parts]
    runs = [list(run) for _, run in groupby(parts, attrgetter("start_s"))]
    found = tuple(_incarnation(run) for run in runs if any(p.held_s > 0 or p.is_open for p in run))
    if not found:
        raise UsageError(
            f"job {job_id}", "has held no GPUs that are kept", "synergyctl status lists the jobs of the last epoch"
        )
    last = parts[-1]
    return JobUsageJson(
        job_id=job_id,
        user=last.user,
        account=last.account,
        asked_gpus=last.asked_gpus,
        incarnations=found,
        run_s=sum(one.run_s for one in found),
        waited_s=sum(one.waited_s for one in found),
        restarts=len(found) - 1,
        restart_s=sum(part.restart_s + part.stopped_s for part in parts),
        total=totals(parts),
    )


def _incarnation(run: Sequence[Usage]) -> Incarnation:
    """Return what the parts of one incarnation, cut at midnights, are together."""
    last, whole = run[-1], totals(run)
    return Incarnation(
        start_s=last.start_s,
        end_s=None if last.is_open else last.to_s,
        nodes=_names(last.nodes),
        gpus=last.gpus,
        state="RUNNING" if last.is_open else last.state,
        run_s=sum(part.held_s for part in run),
        held_gpu_h=whole.held_gpu_h,
        waited_s=sum(part.waited_s for part in run),
        restart_s=sum(part.restart_s for part in run),
        trained_s=sum(part.trained_s for part in run),
        predicted=last.predicted_ratio or None,
        measured=1.0 + whole.measured_h / whole.audited_h if whole.audited_h else None,
    )


def _names(text: str) -> tuple[str, ...]:
    try:
        return expand(text)
    except UsageError:
        return (text,)
