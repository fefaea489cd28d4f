"""The output of `synergyctl status`, `explain` and `usage` with --json and of the webhook, field by field, and the reference page."""

from __future__ import annotations

import inspect
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, fields, is_dataclass
from enum import Enum
from typing import Any, get_args, get_origin, get_type_hints

from synergy_core.accepts import Accepts
from synergy_core.achieved import Achieved
from synergy_core.expected import ExpectedJob
from synergy_core.job_end import JobEnd
from synergy_core.job_report import EarlyFailure, InPlace, Report
from synergy_core.losses import Losses
from synergy_core.notice import Notice
from synergy_core.reasons import Reason
from synergy_core.records import Action, Cell, Decision, ModelSpec
from synergy_core.shared_links import Sharing
from synergy_core.usage import Totals
from synergy_core.would_have import WouldHave, WouldHaveTotals

from synergyd.control.decision_log import JobStatus

FORMAT = 1  # rises when a field goes or changes its meaning; new fields do not raise it
#: the parts of a report that only the launcher and the daemon need; the page lists their fields without texts
_INNER = (Accepts, EarlyFailure, InPlace, ModelSpec)
_SINCE_1970 = ", seconds since 1970"


@dataclass(frozen=True, kw_only=True)
class BadNode:
    """A node where jobs failed or were slow lately."""

    #: its name in Slurm
    name: str
    #: 0 to 1, fading; the higher, the later jobs get the node
    penalty: float
    #: in words
    why: str
    #: `why` as data
    reasons: tuple[Reason, ...] = ()
    #: Synergy has drained it
    drained: bool


@dataclass(frozen=True, kw_only=True)
class StatusJson:
    """`synergyctl status --json`: the jobs of the last epoch, or the named one."""

    #: version of this format; it rises when a field is removed or changes its meaning
    format: int = FORMAT
    #: start of the last epoch, seconds since 1970; null before the first one
    epoch_s: float | None
    #: the daemon only shows what it would do
    dry_run: bool
    #: time since which the REST service can't read its database, and of all other values, seconds since 1970; null while it can
    stale_since_s: float | None = None
    #: plain jobs with GPUs that wait or run
    plain_jobs: int | None = None
    #: GPUs that they hold
    plain_held_gpus: int | None = None
    #: by job id
    jobs: tuple[JobStatus, ...] = ()
    #: the worst first
    bad_nodes: tuple[BadNode, ...] = ()
    #: plain jobs that wait, in queue order
    waiting: tuple[ExpectedJob, ...] = ()


@dataclass(frozen=True, kw_only=True)
class AlternativeJson:
    """A Cell that the job did not get."""

    #: the Cell
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
    #: the job's new Cell; null while it waits, and with its script's own plan
    cell: Cell | None
    #: the job's new nodes
    node_names: tuple[str, ...]
    #: the reasons, as sentences
    why: str
    #: predicted goodput relative to the requested size
    relative_goodput: float | None = None
    #: the best Cells that it did not get
    alternatives: tuple[AlternativeJson, ...] = ()
    #: the job's terms of the objective, by name
    worth: tuple[tuple[str, float], ...] = ()
    #: finish-time fairness (Themis): above 1 if slower than on an equal share of the cluster
    fairness: float | None = None
    #: null if it shares no link, or LinkAware is off
    sharing: Sharing | None = None
    #: `why` as data
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
    #: kind of the event that led to it
    event: str
    #: what happened, in words
    detail: str


@dataclass(frozen=True, kw_only=True)
class ExplainJson:
    """`synergyctl explain JOB --json`: all that is stored of one job."""

    #: version of this format; it rises when a field is removed or changes its meaning
    format: int = FORMAT
    #: Slurm's job id
    job_id: int
    #: start of the decision's epoch, seconds since 1970
    decided_s: float | None
    #: the daemon only shows what it would do; null without a decision
    dry_run: bool | None
    #: the newest decision that differs from its predecessor
    decision: DecisionJson | None
    #: the decided size, plan and predictions in words
    lines: tuple[str, ...]
    #: the links shared with other jobs, in words
    links: tuple[str, ...]
    #: the best sizes that it did not get, and why, in words
    alternatives: tuple[str, ...]
    #: state of its resize; null once the job is gone
    lifecycle: str | None
    #: the newest report of its agent
    report: Report | None
    #: what the job says of itself ("" for nothing)
    note: str
    #: problems for its owner: stalled, slow nodes, no reports
    warnings: tuple[str, ...]
    #: `synergyctl pause` holds: Synergy leaves the job as it is
    paused: bool
    #: oldest first
    story: tuple[StoryLine, ...]
    #: how it ended, by Slurm; null before its end, or if Slurm has forgotten it
    end: JobEnd | None = None
    #: its speed; null before its first step time and after its end
    achieved: Achieved | None = None
    #: when it will start and end, and why Slurm lets it wait; null after its end
    expected: ExpectedJob | None = None
    #: causes of slow steps, where the evidence suffices, and a recent loss spike; `warnings` has the sentences
    diagnoses: tuple[Reason, ...] = ()
    #: which kernels of its run were detected, and which its prediction assumes, in words; "" where neither is known
    kernels: str = ""


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
    """`synergyctl usage --json`: GPU hours of a period, by account and user."""

    #: version of this format; it rises when a field is removed or changes its meaning
    format: int = FORMAT
    #: begin of the period, seconds since 1970
    from_s: float
    #: its end, exclusive
    to_s: float
    #: by account, then user
    rows: tuple[UsageJsonRow, ...] = ()
    #: all rows
    total: Totals
    #: what they went into
    losses: Losses = field(default_factory=Losses)
    #: the same by day, oldest first, where the request names a number of days
    days: tuple[UsageDay, ...] = ()


@dataclass(frozen=True, kw_only=True)
class WouldHaveJson:
    """`synergyctl usage --would-have --json`: what a dry run would have changed, job by job."""

    #: version of this format; it rises when a field is removed or changes its meaning
    format: int = FORMAT
    #: when the first of these jobs was first seen, seconds since 1970
    from_s: float
    #: when the last of them was last seen
    to_s: float
    #: by job id
    jobs: tuple[WouldHave, ...] = ()
    #: jobs with a #SYNERGY line
    with_line: WouldHaveTotals
    #: plain jobs, as if they had one
    plain: WouldHaveTotals
    #: all jobs
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
    #: GPUs held, including second allocations
    gpus: int
    #: RUNNING, RESIZING (it went on with other GPUs), or Slurm's state at its end: REQUEUED, COMPLETED, ...; "": not known yet
    state: str
    #: running time
    run_s: float
    #: GPU hours held
    held_gpu_h: float
    #: waiting time before it, since the submission or requeue
    waited_s: float
    #: time with GPUs spent on restarts: before training began, for the checkpoint before its end, and in place
    restart_s: float
    #: training time with a known goodput
    trained_s: float
    #: goodput relative to the previous run, as predicted when Synergy decided the change; null also for other changes
    predicted: float | None
    #: the same, from the reports before and after it
    measured: float | None


@dataclass(frozen=True, kw_only=True)
class JobUsageJson:
    """`synergyctl usage JOB --json`: all incarnations of one job."""

    #: version of this format; it rises when a field is removed or changes its meaning
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
    #: total running time
    run_s: float
    #: total waiting time before its runs
    waited_s: float
    #: incarnations after the first
    restarts: int
    #: time without training for restarts: in the runs, and without GPUs in restarts that Synergy chose
    restart_s: float
    #: its GPU hours, and the gain
    total: Totals
    #: what they went into
    losses: Losses = field(default_factory=Losses)


def json_reference() -> str:
    """Return the page in Markdown: the fields that several records share, then a section for each record with its own fields."""
    records: list[type] = [StatusJson, ExplainJson, UsageJson, JobUsageJson, WouldHaveJson, Notice]
    for record in records:  # grows while it is walked
        hints = get_type_hints(record)
        for kind in (kind for f in fields(record) for kind in _records_in(hints[f.name])):
            if kind not in records:
                records.append(kind)
    items = {record: _items(record) for record in records}
    counts = Counter(item for own in items.values() for item in own)
    common = {item for item, count in counts.items() if count > 1}
    points = sorted(
        {f"`{name}`" for record in records for name, text in field_docs(record).items() if _SINCE_1970 in text}
    )
    head = (
        "A field without a type is a string. `?` behind a type: the value may be null, if it is not known or for the reason that the text "
        "gives. `[]`: a list. `/v1/openapi.json` of the [REST service](../admin/rest.md) describes the fields that are "
        "listed by type. Names in `_bytes` are sizes in bytes, in `_gpu_h` GPU hours. "
        f"{', '.join(points)} are points in time, in seconds since 1970; the other names in `_s` are durations in seconds."
    )
    shared = [f"- `{name}`{rest}" for name, rest in sorted(common)]
    parts = [head, "", "## Common", "", "The fields with the same meaning in several records:", "", *shared, ""]
    return "\n".join([*parts, *(line for record in records for line in _section(record, items[record], common))])


def _records_in(kind: Any) -> Iterator[type]:
    if is_dataclass(kind) and isinstance(kind, type):
        yield kind
    for inner in get_args(kind):
        yield from _records_in(inner)


def _items(record: type) -> tuple[tuple[str, str], ...]:
    """Return each field's name, and its type and text as the page has them."""
    hints, docs = get_type_hints(record), field_docs(record)
    types = {f.name: "" if hints[f.name] is str else f" ({_format_type(hints[f.name])})" for f in fields(record)}
    return tuple((name, f"{kind}: {docs.get(name, '').replace(_SINCE_1970, '')}") for name, kind in types.items())


def _section(record: type, items: tuple[tuple[str, str], ...], common: set[tuple[str, str]]) -> Iterator[str]:
    yield from (f"## {record.__name__}", "", inspect.cleandoc(record.__doc__ or ""), "")
    if record in _INNER:
        kinds: dict[str, list[str]] = {}
        for name, rest in items:
            kinds.setdefault(rest.partition(":")[0].removeprefix(" (").removesuffix(")") or "string", []).append(
                f"`{name}`"
            )
        yield from (f"- {kind}: {', '.join(names)}" for kind, names in kinds.items())
        yield ""
        return
    if names := [f"`{item[0]}`" for item in items if item in common]:
        yield f"- [common](#common): {', '.join(names)}"
    yield from (f"- `{name}`{rest}" for name, rest in items if (name, rest) not in common)
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
        return " or ".join(_format_type(k) for k in inner if k is not type(None)) + "?"
    if get_origin(kind) is dict:
        return "object"
    if inner and inner[-1] is Ellipsis:
        return f"{_format_type(inner[0])}[]"
    if inner:
        return f"[{', '.join(map(_format_type, inner))}]"
    if is_dataclass(kind) and isinstance(kind, type):
        return f"[{kind.__name__}](#{kind.__name__.lower()})"
    if issubclass(kind, Enum):
        return ", ".join(f"`{member.value}`" for member in kind)
    return {int: "integer", float: "number", str: "string", bool: "boolean"}[kind]
