"""Months by this machine's clock: the spans of which GPU hours are shown."""

from __future__ import annotations

from datetime import datetime, timedelta


def month_span(year: int, month: int) -> tuple[float, float]:
    """Return begin and end of a month, seconds since 1970."""
    following = (year + 1, 1) if month == 12 else (year, month + 1)
    return datetime(year, month, 1).timestamp(), datetime(*following, 1).timestamp()


def present_month() -> tuple[float, float]:
    """Return begin and end of the present month: the span that the command and the page show if no other is named."""
    now = datetime.now()
    return month_span(now.year, now.month)


def last_midnights(days: int) -> tuple[float, ...]:
    """Return the local midnights of the last `days` days, oldest first: `days` + 1 of them, the last at the end of today."""
    today = datetime.now().date()
    dates = (today + timedelta(days=n) for n in range(1 - days, 2))
    return tuple(datetime(d.year, d.month, d.day).timestamp() for d in dates)
