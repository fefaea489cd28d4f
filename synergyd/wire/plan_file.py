"""What the daemon hands to a job's launcher: the plan and where to report. As a JSON file, and as text in AdminComment."""

from __future__ import annotations

import dataclasses
import json
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote_to_bytes

from synergyd.errors import UsageError
from synergyd.records import Plan

FORMAT = 1
MAX_NUMBER = 100_000_000  # of a plan: far above any real one, and within what databases hold
PRECISIONS = ("bf16", "fp16", "fp32", "fp8")
_SHORT = {
    "tp": "tp", "pp": "pp", "dp": "dp", "mb": "micro_batch", "gb": "global_batch", "rc": "recompute",
    "sp": "sequence_parallel", "zs": "zero_stage", "vp": "vpp", "cp": "cp", "ep": "ep", "pr": "precision",
}  # fmt: skip
_RARE = frozenset(("vp", "cp", "ep", "pr"))  # said only where they are not the default
_FLAGS = {"0": False, "1": True}
_WHOLE = re.compile(r"[0-9]{1,9}\Z")
_UID = re.compile(r"[0-9]{1,10}\Z")
_ADDRESS = re.compile(r"[A-Za-z0-9_.\-\[\]:]+:\d{1,5}\Z")


@dataclass(frozen=True)
class PlanFile:
    """`plan` for the launcher, `report` = host:port of the daemon ("" = do not report), `checkpoint` the directive's folder,
    `links` = host:port of the link arbiter ("" = ask none).

    `by` is the daemon's uid, whose signed answers the launcher believes besides root's.
    """

    job_id: int
    plan: Plan | None = None
    report: str = ""
    checkpoint: str = ""
    by: int | None = None
    links: str = ""


def plan_path(state_dir: Path, job_id: int) -> Path:
    """Where the daemon writes the hand-over of a job."""
    return state_dir / "plans" / f"{int(job_id)}.json"


def write(handover: PlanFile, state_dir: Path) -> Path:
    """Writes the file atomically, readable by all (it holds no secret). Raises OSError."""
    path = plan_path(state_dir, handover.job_id)
    if not path.parent.is_dir():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.parent.chmod(0o755)  # mkdir's mode is cut by the umask of a daemon that systemd started
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    fresh.write_text(json.dumps({"format": FORMAT, **dataclasses.asdict(handover)}, sort_keys=True) + "\n")
    fresh.chmod(0o644)
    fresh.replace(path)
    return path


def read(path: Path, job_id: int) -> PlanFile:
    """Reads a hand-over file; raises UsageError when it is not one for this job."""
    try:
        data = json.loads(path.read_text())
    except (OSError, ValueError, RecursionError) as error:
        raise UsageError(str(path), f"can't be read as a plan ({error})") from None
    if not isinstance(data, dict) or data.get("format") != FORMAT or data.get("job_id") != job_id:
        raise UsageError(str(path), f"is no plan of format {FORMAT} for job {job_id}")
    plan = data.get("plan")
    report, checkpoint = str(data.get("report") or ""), str(data.get("checkpoint") or "")
    by, links = data.get("by"), str(data.get("links") or "")
    known = plan_from(plan, str(path)) if plan else None
    return PlanFile(job_id, known, report, checkpoint, by if type(by) is int else None, links)


def plan_from(data: Any, where: str) -> Plan:
    """A Plan from a mapping; raises UsageError naming the wrong field."""
    if not isinstance(data, dict):
        raise UsageError(where, "plan is no mapping", "expected tp, pp, dp, micro_batch, global_batch")
    values: dict[str, Any] = {}
    for field in dataclasses.fields(Plan):
        value = data.get(field.name, field.default)
        kind = type(field.default)
        least = 0 if field.name == "zero_stage" else 1
        if kind is int and (not isinstance(value, int) or isinstance(value, bool) or not least <= value <= MAX_NUMBER):
            what = f"plan's {field.name} is {shown(value)}"
            raise UsageError(where, what, f"expected a whole number from {least} to {MAX_NUMBER}")
        if not isinstance(value, kind):
            raise UsageError(where, f"plan's {field.name} is {shown(value)}", f"expected {kind.__name__}")
        values[field.name] = value
    plan = Plan(**values)
    if plan.recompute not in ("none", "selective", "full"):
        raise UsageError(where, f"plan's recompute is {shown(plan.recompute)}", "expected none, selective or full")
    if plan.precision not in PRECISIONS:
        raise UsageError(where, f"plan's precision is {shown(plan.precision)}", "expected bf16, fp16, fp32 or fp8")
    if plan.global_batch % (plan.dp * plan.micro_batch):
        what = f"global batch {plan.global_batch} is no multiple of dp {plan.dp} x micro-batch {plan.micro_batch}"
        raise UsageError(where, what)
    return plan


def shown(value: Any) -> str:
    """A wrong value for an error: its beginning, without walking through what a stranger nested."""
    return repr(value)[:40] if isinstance(value, str | int | float | None) else type(value).__name__


def plan_text(plan: Plan) -> str:
    """`tp:2,pp:1,dp:4,mb:1,gb:32,rc:none,sp:1,zs:1`, and what else is not as usual."""
    return ",".join(
        f"{s}:{int(v) if isinstance(v, bool) else v}"
        for s, f in _SHORT.items()
        for v in [getattr(plan, f)]
        if s not in _RARE or v != getattr(Plan(), f)
    )


def plan_from_text(text: str, where: str = "plan") -> Plan:
    """The inverse of `plan_text`; raises UsageError."""
    data: dict[str, Any] = {}
    for item in text.split(","):
        key, _, value = item.partition(":")
        name = _SHORT.get(key)
        if name is None:
            raise UsageError(where, f"unknown field {key!r}", f"expected {', '.join(_SHORT)}")
        if key == "sp":
            data[name] = _FLAGS.get(value, value)
        else:
            data[name] = int(value) if key not in ("rc", "pr") and _WHOLE.match(value) else value
    return plan_from(data, where)


def from_admin_comment(text: str, job_id: int) -> PlanFile | None:
    """The hand-over inside an AdminComment (`synergy:1 directive | plan=... report=...`), with the directive's checkpoint folder.

    None where there is none of the three. Raises UsageError.
    """
    if not text.startswith("synergy:1 "):
        return None
    directive, _, own = text.partition(" | ")
    fields = dict(word.partition("=")[::2] for word in own.split())
    said = dict(word.partition("=")[::2] for word in directive.split())
    # percent-encoded bytes, as the plugin and the daemon stamp them
    checkpoint = unquote_to_bytes(said.get("checkpoint", "")).decode("utf-8", "surrogateescape")
    if "plan" not in fields and "report" not in fields and not checkpoint:
        return None
    plan = plan_from_text(fields["plan"], f"AdminComment of job {job_id}") if fields.get("plan") else None
    report, links = (
        text if _ADDRESS.match(text) else "" for text in (fields.get("report", ""), fields.get("links", ""))
    )
    by = int(fields["by"]) if _UID.match(fields.get("by", "")) else None
    return PlanFile(job_id, plan, report, checkpoint, by, links)
