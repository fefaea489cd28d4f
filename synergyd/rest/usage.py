"""GPU hours over HTTP, restricted to what the caller may know of, as Slurm's PrivateData says."""

from __future__ import annotations

import math

from starlette.requests import Request
from synergy_core.errors import UsageError, one_line

from synergyd.rest.caller import Owner, SlurmRights, commands, commands_all
from synergyd.store.store import Store
from synergyd.views.json_records import JobUsageJson, UsageJson
from synergyd.views.usage import LONGEST_S, Visible, collect, collect_job, present_month

_NAME_BYTES = 256


def usage(store: Store, request: Request, user: str, rights: SlurmRights) -> UsageJson:
    """Return the GPU hours of the span that `request` names, else of this month. Raise UsageError for a wrong query.

    Talks to the database.
    """
    has_span = any(name in request.query_params for name in ("from", "to"))
    from_s, to_s = (_time(request, "from"), _time(request, "to")) if has_span else present_month()
    if not 0 < to_s - from_s <= LONGEST_S:
        raise UsageError("to", "is not later than from, or by more than ten years", "name the begin and end of a month")
    return collect(store, from_s, to_s, _name(request, "user"), _name(request, "account"), _visible(user, rights))


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
