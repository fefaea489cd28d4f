"""Times that are not certain, as commands print them: in the local time of the one who asks."""

from __future__ import annotations

import time

from synergy_core.expected import Expected, ExpectedJob

_DAY_S = 86400.0


def format_clock(at_s: float, now_s: float) -> str:
    """Return `14:20`, or with the day where it is not within the next hours: `Fri 14:20`, `12 Dec`."""
    ahead_s = at_s - now_s
    form = "%H:%M" if ahead_s < 0.75 * _DAY_S else "%a %H:%M" if ahead_s < 6 * _DAY_S else "%d %b"
    return time.strftime(form, time.localtime(at_s))


def format_expected(expected: Expected | None, now_s: float) -> str:
    """Return `14:20-16:05`, the interval that holds in 8 of 10 cases, `now` if it has come, or `-`."""
    if expected is None:
        return "-"
    if expected.high_s - now_s < 60:
        return "now"
    low, high = format_clock(max(now_s, expected.low_s), now_s), format_clock(expected.high_s, now_s)
    return low if low == high else f"{low}-{high}"


def expected_lines(job: ExpectedJob, now_s: float) -> list[str]:
    """Return the lines of `explain` about a job's start and end."""
    lines = [job.why] if job.why else []
    for what, expected in (("starts", job.start), ("ends", job.end)):
        if expected is not None:
            about = format_clock(expected.middle_s, now_s)
            lines.append(f"{what:<9} {format_expected(expected, now_s)} in 8 of 10 cases, about {about}")
    if job.state == "PENDING" and job.start is None:
        lines.append("starts    nobody can tell")
    return lines
