"""GPU hours of users and accounts over a span of time, and of one job's incarnations, as `synergyctl usage` shows them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime
from itertools import groupby, pairwise, zip_longest
from operator import attrgetter, itemgetter

from synergy_core.errors import UsageError
from synergy_core.usage import RESIZING, Usage, UsageSum, clip_usage, totals, whole_jobs, without_overlaps
from synergy_core.wire.hostlist import expand

from synergyd.store.store import Store
from synergyd.views.json_records import Incarnation, JobUsageJson, UsageJson, UsageJsonRow

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
    """Return the GPU hours of a span, of `user` and `account` if they are named, restricted to what `visible` lets through."""
    whole, of_owner = UsageSum(), defaultdict[tuple[str, str], UsageSum](UsageSum)
    for part in store.usage_between(from_s, to_s, user, account):
        if visible(part) and (cut := clip_usage(part, from_s, to_s)) is not None:
            whole.add(cut)
            of_owner[cut.account, cut.user].add(cut)
    rows = tuple(
        UsageJsonRow(account=a, user=u, usage=total.totals())
        for (a, u), total in sorted(of_owner.items(), key=itemgetter(0))
    )
    return UsageJson(from_s=from_s, to_s=to_s, rows=rows, total=whole.totals())


def collect_job(store: Store, job_id: int, visible: Visible = lambda _: True) -> JobUsageJson:
    """Return all stored incarnations of a job that `visible` lets through, by the GPUs that it had. Raise UsageError if there are none."""
    parts = [part for part in without_overlaps(store.usage_of([job_id])) if visible(part)]
    if any(part.is_open for part in parts) and (epoch := store.latest_epoch()) is not None:
        # running jobs are stored only now and then: they still held their GPUs at the last epoch
        parts = [replace(p, to_s=max(p.to_s, epoch.started_s)) if p.is_open else p for p in parts]
    others = [part.of_job for part in parts if part.job_id == job_id and part.of_job]
    whole = [p for p in whole_jobs(parts) if p.held_s > 0 or p.is_open]
    runs = [list(run) for _, run in groupby(whole, attrgetter("start_s", "gpus", "nodes"))]
    if others:
        raise UsageError(
            f"job {job_id}", f"has nodes of job {others[0]}", f"name that one: synergyctl usage {others[0]}"
        )
    if not runs:
        raise UsageError(
            f"job {job_id}", "has held no GPUs that are kept", "synergyctl status lists the jobs of the last epoch"
        )
    incarnations = tuple(_incarnation(run, after) for run, after in zip_longest(runs, runs[1:], fillvalue=()))
    own = [part for part in parts if not part.of_job]
    last = (own or whole)[-1]
    return JobUsageJson(
        job_id=job_id,
        user=last.user,
        account=last.account,
        asked_gpus=last.asked_gpus,
        incarnations=incarnations,
        run_s=sum(one.run_s for one in incarnations),
        waited_s=sum(one.waited_s for one in incarnations),
        restarts=sum(not _goes_on(before, after) for before, after in pairwise(own)),
        restart_s=sum(part.restart_s + part.stopped_s for part in whole),
        total=totals(whole),
    )


def _goes_on(before: Usage, after: Usage) -> bool:
    """Return whether a part is of the same incarnation as the one before it."""
    return before.state == RESIZING or before.start_s == after.start_s


def _incarnation(run: Sequence[Usage], after: Sequence[Usage]) -> Incarnation:
    """Return what the parts of one incarnation with the same GPUs are together, or of one that goes on with others in `after`.

    What is audited of several changes is that of the longest one.
    """
    last, whole = run[-1], totals(run)
    by_change: dict[float | None, list[Usage]] = {}
    for part in run:
        by_change.setdefault(part.changed_s, []).append(part)
    longest = max(by_change.values(), key=lambda parts: sum(part.held_s for part in parts))
    audit = totals(longest)
    resized = after and _goes_on(last, after[0])
    return Incarnation(
        start_s=run[0].from_s,
        end_s=None if last.is_open else last.to_s,
        nodes=_names(last.nodes),
        gpus=last.gpus,
        state="RUNNING" if last.is_open else RESIZING if resized else last.state,
        run_s=sum(part.held_s for part in run),
        held_gpu_h=whole.held_gpu_h,
        waited_s=sum(part.waited_s for part in run),
        restart_s=sum(part.restart_s for part in run),
        trained_s=sum(part.trained_s for part in run),
        predicted=longest[-1].predicted_ratio or None,
        measured=1.0 + audit.measured_h / audit.audited_h if audit.audited_h else None,
    )


def _names(text: str) -> tuple[str, ...]:
    try:
        return expand(text)
    except UsageError:
        return (text,)


def month_span(year: int, month: int) -> tuple[float, float]:
    """Return begin and end of a month, seconds since 1970."""
    following = (year + 1, 1) if month == 12 else (year, month + 1)
    return datetime(year, month, 1).timestamp(), datetime(*following, 1).timestamp()


def present_month() -> tuple[float, float]:
    """Return begin and end of the present month: the span that the command and the page show if no other is named."""
    now = datetime.now()
    return month_span(now.year, now.month)
