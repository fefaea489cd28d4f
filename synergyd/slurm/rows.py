"""Slurm's own view of jobs and nodes, as every backend returns it: one row each, types checked, no meaning added."""

from __future__ import annotations

import re
from dataclasses import dataclass

_WHOLE = re.compile(r"[0-9]{1,9}\Z")
NAME_BYTES, REASON_BYTES = 64, 128  # names and reasons are for people: every backend cuts them here


@dataclass(frozen=True)
class JobRow:
    """One job of a bulk read. Times are seconds since 1970; None where Slurm has none (yet).

    `num_nodes`, `num_cpus` are what the job holds or asks for: of a pending job they come from its TRES, since NumNodes
    shows the old number until it starts. `tres_per_node` as Slurm prints it (`gres:gpu:a100:4`). `name` and `reason`
    are cut, see `shown`.
    """

    job_id: int
    name: str
    user: str
    uid: int
    partition: str
    state: str
    reason: str
    num_nodes: int
    num_cpus: int
    num_tasks: int
    tres_per_node: str
    tres_other: str  # requests by job, socket or task, which can't be resized
    node_names: tuple[str, ...]
    submit_s: float
    start_s: float | None
    eligible_s: float | None  # of a pending job: when it may start at the earliest
    restarts: int
    requeue: bool
    priority: int
    batch: bool
    array: bool
    het: bool
    account: str = ""
    qos: str = ""
    features: str = ""
    reservation: str = ""


@dataclass(frozen=True)
class NodeRow:
    """One node of a bulk read; `gres` and `gres_used` as Slurm prints them ('' for none), `state` from `node_state`."""

    name: str
    state: str
    gres: str
    gres_used: str
    features: tuple[str, ...]
    partitions: tuple[str, ...]
    reason: str


def shown(text: str, limit: int) -> str:
    """`text` cut to `limit` bytes of UTF-8, whole characters only, without white space around it."""
    return text.encode(errors="replace")[:limit].decode(errors="ignore").strip()


def node_state(text: str) -> str:
    """Slurm's full state with its flags in one order: `MIXED+PLANNED+DRAIN` -> `mixed+drain+planned`."""
    base, *flags = text.lower().split("+")
    return "+".join([base, *sorted(set(flags))])


def gres_items(gres: str) -> list[str]:
    """A GRES text's parts; commas inside `(IDX:0,2-3)` do not separate."""
    depth, part, parts = 0, "", []
    for c in gres:
        depth += (c == "(") - (c == ")")
        if c == "," and depth == 0:
            parts.append(part)
            part = ""
        else:
            part += c
    return [p for p in (*parts, part) if p]


def gpu_items(gres: str) -> list[tuple[str, int]]:
    """(type, count) of each part of a GRES text that is about GPUs: `gpu:a100:4(S:0-1)`, `gres:gpu:2`, `gres/gpu=2`, `gpu`.

    The type is '' where none is named.
    """
    found = []
    for item in gres_items(gres):
        words = item.partition("(")[0].replace("/", ":").replace("=", ":").split(":")
        if words[0] == "gres":
            words = words[1:]
        if not words or words[0] != "gpu":
            continue
        count = int(words[-1]) if _WHOLE.match(words[-1]) else 1
        found.append((words[1] if len(words) > 1 and not _WHOLE.match(words[1]) else "", count))
    return found


def gpus_of(gres: str) -> tuple[str, int]:
    """(type, count) of the GPUs in a GRES text; ('', 0) where there are none.

    Of several types on one node the first with a count is taken, and one that is named before the untyped total.
    """
    found = sorted(gpu_items(gres), key=lambda item: (item[1] == 0, item[0] == ""))
    return found[0] if found else ("", 0)
