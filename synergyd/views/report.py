"""GPU hours of users and accounts over a span of time, as `synergyctl report` shows them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from operator import itemgetter

from synergyd.store.store import Store
from synergyd.usage import Sum, Usage, within
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
    whole, of_owner = Sum(), defaultdict[tuple[str, str], Sum](Sum)
    for part in store.usage_between(from_s, to_s, user, account):
        if visible(part) and (cut := within(part, from_s, to_s)) is not None:
            whole.add(cut)
            of_owner[cut.account, cut.user].add(cut)
    rows = tuple(
        ReportRow(account=a, user=u, usage=found.totals())
        for (a, u), found in sorted(of_owner.items(), key=itemgetter(0))
    )
    return ReportJson(from_s=from_s, to_s=to_s, rows=rows, total=whole.totals())
