"""What a request to the REST service names in its path and query: each is checked before it is used."""

from __future__ import annotations

from starlette.requests import Request
from synergy_core.errors import UsageError, one_line

MAX_JOB_ID = 2**32 - 1
MAX_DAYS = 31
_MAX_TIME_S = 10**12 - 1
_MAX_NAME_BYTES = 256


def job_id(request: Request) -> int:
    """Return the job id in the request's path. Raise UsageError for a wrong one."""
    return _digits("job", str(request.path_params["job_id"]), 1, MAX_JOB_ID, "job id")


def number(request: Request, name: str, default: int | None, most: int) -> int | None:
    """Return the number from 0 to `most` that the query gives as `name`, or `default`. Raise UsageError for a wrong one."""
    text = request.query_params.get(name)
    return default if text is None else _digits(name, text, 0, most, f"number up to {most}")


def days(request: Request) -> int:
    """Return the number of days up to today that the query names, or 0. Raise UsageError for a wrong one."""
    text = request.query_params.get("days")
    return 0 if text is None else _digits("days", text, 1, MAX_DAYS, f"number from 1 to {MAX_DAYS}")


def time_s(request: Request, name: str) -> float:
    """Return the time, in seconds since 1970, that the query gives as `name`. Raise UsageError for none or a wrong one."""
    text = request.query_params.get(name, "")
    return float(_digits(name, text, 0, _MAX_TIME_S, "time", "write seconds since 1970, digits alone"))


def person(request: Request, name: str) -> str:
    """Return the user or account that the query gives as `name`, or "". Raise UsageError for a wrong one."""
    text = request.query_params.get(name, "")
    if len(text.encode(errors="replace")) > _MAX_NAME_BYTES or not text.isprintable():
        raise UsageError(name, f"{one_line(text, 40)!r} is no name", f"at most {_MAX_NAME_BYTES} printable bytes")
    return text


def _digits(where: str, text: str, least: int, most: int, what: str, right: str = "write digits alone") -> int:
    """Return the number that `text` writes in ASCII digits. Raise UsageError if it is no `what` from `least` to `most`."""
    if text.isascii() and text.isdecimal() and len(text) <= len(str(most)) and least <= int(text) <= most:
        return int(text)
    raise UsageError(where, f"{one_line(text, 40)!r} is no {what}", right)
