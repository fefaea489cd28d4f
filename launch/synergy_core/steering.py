"""Changes by a job's owner since sbatch: bounds of its size and its weight, in place of the directive's."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace

from synergy_core.errors import UsageError, format_value, one_line
from synergy_core.records import Directive, Job, JobState

MOST_GPUS = 65_536  # as in a directive


@dataclass(frozen=True, kw_only=True)
class Steering:
    """The values that an owner has set. None: as the directive has it."""

    #: fewest GPUs that the job may run on
    min_gpus: int | None = None
    #: most GPUs that the job may run on
    max_gpus: int | None = None
    #: its weight among its owner's jobs
    weight: float | None = None


KEYS = tuple(f.name for f in fields(Steering))
_RIGHT = "min_gpus=, max_gpus= (1 to 65536) and weight= (above 0); nothing behind = gives back the directive's"


def parse_steering(where: str, assignments: Iterable[str], before: Steering) -> Steering:
    """Return `before` with `key=value` texts put over it. Raises UsageError. An empty value gives a key back to the directive."""
    values: dict[str, int | float | None] = {}
    for text in assignments:
        key, equals, value = text.partition("=")
        if not equals or key not in KEYS or key in values:
            raise UsageError(where, f"{one_line(text, 60)!r} can't be set", f"it takes {_RIGHT}, each once")
        try:
            values[key] = None if not value else float(value) if key == "weight" else int(value)
        except ValueError:
            raise UsageError(where, f"{key}={one_line(value, 40)} is no number", f"it takes {_RIGHT}") from None
    return with_changes(where, values, before)


def with_changes(where: str, values: Mapping[str, object], before: Steering) -> Steering:
    """Return `before` with `values` put over it, checked. Raises UsageError for unknown keys, wrong types and bounds."""
    for key, value in values.items():
        whole = isinstance(value, int) and not isinstance(value, bool)
        number = whole or isinstance(value, float)
        if key not in KEYS:
            raise UsageError(where, f"unknown key {one_line(str(key), 40)!r}", f"it takes {_RIGHT}")
        if value is not None and not (number if key == "weight" else whole):
            raise UsageError(where, f"{key} is {format_value(value)}", f"it takes {_RIGHT}")
    steering = replace(before, **values)  # type: ignore[arg-type]  # checked above
    for key in ("min_gpus", "max_gpus"):
        gpus = getattr(steering, key)
        if gpus is not None and not 1 <= gpus <= MOST_GPUS:
            raise UsageError(where, f"{key} is {format_value(gpus)}", f"it takes {_RIGHT}")
    if steering.weight is not None and not 0.001 <= steering.weight <= 1000:
        raise UsageError(where, f"weight is {format_value(steering.weight)}", "a weight lies from 0.001 to 1000")
    low, high = steering.min_gpus, steering.max_gpus
    if low is not None and high is not None and low > high:
        raise UsageError(where, f"min_gpus={low} is above max_gpus={high}", "let min_gpus be at most max_gpus")
    return steering


def steer_directive(directive: Directive, steering: Steering | None) -> Directive:
    """Return the directive with what was set over it. A bound that crosses the directive's other bound moves that one with it."""
    if steering is None:
        return directive
    low = directive.min_gpus if steering.min_gpus is None else steering.min_gpus
    high = directive.max_gpus if steering.max_gpus is None else steering.max_gpus
    if low is not None and high is not None and low > high:
        low, high = (low, low) if steering.max_gpus is None else (high, high)
    weight = directive.weight if steering.weight is None else steering.weight
    return replace(directive, min_gpus=low, max_gpus=high, weight=weight)


def steer_job(job: Job, steering: Steering) -> Job:
    """Return the job with what was set; a job that runs on more GPUs than it may have now gives them back."""
    if job.directive is None:
        return job
    directive = steer_directive(job.directive, steering)
    above = job.state is JobState.RUNNING and directive.max_gpus is not None and job.shape.gpus > directive.max_gpus
    why = f"max_gpus={directive.max_gpus} was set" if above else job.gives_back
    return replace(job, directive=directive, gives_back=why)


def format_steering(steering: Steering) -> str:
    """Return what holds now, for a job's story."""
    parts = [f"{key}={value:g}" for key in KEYS if (value := getattr(steering, key)) is not None]
    return " ".join(parts) or "as in its script"
