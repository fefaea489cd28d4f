"""A site's own history: the jobs with GPUs that `sacct` lists, and the cluster as they and `sinfo` show it."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise

from synergy_core.errors import SynergyError
from synergy_core.wire.hostlist import expand

from synergy_sim.tables import TableRow

COLUMNS = (
    "JobIDRaw", "User", "Submit", "Eligible", "Start", "ElapsedRaw", "TimelimitRaw", "AllocTRES", "NNodes", "NodeList", "State",
)  # fmt: skip
ANY = "gpu"  # the type of GPUs where Slurm's accounts don't name it (AccountingStorageTRES)
_TRES = re.compile(r"(?:^|,)gres/gpu(?::([^=,]+))?=([0-9]{1,7})(?=,|$)")
_GRES = re.compile(r"(?:^|,)gpu(?::([^:,()]+))?:([0-9]{1,4})(?=[,(]|$)")
_GOES_ON = ("RUNNING", "SUSPENDED", "COMPLETING")
_DAY_S = 86400.0
#: a shorter history begins with its first start, less the wait before it: of a longer one the jobs that ran meanwhile are not in it
_PROMPT_S = 60.0
#: the times of sacct are whole seconds, and one job's end may be later than the next one's start on the same GPUs
LASTS_S = 60.0


@dataclass(frozen=True, kw_only=True)
class PastJob:
    """One run of a job, in seconds since 1970. `ready_s`: when it might start, as its user wanted."""

    user: str
    ready_s: float
    start_s: float
    seconds: float
    limit_s: float
    gpu_type: str
    nodes: int
    each: int
    names: tuple[str, ...]
    goes_on: bool = False

    @property
    def gpus(self) -> int:
        return self.nodes * self.each

    @property
    def end_s(self) -> float:
        return self.start_s + self.seconds


@dataclass(frozen=True, kw_only=True)
class History:
    """The runs of a span, by start. `waiting`: jobs that had not started; `nodes`: GPU type -> GPUs of each node, as `source` says."""

    from_s: float
    to_s: float
    jobs: tuple[PastJob, ...]
    nodes: Mapping[str, tuple[int, ...]]
    source: str
    waiting: int = 0
    too_large: int = 0
    unreadable: int = 0

    @property
    def forecast_jobs(self) -> list[PastJob]:
        """Return the jobs that forecasts are about: those that became ready in the span and have ended."""
        return [job for job in self.jobs if not job.goes_on and job.ready_s >= self.from_s]

    @property
    def gpus(self) -> int:
        return sum(map(sum, self.nodes.values()))


def read_history(rows: Iterable[TableRow], days: float, sinfo: str) -> History:
    """Return the last `days` days of the rows of sacct (COLUMNS); `sinfo` is the output of `sinfo -N -h -o "%N|%G"`, "" if not known."""
    jobs: list[PastJob] = []
    types, own_nodes = _nodes_of_sinfo(sinfo)
    waiting = unreadable = 0
    for row in rows:
        ready_s = _seconds(row, "Eligible") or _seconds(row, "Submit")
        counts = _TRES.findall(row.values.get("AllocTRES") or "")
        start_s, elapsed = _seconds(row, "Start"), row.values.get("ElapsedRaw") or ""
        if start_s is None:
            waiting += (row.values.get("State") or "").startswith("PENDING")
            continue
        if not counts or not elapsed.isdecimal() or not int(elapsed):
            continue
        job = _past_job(row, ready_s or start_s, start_s, int(elapsed), counts, types)
        if job is None:
            unreadable += 1
        else:
            jobs.append(job)
    to_s = max((job.end_s for job in jobs), default=0.0)
    begins = (max(job.ready_s, job.start_s - _PROMPT_S) for job in jobs)
    from_s = max(to_s - days * _DAY_S, min(begins, default=0.0))
    jobs = sorted((job for job in jobs if job.end_s > from_s), key=lambda job: (job.start_s, job.ready_s))
    nodes, source = (own_nodes, "sinfo") if own_nodes else (_nodes_of_jobs(jobs), "the nodes that ran these jobs")
    usable_jobs = [job for job in jobs if _has_room(job, nodes.get(job.gpu_type, ()))]
    return History(
        from_s=from_s,
        to_s=to_s,
        jobs=tuple(usable_jobs),
        nodes={kind: tuple(each) for kind, each in nodes.items() if any(job.gpu_type == kind for job in usable_jobs)},
        source=source,
        waiting=waiting,
        too_large=len(jobs) - len(usable_jobs),
        unreadable=unreadable,
    )


def _past_job(
    row: TableRow, ready_s: float, start_s: float, elapsed: int, counts: list[tuple[str, str]], types: Mapping[str, str]
) -> PastJob | None:
    # a typed and an untyped count of the same GPUs may both stand there
    kind, gpus = max(((kind, int(count)) for kind, count in counts), key=lambda one: (one[0] != "", one[1]))
    gpus = max(gpus, *(int(count) for _, count in counts))
    count = row.values.get("NNodes") or ""
    listed = row.values.get("NodeList") or ""
    if not count.isdecimal() or not 1 <= int(count) <= max(1, gpus):
        return None
    try:
        names = tuple(expand(listed, row.where)) if listed and listed != "None assigned" else ()
    except SynergyError:
        return None
    limit = row.values.get("TimelimitRaw") or ""
    kind = next((types[name] for name in names if name in types), kind or ANY)
    return PastJob(
        user=row.values.get("User") or "",
        ready_s=min(ready_s, start_s),
        start_s=start_s,
        seconds=float(elapsed),
        limit_s=60.0 * int(limit) if limit.isdecimal() else math.inf,
        gpu_type=kind,
        nodes=int(count),
        each=-(-gpus // int(count)),
        names=names,
        goes_on=(row.values.get("State") or "").startswith(_GOES_ON),
    )


def _seconds(row: TableRow, column: str) -> float | None:
    """Return a time as sacct prints it, with SLURM_TIME_FORMAT=%s or without; None for Unknown, None or nothing."""
    text = (row.values.get(column) or "").strip()
    if text.isdecimal() and len(text) <= 11:
        return float(text)
    try:
        return datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError):
        if text in ("", "Unknown", "None"):
            return None
        raise row.wrong(column, f"{text!r} is not a time", "such as 2026-03-01T12:00:00") from None


def _nodes_of_sinfo(text: str) -> tuple[dict[str, str], dict[str, list[int]]]:
    """Return (GPU type by node, GPU type -> GPUs of each node)."""
    types, gpus = dict[str, str](), dict[str, int]()
    for line in text.splitlines():
        name, _, gres = line.strip().partition("|")
        counts = _GRES.findall(gres.strip())
        if name and counts:
            types[name] = next((kind for kind, _ in counts if kind), ANY)
            gpus[name] = sum(int(count) for _, count in counts)
    nodes: dict[str, list[int]] = {}
    for name, kind in types.items():
        nodes.setdefault(kind, []).append(gpus[name])
    return types, nodes


def _nodes_of_jobs(jobs: Iterable[PastJob]) -> dict[str, list[int]]:
    """Return GPU type -> GPUs of each node: those of a type are taken as equal, with as many as were in use on one for LASTS_S in all."""
    changes: dict[tuple[str, str], list[tuple[float, int]]] = {}
    for job in jobs:
        for name in job.names:
            changes.setdefault((job.gpu_type, name), []).extend([(job.start_s, job.each), (job.end_s, -job.each)])
    most = Counter[str]()
    for (kind, _), some in changes.items():
        in_use, lasted = 0, Counter[int]()
        for (time_s, gpus), (next_s, _) in pairwise(sorted(some)):
            in_use += gpus
            lasted[in_use] += int(next_s - time_s)
        alone = max(gpus for _, gpus in some)  # what one job had is there, however short it was
        most[kind] = max(most[kind], alone, *(gpus for gpus, seconds in lasted.items() if seconds >= LASTS_S))
    nodes: dict[str, list[int]] = {}
    for kind, _ in sorted(changes):
        nodes.setdefault(kind, []).append(most[kind])
    return nodes


def _has_room(job: PastJob, nodes: Iterable[int]) -> bool:
    return sum(gpus >= job.each for gpus in nodes) >= job.nodes
