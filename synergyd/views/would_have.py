"""The account of a dry run, as `synergyctl usage --would-have` shows it."""

from __future__ import annotations

from collections.abc import Callable

from synergy_core.would_have import WouldHave

from synergyd.control.would_have import would_have_totals
from synergyd.store.store import Store
from synergyd.views.json_records import WouldHaveJson


def collect(
    store: Store,
    from_s: float,
    to_s: float,
    user: str = "",
    account: str = "",
    visible: Callable[[str, str], bool] = lambda _user, _account: True,
) -> WouldHaveJson:
    """Return the jobs that a dry run saw within the span, of `user` and `account` if they are named, whole; as `visible` lets through."""

    def has(row: WouldHave) -> bool:
        return user in ("", row.user) and account in ("", row.account) and visible(row.user, row.account)

    rows = tuple(row for row in store.would_have(from_s) if row.from_s < to_s and has(row))
    return WouldHaveJson(
        from_s=min((row.from_s for row in rows), default=from_s),
        to_s=max((row.to_s for row in rows), default=to_s),
        jobs=rows,
        with_line=would_have_totals(row for row in rows if row.has_line),
        plain=would_have_totals(row for row in rows if not row.has_line),
        total=would_have_totals(rows),
    )
