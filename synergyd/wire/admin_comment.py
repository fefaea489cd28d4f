"""The daemon's own part of AdminComment, behind ` | `: what the job asked for at sbatch, its plan, where to report.

    synergy:1 model=llama2-7b min_gpus=4 | asked=a100,2,8 cpus=16 plan=tp:4,pp:1,... report=ctl:7321 by=64030

So a daemon with an empty database still knows each job's own size, and a launcher needs no shared folder.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from synergyd.errors import UsageError
from synergyd.records import Plan, Shape
from synergyd.wire.plan_file import plan_from_text, plan_text

MARK = "synergy:1"
_UID = re.compile(r"[0-9]{1,10}\Z")
_WHOLE = re.compile(r"[0-9]{1,9}\Z")


@dataclass(frozen=True)
class AdminCommentStamp:
    """`directive`: the plugin's text without the mark. `asked`, `cpus_per_node`: the size of the sbatch line."""

    directive: str
    asked: Shape | None = None
    cpus_per_node: int | None = None
    plan: Plan | None = None
    report: str = ""
    own_tasks: int | None = None  # of the sbatch line, where they are more than one a node
    note: str = ""  # an operator's own AdminComment, percent-encoded by the plugin
    by: int | None = None  # the uid of the daemon at `report` and `links`
    links: str = ""  # where the link arbiter is asked


def write(stamp: AdminCommentStamp) -> str:
    """The AdminComment text."""
    words = []
    if stamp.asked is not None:
        words.append(f"asked={stamp.asked.gpu_type or '-'},{stamp.asked.nodes},{stamp.asked.gpus_per_node}")
    if stamp.cpus_per_node is not None:
        words.append(f"cpus={stamp.cpus_per_node}")
    if stamp.own_tasks is not None:
        words.append(f"tasks={stamp.own_tasks}")
    if stamp.plan is not None:
        words.append(f"plan={plan_text(stamp.plan)}")
    if stamp.note:
        words.append(f"note={stamp.note}")
    if stamp.report:
        words.append(f"report={stamp.report}")
    if (stamp.report or stamp.links) and stamp.by is not None:
        words.append(f"by={stamp.by}")
    if stamp.links:
        words.append(f"links={stamp.links}")
    text = f"{MARK} {stamp.directive}".rstrip()
    return f"{text} | {' '.join(words)}" if words else text


def read(text: str) -> AdminCommentStamp | None:
    """The stamp in an AdminComment; None where it is not Synergy's.

    Fields of the daemon's part that make no sense are dropped.
    """
    if text != MARK and not text.startswith(MARK + " "):
        return None
    directive, _, own = text[len(MARK) :].strip().partition(" | ")
    if directive.startswith("| "):
        directive, own = "", directive[2:]
    fields = dict(word.partition("=")[::2] for word in own.split())
    asked: Shape | None = None
    parts = fields.get("asked", "").split(",")
    if len(parts) == 3 and _WHOLE.match(parts[1]) and _WHOLE.match(parts[2]) and int(parts[1]) > 0:
        asked = Shape("" if parts[0] == "-" else parts[0], int(parts[1]), int(parts[2]))
    try:
        plan = plan_from_text(fields["plan"]) if fields.get("plan") else None
    except UsageError:
        plan = None
    cpus, tasks = _count(fields.get("cpus", "")), _count(fields.get("tasks", ""))
    by = int(fields["by"]) if _UID.match(fields.get("by", "")) else None
    report, note, links = (fields.get(name, "") for name in ("report", "note", "links"))
    return AdminCommentStamp(directive, asked, cpus, plan, report, tasks, note, by, links)


def _count(text: str) -> int | None:
    return int(text) if _WHOLE.match(text) and int(text) > 0 else None
