"""Lives between memory and store: JSON payloads, checked when they are read back."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from synergyd.control.instructions import Target
from synergyd.control.resize import JobLifecycle, ResizeState, validate
from synergyd.errors import UsageError
from synergyd.records import Shape
from synergyd.wire.plan_file import plan_from


def to_payload(life: JobLifecycle) -> dict[str, Any]:
    """A life as a JSON-able dict."""
    return dataclasses.asdict(life)


def from_payload(payload: Mapping[str, Any]) -> JobLifecycle:
    """The inverse; raises UsageError for a payload that makes no sense."""
    try:
        values = dict(payload)
        values["state"] = ResizeState(values["state"])
        for name in ("target", "origin"):
            values[name] = _target(values.get(name))
        plan = values.get("plan")
        values["plan"] = plan_from(plan, "lifecycle") if plan else None
        known = {f.name for f in dataclasses.fields(JobLifecycle)}
        life = JobLifecycle(**{k: v for k, v in values.items() if k in known})
        for field in dataclasses.fields(JobLifecycle):
            value = getattr(life, field.name)
            if field.type in ("int", "float") and (isinstance(value, bool) or not isinstance(value, int | float)):
                raise TypeError(f"{field.name} is {value!r:.40}")
        problem = validate(life)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise UsageError("lifecycle", f"can't be read back ({error})") from None
    if problem:
        raise UsageError(f"lifecycle of job {life.job_id}", problem)
    return life


def _target(data: Any) -> Target | None:
    if not data:
        return None
    plan = plan_from(data["plan"], "lifecycle") if data.get("plan") else None
    return Target(Shape(**data["shape"]), tuple(data.get("nodes") or ()), plan)
