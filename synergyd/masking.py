"""Other users' jobs in sentences: "job 4712" is "another job" to those who may not know of it."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

_NAMED = re.compile(r"\bjobs? (\d+(?:_\d+|\+\d+)?(?:(?:, | and )\d+(?:_\d+|\+\d+)?)*)")


def masked(value: Any, visible: Callable[[int], bool]) -> Any:
    """JSON-able `value` with the jobs in its texts masked that are not `visible`, and without the links that they share."""
    if isinstance(value, str):
        return _NAMED.sub(lambda match: _words(match, visible), value)
    if isinstance(value, list):
        return [masked(each, visible) for each in value]
    if isinstance(value, dict):
        return {
            key: _empty(each) if key in ("sharing", "links") else masked(each, visible) for key, each in value.items()
        }
    return value


def _words(match: re.Match[str], visible: Callable[[int], bool]) -> str:
    jobs = [int(each) for each in re.findall(r"(?<![_+\d])\d+", match[1])]
    return match[0] if all(map(visible, jobs)) else "another job" if len(jobs) == 1 else "other jobs"


def _empty(value: Any) -> Any:
    return [] if isinstance(value, list) else None
