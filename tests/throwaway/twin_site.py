"""The two clusters of a twin run: one with the plugin and the daemon, one without; nodes, partitions and limits of twin_jobs.py."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from pathlib import Path
from types import TracebackType
from typing import Any

from synergy_core.errors import UsageError
from synergy_core.wire.hostlist import expand

from synergyd.store.store import open_store
from tests.throwaway.accounting import OTHER, OTHER_UID, Accounting
from tests.throwaway.slurm import SlurmCluster
from tests.throwaway.synergy import Synergyd, hook
from tests.throwaway.twin_checks import Key, Run
from tests.throwaway.twin_jobs import (
    ACCOUNTS,
    CPUS,
    GROUPS,
    LICENCES,
    MEMORY_MIB,
    MINUTE_S,
    OWNERS,
    PARTITIONS,
    QOS,
    QUICK_S,
    RESERVED,
    TwinJob,
)  # fmt: skip

BY_OTHER: dict[str, Any] = {"user": OTHER_UID, "group": OTHER_UID, "extra_groups": [], "cwd": "/"}
CHECKPOINT_S = 15
#: columns of squeue and their widths
_LOOK = {"JobArrayID": 40, "State": 20, "Reason": 120, "ReqNodes": 80, "tres-alloc": 160}
#: reasons of a job that may not start yet, whatever is free
_NOT_FREE = ("None", "BeginTime", "Dependency", "JobHeldUser", "JobHeldAdmin", "JobArrayTaskLimit")
_FIELDS = "JobID,JobIDRaw,State,Start,End,NodeList,AllocTRES,Partition,TimelimitRaw"


@dataclass
class Side:
    """One of the two clusters, and what was submitted to it. `looks`: what squeue showed, by (number, task)."""

    cluster: SlurmCluster
    managed: bool
    ids: dict[int, int] = field(default_factory=dict)  # by number
    refused: dict[int, str] = field(default_factory=dict)
    looks: dict[Key, list[tuple[float, str, str]]] = field(default_factory=dict)  # time, state, reason
    turns: dict[Key, list[float]] = field(
        default_factory=dict
    )  # when it stood in Slurm's queue as its sbatch line says
    jobs: dict[int, TwinJob] = field(default_factory=dict)  # by number
    raw: dict[int, Key] = field(default_factory=dict)  # by Slurm's own id of a task

    def submit(self, job: TwinJob) -> None:
        """sbatch; a refusal is kept."""
        folder = self.cluster.folder / "jobs" / str(job.number)
        folder.mkdir(parents=True)
        folder.chmod(0o777)
        path = folder / "script.sh"
        path.write_text(job.script(folder, directive=self.managed))
        path.chmod(0o755)
        argv = ["sbatch", "--parsable", *job.options(folder, self.ids), str(path)]
        who = BY_OTHER if job.user == OTHER else {}
        done = self.cluster.run(*argv, check=False, timeout_s=120, **who)
        self.jobs[job.number] = job
        if done.returncode:
            self.refused[job.number] = done.stderr.strip()
        else:
            self.ids[job.number] = int(done.stdout.strip().split(";")[0])

    def look(self) -> dict[Key, str]:
        """States of all that is in the queue."""
        columns = ",".join(f"{name}:{width}" for name, width in _LOOK.items())
        done = self.cluster.run("squeue", "-h", "-a", "-r", "-O", columns, check=False)
        found: dict[Key, str] = {}
        now_s, numbers = time.time(), {i: n for n, i in self.ids.items()}
        for line in done.stdout.splitlines():
            ends = list(accumulate(_LOOK.values(), initial=0))
            name, state, reason, nodes, tres = (line[i:j].strip() for i, j in pairwise(ends))
            if (key := _key(name, numbers)) is None:
                continue
            found[key] = state
            self.looks.setdefault(key, []).append((now_s, state, reason))
            if state == "PENDING" and reason not in _NOT_FREE and _as_asked(self.jobs[key[0]], nodes, tres):
                self.turns.setdefault(key, []).append(now_s)
        return found

    def runs(self) -> list[Run]:
        """All incarnations so far, by sacct -D."""
        self.cluster.run("squeue")
        # by a time sacct leaves out tasks that were never eligible before they started: those that a throttle held back
        done = self.cluster.run(
            "sacct", "-a", "-D", "-X", "-n", "-P", "-j", ",".join(map(str, self.ids.values())) or "0", "-o", _FIELDS,
            env={**self.cluster.env, "SLURM_TIME_FORMAT": "%s"},
        )  # fmt: skip
        numbers, found = {i: n for n, i in self.ids.items()}, []
        for line in done.stdout.splitlines():
            name, raw, state, start, end, nodes, tres, partition, limit = line.split("|")
            key = _key(name, numbers)
            if key is None or not start.isdigit() or nodes in ("", "None assigned"):
                continue
            self.raw[int(raw)] = key
            has = dict(item.split("=") for item in tres.split(","))
            found.append(
                Run(
                    key=key, start_s=float(start), end_s=float(end) if end.isdigit() else float("inf"),
                    nodes=tuple(expand(nodes, "sacct")), gpus=int(has.get("gres/gpu", 0)), cpus=int(has["cpu"]),
                    memory_mib=_mib(has.get("mem", "0")), partition=partition,
                    limit_s=float(limit) * MINUTE_S if limit.isdigit() else None, state=state.split()[0],
                )
            )  # fmt: skip
        return found

    def told(self) -> dict[Key, list[tuple[float, str]]]:
        """When explain told which job to wait, and why."""
        found: dict[Key, list[tuple[float, str]]] = {}
        try:
            with open_store(f"sqlite:///{self.cluster.state_dir}/synergy.db") as store:
                for raw, key in self.raw.items():
                    waits = [d for d in store.decisions_of(raw, 50) if d.decision.action.value == "wait"]
                    found[key] = [(d.at_s, d.decision.why) for d in reversed(waits)]
        except UsageError:
            return {}
        return found


class Twins:
    """Use it as a context manager. `ours` is the cluster with Synergy."""

    def __init__(self, epoch_s: float) -> None:
        self.epoch_s = epoch_s
        self.ours, self.plain = (Side(_cluster(managed, epoch_s), managed) for managed in (True, False))
        self.daemon: Synergyd | None = None
        self.window: tuple[float, float] | None = None
        self.pool = ThreadPoolExecutor(2)
        self._stack = ExitStack()

    @property
    def sides(self) -> tuple[Side, Side]:
        return self.ours, self.plain

    def __enter__(self) -> Twins:
        try:
            for side in self.sides:
                self._stack.enter_context(side.cluster)
                (side.cluster.folder / "jobs").mkdir()
            self.daemon = Synergyd(self.ours.cluster)
            self._stack.callback(self.daemon.stop)
            beat = self.ours.cluster.state_dir / "heartbeat"
            self.ours.cluster.wait_for(beat.exists, 120, "the heartbeat")
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.pool.shutdown()
        self._stack.close()

    def maintain(self, in_s: float, minutes: int) -> None:
        """The nodes RESERVED are under maintenance on both, from so many seconds from now on."""
        begin_s = int(time.time() + in_s)
        at = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(begin_s))
        self.window = float(begin_s), float(begin_s + minutes * MINUTE_S)
        for side in self.sides:
            side.cluster.run(
                "scontrol", "create", "reservation", "ReservationName=maintenance", f"StartTime={at}", f"Duration={minutes}",
                "Users=root", "Flags=maint", f"Nodes={','.join(RESERVED)}",
            )  # fmt: skip

    def on_both(self, what: str, *argv: object) -> list[object]:
        """Calls a method of both sides at the same moment."""
        return list(self.pool.map(lambda side: getattr(side, what)(*argv), self.sides))


def _cluster(managed: bool, epoch_s: float) -> SlurmCluster:
    cluster = SlurmCluster(GROUPS)
    cluster.cpus_per_node, cluster.memory_mib, cluster.counts_memory = CPUS, MEMORY_MIB, True
    cluster.accounting = Accounting(tuple(_accounting()))
    lines = [f"Licenses=matlab:{LICENCES}", "DefMemPerCPU=100"]
    for name, limits in PARTITIONS.items():
        if name != "main":
            lines.append(
                f"PartitionName={name} Nodes={','.join(limits.nodes)} MaxTime={int((limits.max_s or 0) // MINUTE_S)} DefaultTime=1"
                + (f" MaxNodes={limits.max_nodes}" if limits.max_nodes else "")
                + (" OverSubscribe=EXCLUSIVE" if limits.whole_nodes else "")
            )
    if managed:
        cluster.job_submit = hook(cluster.state_dir)
        lines.insert(
            0,
            f"#SYNERGY StateDir={cluster.state_dir} Epoch={epoch_s:g} RestartCost=5 CheckpointTimeout={CHECKPOINT_S} Park=120",
        )
    cluster.slurm_conf = lines
    return cluster


def _accounting() -> Iterator[str]:
    """What sacctmgr is told."""
    for name, limits in ACCOUNTS.items():
        tres = ",".join(f"{t}={n}" for t, n in limits.tres.items())
        yield (
            f"add account {name}"
            + (f" GrpTRES={tres}" if tres else "")
            + (f" GrpJobs={limits.jobs}" if limits.jobs else "")
        )
    for name, limits in QOS.items():
        if limits.tres:
            yield f"add qos {name} MaxTRESPerUser={','.join(f'{t}={n}' for t, n in limits.tres.items())}"
    yield f"add qos quick MaxWall={QUICK_S // MINUTE_S}"
    for user, accounts in OWNERS.items():
        yield f"add user {user} account={','.join(accounts)} qos={','.join((*QOS, 'quick'))} defaultqos=normal"


def _as_asked(job: TwinJob, nodes: str, tres: str) -> bool:
    """Are these the nodes that it requires and the TRES of its sbatch line?"""
    has = dict(item.split("=") for item in tres.split(",") if "=" in item)
    size = int(has.get("node", 0)), int(has.get("gres/gpu", 0))
    return set(expand(nodes, "squeue") if nodes else ()) == job.nodelist and size == (job.nodes, job.gpus * job.nodes)


def _key(name: str, numbers: Mapping[int, int]) -> Key | None:
    """`12` or `12_3` -> (number, task); None for what was not submitted here, and for tasks that wait as one line."""
    match = re.fullmatch(r"(\d+)(?:_(\d+))?", name)
    number = numbers.get(int(match[1])) if match else None
    return None if match is None or number is None else (number, int(match[2] or 0))


def _mib(text: str) -> int:
    """`1000M`, `1.50G` -> MiB."""
    units = {"K": 1 / 1024, "M": 1, "G": 1024}
    return round(float(text[:-1]) * units[text[-1]]) if text[-1] in units else int(text) // 1024**2


def ledger_of(side: Side, key: Key) -> Path:
    """What the job wrote of its runs."""
    return side.cluster.folder / "jobs" / str(key[0]) / str(key[1])
