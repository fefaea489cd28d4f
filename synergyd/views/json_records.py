"""The output of `synergyctl status`, `explain` and `usage` with --json and of the webhook, field by field, and the reference page."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from dataclasses import dataclass, field, fields, is_dataclass
from enum import Enum
from typing import Any, get_args, get_origin, get_type_hints

from synergy_core.achieved import Achieved
from synergy_core.expected import ExpectedJob
from synergy_core.job_end import JobEnd
from synergy_core.job_report import Report
from synergy_core.losses import Losses
from synergy_core.notice import Notice
from synergy_core.reasons import Reason
from synergy_core.records import Action, Cell, Decision
from synergy_core.shared_links import Sharing
from synergy_core.usage import Totals
from synergy_core.would_have import WouldHave, WouldHaveTotals

from synergyd.control.decision_log import JobStatus

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
    #: the same as data
    reasons: tuple[Reason, ...] = ()
    #: Synergy has drained it
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
    #: since when the REST service can't read its database, seconds since 1970: all else is of then; null while it can
    stale_since_s: float | None = None
    #: jobs with GPUs and without a #SYNERGY line that wait or run; null where it is not known
    plain_jobs: int | None = None
    #: GPUs that they hold
    plain_held_gpus: int | None = None
    #: by job id
    jobs: tuple[JobStatus, ...] = ()
    #: the worst first
    bad_nodes: tuple[BadNode, ...] = ()
    #: jobs without a `#SYNERGY` line that wait, in the order of the queue
    waiting: tuple[ExpectedJob, ...] = ()


@dataclass(frozen=True, kw_only=True)
class AlternativeJson:
    """A Cell that the job did not get."""

    #: what it would have been
    cell: Cell
    #: in words
    why_not: str
    #: the same as data
    reason: Reason


@dataclass(frozen=True, kw_only=True)
class DecisionJson:
    """One epoch's answer for one job."""

    #: Slurm's job id
    job_id: int
    #: what is to happen
    action: Action
    #: what the job should have; null while it waits, and where its script's own plan is used
    cell: Cell | None
    #: the nodes that it should have
    node_names: tuple[str, ...]
    #: one or more sentences for the user
    why: str
    #: goodput over that of the size asked for at sbatch; null if not known
    relative_goodput: float | None = None
    #: the best Cells that it did not get
    alternatives: tuple[AlternativeJson, ...] = ()
    #: the terms that the job adds to the objective, by name
    worth: tuple[tuple[str, float], ...] = ()
    #: finish-time fairness (Themis): above 1 where it fares worse than on an equal share of the cluster
    fairness: float | None = None
    #: null if it shares no link, or LinkAware is off
    sharing: Sharing | None = None
    #: `why` as data: a code and the values that its sentence names
    reasons: tuple[Reason, ...] = ()


def decision_json(decision: Decision) -> DecisionJson:
    """Return the decision as users read it, with its reasons as sentences and as data."""
    others = tuple(AlternativeJson(cell=a.cell, why_not=a.why_not, reason=a.reason) for a in decision.alternatives)
    same = {f.name: getattr(decision, f.name) for f in fields(decision) if f.name != "alternatives"}
    return DecisionJson(why=decision.why, alternatives=others, **same)


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
    decision: DecisionJson | None
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
    #: how it ended, by Slurm; null while it has not, or where Slurm has forgotten it
    end: JobEnd | None = None
    #: what it makes of its GPUs; null before its first step time, and once it is gone
    achieved: Achieved | None = None
    #: when it will start and end, and why it waits where Synergy does not decide about it; null once it has ended
    expected: ExpectedJob | None = None
    #: what holds its steps up where the evidence decides, as data; the sentences are among `warnings`
    diagnoses: tuple[Reason, ...] = ()


@dataclass(frozen=True, kw_only=True)
class UsageJsonRow:
    """One user in one account."""

    #: Slurm account, "" where Slurm keeps none
    account: str
    #: login name
    user: str
    #: its GPU hours
    usage: Totals
    #: what they went into
    losses: Losses = field(default_factory=Losses)


@dataclass(frozen=True, kw_only=True)
class UsageDay:
    """The GPU hours of one day, by what they went into."""

    #: midnight at its begin, where the service runs, seconds since 1970
    from_s: float
    #: midnight at its end
    to_s: float
    #: what the hours went into
    losses: Losses


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
    #: what they went into
    losses: Losses = field(default_factory=Losses)
    #: the same by day, oldest first, where the request names a number of days
    days: tuple[UsageDay, ...] = ()


@dataclass(frozen=True, kw_only=True)
class WouldHaveJson:
    """`synergyctl usage --would-have --json`: what a dry run would have changed, job by job."""

    #: format of this object; it rises when a field goes or changes its meaning
    format: int = FORMAT
    #: when the first of these jobs was seen first, seconds since 1970
    from_s: float
    #: when the last of them was seen last
    to_s: float
    #: by job id
    jobs: tuple[WouldHave, ...] = ()
    #: of those with a #SYNERGY line
    with_line: WouldHaveTotals
    #: of those without, as if they had one
    plain: WouldHaveTotals
    #: of all together
    total: WouldHaveTotals


@dataclass(frozen=True, kw_only=True)
class Incarnation:
    """A run of a job with one size: each resize ends one and begins the next, as `sacct -D` lists them."""

    #: when it began, seconds since 1970
    start_s: float
    #: when it ended; null while it runs
    end_s: float | None
    #: names of its nodes
    nodes: tuple[str, ...]
    #: GPUs that it held, with those of allocations beside its own
    gpus: int
    #: RUNNING, RESIZING if it went on with other GPUs, or Slurm's state at its end: REQUEUED, COMPLETED, ...; "": not told yet
    state: str
    #: seconds that it ran
    run_s: float
    #: GPU hours that it held
    held_gpu_h: float
    #: seconds before it: since the job was submitted or requeued
    waited_s: float
    #: seconds in which it held its GPUs for a restart: before training began, for the checkpoint before its end, and in place
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
    #: what they went into
    losses: Losses = field(default_factory=Losses)


def json_reference() -> str:
    """Return the page in Markdown: a section for each record of the commands and of the webhook, with a table of its fields."""
    records: list[type] = [StatusJson, ExplainJson, UsageJson, JobUsageJson, WouldHaveJson, Notice]
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
    hints, docs = get_type_hints(record), field_docs(record)
    yield from (f"## {record.__name__}", "", inspect.cleandoc(record.__doc__ or ""), "")
    for f in fields(record):
        yield f"- `{f.name}` ({_format_type(hints[f.name])}): {docs.get(f.name, '')}"
    yield ""


def field_docs(record: type) -> dict[str, str]:
    """Return the text of each field: the `#:` lines above it, or the remark behind it."""
    docs, above = {}, []
    for line in inspect.getsource(record).splitlines():
        if match := re.match(r"\s+#: ?(.*)", line):
            above.append(match[1])
        elif match := re.match(r"    (\w+): [^#]*(?:# (.*))?", line):
            docs[match[1]] = " ".join(above) or match[2] or ""
            above = []
    return {name: text for name, text in docs.items() if text}


def _format_type(kind: Any) -> str:
    inner = get_args(kind)
    if type(None) in inner:
        return " or ".join(_format_type(k) for k in inner if k is not type(None)) + " or null"
    if get_origin(kind) is dict:
        return "object"
    if inner and inner[-1] is Ellipsis:
        return f"list of {_format_type(inner[0])}"
    if inner:
        return f"[{', '.join(map(_format_type, inner))}]"
    if is_dataclass(kind) and isinstance(kind, type):
        return f"[{kind.__name__}](#{kind.__name__.lower()})"
    if issubclass(kind, Enum):
        return ", ".join(f"`{member.value}`" for member in kind)
    return {int: "integer", float: "number", str: "string", bool: "boolean"}[kind]
