"""GPU hours over HTTP, restricted to what the caller may know of, as Slurm's PrivateData says."""

from __future__ import annotations

import math

from starlette.requests import Request
from synergy_core.errors import UsageError, one_line

from synergyd.rest.caller import Owner, SlurmRights, commands, commands_all
from synergyd.store.months import last_midnights, present_month
from synergyd.store.store import Store
from synergyd.views.json_records import JobUsageJson, UsageJson, WouldHaveJson
from synergyd.views.usage import LONGEST_S, Visible, collect, collect_job
from synergyd.views.would_have import collect as collect_would_have

_NAME_BYTES = 256
MOST_DAYS = 31


def usage(store: Store, request: Request, days: int, user: str, rights: SlurmRights) -> UsageJson:
    """Return the GPU hours of the last `days` days, or if that is 0 of the span that `request` names, else of this month.

    Talks to the database. Raises UsageError for a wrong query.
    """
    midnights = last_midnights(days) if days else ()
    from_s, to_s = (midnights[0], midnights[-1]) if midnights else _span(request)
    names = _name(request, "user"), _name(request, "account")
    return collect(store, from_s, to_s, *names, _visible(user, rights), midnights)


def named_days(request: Request) -> int:
    """Return the number of days that a request for hours names, up to today; 0: none. Raise UsageError for a wrong one."""
    text = request.query_params.get("days")
    if text is None:
        return 0
    if not (text.isascii() and text.isdecimal() and len(text) <= 2 and 1 <= int(text) <= MOST_DAYS):
        raise UsageError("days", f"{one_line(text, 40)!r} is no number from 1 to {MOST_DAYS}", "write digits alone")
    return int(text)


def would_have(store: Store, request: Request, user: str, rights: SlurmRights) -> WouldHaveJson:
    """Return what a dry run would have changed within the span that `request` names, as `usage` does. Talks to the database."""
    from_s, to_s = _span(request)
    hides = _hides(rights)

    def visible(name: str, account: str) -> bool:
        return not hides or commands(user, Owner(user=name, account=account), rights)

    return collect_would_have(store, from_s, to_s, _name(request, "user"), _name(request, "account"), visible)


def _span(request: Request) -> tuple[float, float]:
    has_span = any(name in request.query_params for name in ("from", "to"))
    from_s, to_s = (_time(request, "from"), _time(request, "to")) if has_span else present_month()
    if not 0 < to_s - from_s <= LONGEST_S:
        raise UsageError("to", "is not later than from, or by more than ten years", "name the begin and end of a month")
    return from_s, to_s


def job_usage(store: Store, job_id: int, user: str, rights: SlurmRights) -> JobUsageJson:
    """Return a job's incarnations. Raise UsageError, alike for one that is hidden and one that never was. Talks to the database."""
    return collect_job(store, job_id, _visible(user, rights))


def sees_all_usage(user: str, rights: SlurmRights) -> bool:
    """Return whether nobody's hours are hidden from the user."""
    return not _hides(rights) or commands_all(user, rights)


def _hides(rights: SlurmRights) -> bool:
    return rights.private_jobs or rights.private_usage


def _visible(user: str, rights: SlurmRights) -> Visible:
    hides = _hides(rights)
    return lambda part: not hides or commands(user, Owner(user=part.user, account=part.account), rights)


def _time(request: Request, name: str) -> float:
    text = request.query_params.get(name, "")
    if not (text.isascii() and text.isdecimal() and len(text) <= 12):
        raise UsageError(name, f"{one_line(text, 40)!r} is no time", "write seconds since 1970, digits alone")
    return math.floor(float(text))


def _name(request: Request, name: str) -> str:
    text = request.query_params.get(name, "")
    if len(text.encode(errors="replace")) > _NAME_BYTES or not text.isprintable():
        raise UsageError(name, f"{one_line(text, 40)!r} is no name", f"at most {_NAME_BYTES} printable bytes")
    return text
