"""GPU hours of users and accounts over a span of time, and of one job's incarnations, as `synergyctl usage` shows them."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import groupby, pairwise, zip_longest
from operator import attrgetter, itemgetter

from synergy_core.errors import UsageError
from synergy_core.losses import LossSum, losses
from synergy_core.usage import RESIZING, Usage, UsageSum, clip_usage, totals, whole_jobs, without_overlaps
from synergy_core.wire.hostlist import expand

from synergyd.store.store import Store
from synergyd.views.json_records import Incarnation, JobUsageJson, UsageDay, UsageJson, UsageJsonRow

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
    midnights: Sequence[float] = (),
) -> UsageJson:
    """Return the GPU hours of a span, of `user` and `account` if they are named, restricted to what `visible` lets through.

    `midnights`: the days between each two of them are counted by themselves, too.
    """
    whole, of_owner = UsageSum(), defaultdict[tuple[str, str], UsageSum](UsageSum)
    ledger, of_owners_ledger = LossSum(), defaultdict[tuple[str, str], LossSum](LossSum)
    days = [(begin_s, end_s, LossSum()) for begin_s, end_s in pairwise(midnights)]
    for part in store.usage_between(from_s, to_s, user, account):
        if visible(part) and (cut := clip_usage(part, from_s, to_s)) is not None:
            owner = cut.account, cut.user
            for added in (whole, of_owner[owner], ledger, of_owners_ledger[owner]):
                added.add(cut)
            # parts are cut at the daemon's midnights, which may not be this machine's
            for begin_s, end_s, of_day in days[max(0, bisect_right(midnights, cut.from_s) - 1) :]:
                if begin_s >= cut.to_s:
                    break
                if (within := clip_usage(cut, begin_s, end_s)) is not None:
                    of_day.add(within)
    rows = tuple(
        UsageJsonRow(account=a, user=u, usage=total.totals(), losses=of_owners_ledger[a, u].losses())
        for (a, u), total in sorted(of_owner.items(), key=itemgetter(0))
    )
    return UsageJson(
        from_s=from_s,
        to_s=to_s,
        rows=rows,
        total=whole.totals(),
        losses=ledger.losses(),
        days=tuple(UsageDay(from_s=a, to_s=b, losses=of_day.losses()) for a, b, of_day in days),
    )


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
        losses=losses(whole),
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
