"""GPU hours over HTTP, restricted to what the caller may know of, as Slurm's PrivateData says."""

from __future__ import annotations

from starlette.requests import Request
from synergy_core.errors import UsageError

from synergyd.rest import parameters
from synergyd.rest.caller import Owner, SlurmRights, commands, commands_all
from synergyd.store.months import last_midnights, present_month
from synergyd.store.store import Store
from synergyd.views.json_records import JobUsageJson, UsageJson, WouldHaveJson
from synergyd.views.usage import LONGEST_S, Visible, collect, collect_job
from synergyd.views.would_have import collect as collect_would_have


def usage(store: Store, request: Request, days: int, user: str, rights: SlurmRights) -> UsageJson:
    """Return the GPU hours of the last `days` days, or if that is 0 of the span that `request` names, else of this month.

    Talks to the database. Raises UsageError for a wrong query.
    """
    midnights = last_midnights(days) if days else ()
    from_s, to_s = (midnights[0], midnights[-1]) if midnights else _span(request)
    names = parameters.person(request, "user"), parameters.person(request, "account")
    return collect(store, from_s, to_s, *names, _visible(user, rights), midnights)


def would_have(store: Store, request: Request, user: str, rights: SlurmRights) -> WouldHaveJson:
    """Return what a dry run would have changed within the span that `request` names, as `usage` does. Talks to the database."""
    from_s, to_s = _span(request)
    hides = _hides(rights)

    def visible(name: str, account: str) -> bool:
        return not hides or commands(user, Owner(user=name, account=account), rights)

    return collect_would_have(
        store, from_s, to_s, parameters.person(request, "user"), parameters.person(request, "account"), visible
    )


def _span(request: Request) -> tuple[float, float]:
    has_span = any(name in request.query_params for name in ("from", "to"))
    from_s, to_s = (
        (parameters.time_s(request, "from"), parameters.time_s(request, "to")) if has_span else present_month()
    )
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
