"""What `synergyctl status`, `explain` and `usage` print with --json and the webhook gets, field by field, and the reference page."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from typing import Any, get_args, get_type_hints

from synergyd.control.decision_log import JobStatus
from synergyd.job_report import Report
from synergyd.notice import Notice
from synergyd.records import Decision
from synergyd.usage import Totals

FORMAT = 1  # rises when a field goes or changes its meaning; new fields do not raise it


@dataclass(frozen=True, kw_only=True)
class BadNode:
    """A node where jobs have fared badly lately."""

    #: its name in Slurm
    name: str
    #: 0 to 1, fading: jobs get it last
    penalty: float
    #: in words
    why: str
    #: Synergy drained it, and nobody has taken it back
    drained: bool


@dataclass(frozen=True, kw_only=True)
class StatusJson:
    """`synergyctl status --json`: the jobs of the last epoch, or the one that was asked for."""

    #: format of this object; it rises when a field goes or changes its meaning
    format: int = FORMAT
    #: start of the last epoch, seconds since 1970; null before the first one
    epoch_s: float | None
    #: the daemon only shows what it would do
    dry_run: bool
    #: by job id
    jobs: tuple[JobStatus, ...] = ()
    #: the worst first
    bad_nodes: tuple[BadNode, ...] = ()


@dataclass(frozen=True, kw_only=True)
class StoryLine:
    """One step of a job's story."""

    #: when, seconds since 1970
    at_s: float
    #: state of its resize after the step
    state: str
    #: kind of the event that led there
    event: str
    #: what happened, in words
    detail: str


@dataclass(frozen=True, kw_only=True)
class ExplainJson:
    """`synergyctl explain JOB --json`: all that is stored of one job."""

    #: format of this object; it rises when a field goes or changes its meaning
    format: int = FORMAT
    #: Slurm's job id
    job_id: int
    #: start of the epoch of the decision, seconds since 1970; null where there is none
    decided_s: float | None
    #: the daemon only shows what it would do; null where there is no decision
    dry_run: bool | None
    #: the newest decision that differs from the one before
    decision: Decision | None
    #: the decided size, plan and predictions in words
    lines: tuple[str, ...]
    #: the links shared with other jobs, in words
    links: tuple[str, ...]
    #: the best sizes that it did not get, with why not, in words
    alternatives: tuple[str, ...]
    #: state of its resize; null once the job is gone
    lifecycle: str | None
    #: the newest report of its agent
    report: Report | None
    #: what the job says of itself ("" for nothing)
    note: str
    #: what its owner should look at: stalled, slow nodes, no reports
    warnings: tuple[str, ...]
    #: `synergyctl pause` holds: Synergy leaves the job as it is
    paused: bool
    #: oldest first
    story: tuple[StoryLine, ...]


@dataclass(frozen=True, kw_only=True)
class UsageJsonRow:
    """One user in one account."""

    #: Slurm account, "" where Slurm keeps none
    account: str
    #: login name
    user: str
    #: its GPU hours
    usage: Totals


@dataclass(frozen=True, kw_only=True)
class UsageJson:
    """`synergyctl usage --json`: GPU hours of a span of time, by account and user."""

    #: format of this object; it rises when a field goes or changes its meaning
    format: int = FORMAT
    #: begin of the span, seconds since 1970
    from_s: float
    #: its end, which is not part of it
    to_s: float
    #: by account, then user
    rows: tuple[UsageJsonRow, ...] = ()
    #: of all rows together
    total: Totals


@dataclass(frozen=True, kw_only=True)
class Incarnation:
    """One run of a job: each resize ends one and begins the next, as `sacct -D` lists them."""

    #: when it began, seconds since 1970
    start_s: float
    #: when it ended; null while it runs
    end_s: float | None
    #: names of its nodes
    nodes: tuple[str, ...]
    #: GPUs that it held
    gpus: int
    #: RUNNING, or Slurm's state at its end: REQUEUED, COMPLETED, ...; "" where Slurm's accounting has not told yet
    state: str
    #: seconds that it ran
    run_s: float
    #: GPU hours that it held
    held_gpu_h: float
    #: seconds before it: since the job was submitted or requeued
    waited_s: float
    #: seconds in which it held its GPUs for a restart: before training began, and for the checkpoint before its end
    restart_s: float
    #: seconds in which it trained with a goodput that is known
    trained_s: float
    #: goodput over that of the run before, as predicted when Synergy decided the change; null: no change of Synergy's, or not known
    predicted: float | None
    #: the same by reports before and after it; null: not known
    measured: float | None


@dataclass(frozen=True, kw_only=True)
class JobUsageJson:
    """`synergyctl usage JOB --json`: all incarnations of one job."""

    #: format of this object; it rises when a field goes or changes its meaning
    format: int = FORMAT
    #: Slurm's job id
    job_id: int
    #: its owner's login name
    user: str
    #: its Slurm account
    account: str
    #: GPUs of its sbatch line
    asked_gpus: int
    #: oldest first
    incarnations: tuple[Incarnation, ...]
    #: seconds that it ran, in all
    run_s: float
    #: seconds that it waited before its runs, in all
    waited_s: float
    #: incarnations after the first
    restarts: int
    #: seconds without training for restarts: those of the runs, and without GPUs in restarts that Synergy chose
    restart_s: float
    #: its GPU hours, and the gain
    total: Totals


def json_reference() -> str:
    """Markdown: a section for each record of the commands and of the webhook, with a table of its fields."""
    records: list[type] = [StatusJson, ExplainJson, UsageJson, JobUsageJson, Notice]
    for record in records:  # grows while it is walked
        hints = get_type_hints(record)
        records += [kind for f in fields(record) for kind in _records_in(hints[f.name]) if kind not in records]
    return "\n".join(line for record in records for line in _section(record))


def _records_in(kind: Any) -> Iterator[type]:
    if is_dataclass(kind) and isinstance(kind, type):
        yield kind
    for inner in get_args(kind):
        yield from _records_in(inner)


def _section(record: type) -> Iterator[str]:
    hints, told = get_type_hints(record), field_docs(record)
    yield from (f"## {record.__name__}", "", inspect.cleandoc(record.__doc__ or ""), "")
    yield from ("| field | type | meaning |", "|---|---|---|")
    for f in fields(record):
        yield f"| `{f.name}` | {_type_words(hints[f.name])} | {told.get(f.name, '')} |"
    yield ""


def field_docs(record: type) -> dict[str, str]:
    """By field: the `#:` lines above it, or the remark behind it."""
    found, above = {}, []
    for line in inspect.getsource(record).splitlines():
        if match := re.match(r"\s+#: ?(.*)", line):
            above.append(match[1])
        elif match := re.match(r"    (\w+): [^#]*(?:# (.*))?", line):
            found[match[1]] = " ".join(above) or match[2] or ""
            above = []
    return {name: text.replace("|", "\\|") for name, text in found.items() if text}


def _type_words(kind: Any) -> str:
    inner = get_args(kind)
    if type(None) in inner:
        return " or ".join(_type_words(k) for k in inner if k is not type(None)) + " or null"
    if inner and inner[-1] is Ellipsis:
        return f"list of {_type_words(inner[0])}"
    if inner:
        return f"[{', '.join(map(_type_words, inner))}]"
    if is_dataclass(kind) and isinstance(kind, type):
        return f"[{kind.__name__}](#{kind.__name__.lower()})"
    if issubclass(kind, Enum):
        return ", ".join(f"`{member.value}`" for member in kind)
    return {int: "whole number", float: "number", str: "text", bool: "true or false"}[kind]
