"""GPU hours of users and accounts over a span of time, as `synergyctl report` shows them."""

from __future__ import annotations

from collections.abc import Callable

from synergyd.store.store import Store
from synergyd.usage import Usage, totals, within
from synergyd.views.json_records import ReportJson, ReportRow

#: the longest span of one report
LONGEST_S = 3660 * 86400.0


def collect(
    store: Store,
    from_s: float,
    to_s: float,
    user: str = "",
    account: str = "",
    visible: Callable[[Usage], bool] = lambda _: True,
) -> ReportJson:
    """The report of a span, of a user and an account where they are named; of what `visible` lets through."""
    touching = store.usage_between(from_s, to_s, user, account)
    parts = [cut for part in touching if visible(part) and (cut := within(part, from_s, to_s)) is not None]
    owners = sorted({(p.account, p.user) for p in parts})
    rows = tuple(
        ReportRow(account=a, user=u, usage=totals(p for p in parts if (p.account, p.user) == (a, u))) for a, u in owners
    )
    return ReportJson(from_s=from_s, to_s=to_s, rows=rows, total=totals(parts))
