"""Answers without the jobs that their reader may not know of: field by field, and sentences made anew from what is left."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from synergy_core.reasons import SEPARATOR, Reason, format_reasons, hide_jobs


def hide_invisible(value: Any, visible: Callable[[int], bool]) -> Any:
    """Return JSON-able `value` without jobs that are not `visible`, and without the links that are shared with others."""
    if isinstance(value, list):
        return [hide_invisible(each, visible) for each in value]
    if not isinstance(value, dict):
        return value
    visible_fields = {
        key: _empty(each) if key in ("sharing", "links") else hide_invisible(each, visible)
        for key, each in value.items()
    }
    if "reasons" in value and "why" in value:
        reasons = hide_jobs((Reason(r["code"], r["fields"]) for r in value["reasons"]), visible)
        visible_fields["reasons"] = [{"code": r.code, "fields": r.fields} for r in reasons]
        if reasons:  # an older daemon has stored none: nobody knows which jobs its text names
            between = SEPARATOR if "penalty" in value else " "
            visible_fields["why"] = between.join(format_reasons((reason,)) for reason in reasons)
        else:
            visible_fields["why"] = ""
    return visible_fields


def _empty(value: Any) -> Any:
    return [] if isinstance(value, list) else None
