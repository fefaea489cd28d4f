"""The time of day was set: waits go on as if it had not been. Pure.

All times that are kept are times of day, so that people and a next daemon can read them. A clock that is set by an hour would end
each wait at once, or prolong it by an hour; so the kept times are moved with it, the one from which a job's age counts too. Start
times stay as Slurm has them.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from synergyd.control.resize.hangs import SHUN_S
from synergyd.control.resize.launch_failure import AVOID_S, LIFTS
from synergyd.control.resize.lifecycle import JobLifecycle, ResizeState, ResizeTimes, longest_retry_s
from synergyd.control.tracked import Output, Remember, TrackedJob

TIMES = ("submit_s", "since_s", "sent_s", "asked_s", "retry_after_s", "ended_s")  # fields of a lifecycle; 0: not set


def set_clock(tracked: TrackedJob, by_s: float) -> list[Output]:
    """Move what is kept of the job by `by_s` seconds."""
    before = tracked.lifecycle
    tracked.lifecycle = with_clock_set(before, by_s)
    tracked.heard_s = _shift(tracked.heard_s, by_s)
    tracked.suspended_s = _shift(tracked.suspended_s, by_s)
    tracked.lost_since_s = {name: at_s + by_s for name, at_s in tracked.lost_since_s.items()}
    if tracked.idle is not None:
        tracked.idle = (*tracked.idle[:2], tracked.idle[2] + by_s)
    if tracked.short_since_s is not None:
        tracked.short_since_s += by_s
    if tracked.claim is not None:
        tracked.claim = replace(tracked.claim, heard_s=tracked.claim.heard_s + by_s)
    return [] if tracked.lifecycle == before else [Remember(tracked.lifecycle, before.state, "ClockSet")]


def with_clock_set(life: JobLifecycle, by_s: float) -> JobLifecycle:
    """Return `life` as it would be, had the clock always been as it is now."""
    failures = replace(life.failures, until_s=_shift(life.failures.until_s, by_s))
    times: dict[str, Any] = {name: _shift(getattr(life, name), by_s) for name in TIMES}
    hangs = replace(life.hangs, until_s=_shift(life.hangs.until_s, by_s))
    refusals = tuple(replace(r, at_s=_shift(r.at_s, by_s)) for r in life.refusals)
    histories: dict[str, Any] = {
        "moves": life.moves.with_clock_set(by_s),
        "restart_history": life.restart_history.with_clock_set(by_s),
    }
    return replace(life, failures=failures, refusals=refusals, hangs=hangs, **histories, **times)


def read_back(life: JobLifecycle, now_s: float, times: ResizeTimes) -> JobLifecycle:
    """Return a life that was read from a store.

    Its times may lie ahead if the clock was set back while no daemon ran: they then count from now. The wait for a
    restart in place counts from now too: it waits for a report, and no daemon took one. So does the time in which a
    checkpoint may be asked for: no daemon was there to ask. A requeue that was sent may have ended the job's processes, so
    it is made good whatever it takes.
    """
    requeued = life.state is ResizeState.REQUEUING and bool(life.sent_s)
    unasked = life.state is ResizeState.CHECKPOINTING and not life.asked_s
    waits = (life.state is ResizeState.RESTARTING or unasked) and now_s < math.inf
    failures = replace(life.failures, until_s=min(life.failures.until_s, now_s + AVOID_S * 2 ** (LIFTS - 1)))
    return replace(
        life,
        submit_s=min(life.submit_s, now_s),
        since_s=now_s if waits else min(life.since_s, now_s),
        asked_s=min(life.asked_s, now_s),
        must_leave=life.must_leave or requeued,
        ended_s=min(life.ended_s, now_s),
        retry_after_s=min(life.retry_after_s, now_s + longest_retry_s(life, times)),
        failures=failures,
        restart_history=life.restart_history.without_times_after(now_s),
        moves=life.moves.without_times_after(now_s),
        hangs=replace(life.hangs, until_s=min(life.hangs.until_s, now_s + SHUN_S)),
    )


def _shift(time_s: float, by_s: float) -> float:
    return time_s + by_s if time_s else time_s
