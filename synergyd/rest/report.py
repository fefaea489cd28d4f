"""GPU hours over HTTP: of what the caller may know of, as Slurm's PrivateData says."""

from __future__ import annotations

import math

from starlette.requests import Request

from synergyd.errors import UsageError, one_line
from synergyd.rest.caller import Owner, SlurmRights, commands
from synergyd.store.store import Store
from synergyd.usage import Usage
from synergyd.views.json_records import ReportJson
from synergyd.views.report import LONGEST_S, collect

_NAME_BYTES = 256


def report(store: Store, request: Request, user: str, rights: SlurmRights) -> ReportJson:
    """Talks to the database. Raises UsageError for a wrong query."""
    from_s, to_s = _time(request, "from"), _time(request, "to")
    if not 0 < to_s - from_s <= LONGEST_S:
        raise UsageError("to", "is not later than from, or by more than ten years", "name the begin and end of a month")

    def visible(part: Usage) -> bool:
        hidden = rights.private_jobs or rights.private_usage
        return not hidden or commands(user, Owner(user=part.user, account=part.account), rights)

    return collect(store, from_s, to_s, _name(request, "user"), _name(request, "account"), visible)


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
