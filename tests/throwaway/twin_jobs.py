"""Random jobs for the twin run: all that is drawn, and all that the checks need to know of each. Pure, but for the scripts' text.

A job runs for `seconds` from its first start, whatever its size and however often it is restarted. So a job that Synergy makes
smaller does not run longer, one made larger does not run shorter, and both clusters have the same work at the same times: what
starts later was made to wait.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

from synergy_core.constraint import has_features

from tests.throwaway import agent_job, light_job
from tests.throwaway.accounting import OTHER
from tests.throwaway.slurm import NodeGroup

GROUPS = (
    NodeGroup("a100", 2, 4, "ib,rack1"), NodeGroup("a100", 1, 4, "fast,rack2"), NodeGroup("h100", 1, 4, "ib,fast,rack2"),
    NodeGroup("h100", 1, 2, "fast,rack1"), NodeGroup("v100", 1, 4, "rack1"),
)  # fmt: skip
CPUS, MEMORY_MIB = 16, 8000  # of each node
LICENCES = 2
RESERVED = ("n2", "n3")  # under maintenance for a while
MINUTE_S = 60

_SLEEPS = """#!/bin/bash
{lines}
folder={folder} key=${{SLURM_ARRAY_TASK_ID:-0}}
exec 9>> $folder/$key.alive
say() {{ echo "$1 ${{SLURM_RESTART_COUNT:-0}} 0 $$ $EPOCHREALTIME" >> $folder/$key; }}
flock -n 9 || say overlap
say start
read -r _ _ _ _ began < $folder/$key
left=$(( {seconds} - ${{EPOCHREALTIME%.*}} + ${{began%.*}} ))
(( left > 0 )) && sleep $left 9>&-
say done
"""
_TRAINS = """#!/bin/bash
{lines}
folder={folder} key=${{SLURM_ARRAY_TASK_ID:-0}}
srun synergy-launch --runner python --checkpoint $folder/$key.checkpoints {program} $folder/$key 0 {seconds}
"""


@dataclass(frozen=True)
class NodeFacts:
    """A node as it is set up."""

    gpu_type: str
    gpus: int
    features: frozenset[str]
    partitions: frozenset[str]


def _nodes() -> dict[str, NodeFacts]:
    found: dict[str, NodeFacts] = {}
    for group in GROUPS:
        for _ in range(group.nodes):
            name = f"n{len(found) + 1}"
            inside = frozenset(p for p, limits in PARTITIONS.items() if name in limits.nodes)
            found[name] = NodeFacts(
                group.gpu_type, group.gpus, frozenset((group.gpu_type, *group.features.split(","))), inside
            )
    return found


@dataclass(frozen=True, kw_only=True)
class PartitionFacts:
    nodes: tuple[str, ...]
    max_s: float | None = None
    max_nodes: int | None = None
    whole_nodes: bool = False


PARTITIONS = {
    "main": PartitionFacts(nodes=("n1", "n2", "n3", "n4", "n5", "n6")),
    "short": PartitionFacts(nodes=("n1", "n2", "n3", "n4"), max_s=3 * MINUTE_S, max_nodes=2),
    "whole": PartitionFacts(nodes=("n5", "n6"), max_s=10 * MINUTE_S, whole_nodes=True),
}
NODES: Mapping[str, NodeFacts] = _nodes()


@dataclass(frozen=True, kw_only=True)
class AccountFacts:
    """Limits of an account (or of one user in a QOS): TRES of all its jobs together, by Slurm's names, and their number."""

    tres: Mapping[str, int]
    jobs: int | None = None


FREE = AccountFacts(tres={})
ACCOUNTS = {
    "chem": AccountFacts(tres={"gres/gpu": 6, "cpu": 24}),
    "wide": AccountFacts(tres={"node": 2}),
    "few": AccountFacts(tres={"mem": 12000}, jobs=3),
    "free": FREE,
    "lab": AccountFacts(tres={"gres/gpu": 10}),
}
QOS = {"capped": AccountFacts(tres={"gres/gpu": 3}), "normal": FREE}  # of each user
QUICK_S = 2 * MINUTE_S  # MaxWall of QOS quick
OWNERS = {"root": ("lab",), OTHER: ("chem", "wide", "few", "free")}


@dataclass(frozen=True, kw_only=True)
class TwinJob:
    """One sbatch. `directive` None: a plain job. Sizes are those that it asks for."""

    number: int
    submit_s: float  # since the run's begin
    seconds: int
    user: str = OTHER
    directive: str | None = None
    trains: bool = False  # it reports, and can be asked for checkpoints
    nodes: int = 1
    gpus: int = 1  # of each node
    gpu_type: str = ""
    limit_s: int = MINUTE_S
    partitions: tuple[str, ...] = ("main",)
    exclude: frozenset[str] = frozenset()
    nodelist: frozenset[str] = frozenset()
    constraint: str = ""
    exclusive: bool = False
    cpus: int = 1  # of each node, whatever its GPUs
    cpus_per_gpu: int = 0
    memory_mib: int = 0  # of each node
    memory_per_gpu_mib: int = 0
    memory_per_cpu_mib: int = 0
    account: str = "free"
    qos: str = "normal"
    licences: int = 0
    after: int | None = None  # the job whose good end it waits for
    name: str = ""  # singleton among the jobs of this name
    tasks: int = 0  # of an array
    throttle: int = 0
    continues: int = 0
    min_gpus: int = 1
    max_gpus: int | None = None
    form: str = "gres"  # how the GPUs are asked for
    words: tuple[str, ...] = ()  # further options

    @property
    def managed(self) -> bool:
        return self.directive is not None

    @property
    def keys(self) -> tuple[tuple[int, int], ...]:
        """(number, task) of all that it consists of."""
        return tuple((self.number, t) for t in range(max(1, self.tasks)))

    def may_use(self, name: str, partitions: Sequence[str] = ()) -> bool:
        """Do its options allow node `name`, in one of `partitions` (its own, where none are named)?"""
        node = NODES[name]
        return (
            name not in self.exclude
            and bool(node.partitions & set(partitions or self.partitions))
            and has_features(self.constraint, node.features)
            and self.gpu_type in ("", node.gpu_type)
        )

    def cpus_on(self, gpus: int) -> int:
        """CPUs of a node on which it has so many GPUs."""
        return max(self.cpus, self.cpus_per_gpu * gpus)

    def memory_on(self, gpus: int) -> int:
        """MiB of a node on which it has so many GPUs."""
        if self.memory_per_gpu_mib:
            return self.memory_per_gpu_mib * gpus
        return self.memory_mib or (self.memory_per_cpu_mib or 100) * self.cpus_on(gpus)  # DefMemPerCPU=100

    def options(self, folder: Path, ids: Mapping[int, int]) -> list[str]:
        """What sbatch is told. `ids`: job ids on this cluster by number."""
        found = [
            "--open-mode=append", f"--output={folder}/output", "--requeue", f"--account={self.account}",
            f"--partition={','.join(self.partitions)}", f"--job-name={self.name or f'twin{self.number}'}",
            f"--time={self.limit_s // MINUTE_S}", *self._gpu_options(), *self.words,
        ]  # fmt: skip
        pairs: tuple[tuple[str, object], ...] = (
            ("exclude", ",".join(sorted(self.exclude))),
            ("nodelist", ",".join(sorted(self.nodelist))),
            ("constraint", self.constraint),
            ("cpus-per-task", self.cpus if self.cpus > 1 and self.form != "per-task" else 0),
            ("cpus-per-gpu", self.cpus_per_gpu),
            ("mem", self.memory_mib),
            ("mem-per-gpu", self.memory_per_gpu_mib),
            ("mem-per-cpu", self.memory_per_cpu_mib),
            ("qos", self.qos if self.qos != "normal" else ""),
            ("licenses", f"matlab:{self.licences}" if self.licences else ""),
        )
        found += [f"--{name}={value}" for name, value in pairs if value]
        if self.exclusive:
            found.append("--exclusive")
        if self.name:
            found.append("--dependency=singleton")
        elif self.after is not None and self.after in ids:
            found.append(f"--dependency=afterok:{ids[self.after]}")
        if self.tasks:
            found.append(f"--array=0-{self.tasks - 1}" + (f"%{self.throttle}" if self.throttle else ""))
        return found

    def script(self, folder: Path, *, directive: bool) -> str:
        """Its batch script; without its #SYNERGY line where `directive` is False."""
        config = folder.parent / "config.json"
        if not config.exists():
            config.write_text(json.dumps(light_job.MODEL))
        line = ""
        if directive and self.directive is not None:
            line = f"#SYNERGY model={config} global_batch=8 micro_batch=1 {self.directive}".rstrip()
            if self.trains and not self.tasks:
                line += f" checkpoint={folder}/0.checkpoints"
        text = _TRAINS if self.trains else _SLEEPS
        program = shlex.quote(agent_job.__file__)
        return text.format(lines=line, folder=shlex.quote(str(folder)), seconds=self.seconds, program=program)

    def _gpu_options(self) -> list[str]:
        kind = f"{self.gpu_type}:" if self.gpu_type else ""
        whole = f"--nodes={self.nodes}"
        if self.form == "gpus":
            return [whole, f"--gpus={kind}{self.gpus * self.nodes}"]
        if self.form == "per-task":
            return [whole, f"--ntasks={self.gpus * self.nodes}", f"--gpus-per-task={kind}1"]
        if self.form == "no-nodes":  # only where one node has them all
            return [f"--gpus={kind}{self.gpus}"]
        return [whole, f"--gres=gpu:{kind}{self.gpus}"]


def generate(count: int, seed: int, span_s: float) -> list[TwinJob]:
    """`count` jobs that are submitted over `span_s` seconds."""
    rng = Random(seed)
    times = sorted(rng.uniform(0.0, span_s) for _ in range(count))
    found: list[TwinJob] = []
    for number, submit_s in enumerate(times):
        found.append(_draw(rng, number, submit_s, found))
    return found


def _draw(rng: Random, number: int, submit_s: float, before: Sequence[TwinJob]) -> TwinJob:
    trains = rng.random() < 0.2
    user = "root" if trains else OTHER
    managed = trains or rng.random() < 0.6
    words: dict[str, object] = {
        "number": number, "submit_s": submit_s, "seconds": rng.randint(8, 30), "user": user, "trains": trains,
        "account": rng.choice(OWNERS[user]), "gpus": rng.choice((1, 1, 2, 2, 4)),
        "limit_s": MINUTE_S * rng.choice((1, 1, 2, 3)),
    }  # fmt: skip
    words.update(_place(rng))
    words.update(_needs(rng, int(str(words["gpus"]))))
    words.update(_order(rng, before, trains))
    if rng.random() < 0.12 and not trains and words["partitions"] == ("main",):
        form = rng.choice(("gpus", "per-task", "no-nodes"))
        words.update(form=form, nodes=1, cpus=words["gpus"] if form == "per-task" else 1, cpus_per_gpu=0)
    if managed:
        words.update(_directive(rng, words, trains))
    if rng.random() < 0.03:
        words.update(_impossible(rng))
    return TwinJob(**words)  # type: ignore[arg-type]


def _place(rng: Random) -> dict[str, object]:
    """Partitions and nodes."""
    found: dict[str, object] = {
        "partitions": rng.choice((("main",),) * 5 + (("short",), ("whole",), ("short", "main")))
    }
    if rng.random() < 0.15:
        found["nodes"] = 2
    drawn = rng.random()
    if drawn < 0.15:
        found["exclude"] = frozenset(rng.sample(list(NODES), rng.randint(1, 3)))
    elif drawn < 0.22:
        inside = [n for n, facts in NODES.items() if set(found["partitions"]) & facts.partitions]  # type: ignore[call-overload]
        found["nodelist"] = frozenset(rng.sample(inside, 1))
    elif drawn < 0.40:
        found["constraint"] = rng.choice(
            ("ib", "fast", "rack1", "ib&fast", "a100|h100", "rack2|v100", "rack1&(a100|h100)", "[rack1|rack2]")
        )
    elif drawn < 0.55:
        found["gpu_type"] = rng.choice(("a100", "a100", "h100", "v100"))
    return found


def _needs(rng: Random, gpus: int) -> dict[str, object]:
    """CPUs, memory, limits, what Slurm alone counts."""
    found: dict[str, object] = {}
    drawn = rng.random()
    if drawn < 0.2:
        found["cpus"] = rng.choice((2, 4, 8, 12))
    elif drawn < 0.4:
        found["cpus_per_gpu"] = rng.choice((1, 2, 4))
    drawn = rng.random()
    if drawn < 0.15:
        found["memory_mib"] = rng.choice((500, 2000, 6000))
    elif drawn < 0.3:
        found["memory_per_gpu_mib"] = rng.choice((200, 1000, 2000))
    elif drawn < 0.4:
        found["memory_per_cpu_mib"] = rng.choice((100, 300))
    drawn = rng.random()
    if drawn < 0.06:
        found["exclusive"] = True
    elif drawn < 0.12:
        found["licences"] = 1
    elif drawn < 0.15:
        found["words"] = ("--switches=1",)
    elif drawn < 0.18:
        found["words"] = ("--contiguous",)
    return found


def _order(rng: Random, before: Sequence[TwinJob], trains: bool) -> dict[str, object]:
    """Dependencies, arrays, QOS."""
    drawn = rng.random()
    if drawn < 0.08 and before:
        return {"after": rng.choice(before[-10:]).number}
    if drawn < 0.12 and not trains:
        return {"name": rng.choice(("one", "two"))}
    if drawn < 0.18 and not trains:
        return {"tasks": rng.randint(2, 4), "throttle": rng.choice((0, 1, 2))}
    if drawn < 0.24 and not trains:
        return {"qos": "capped"}
    if drawn < 0.28 and not trains:
        return {"qos": "quick", "limit_s": QUICK_S}
    return {}


def _directive(rng: Random, words: Mapping[str, object], trains: bool) -> dict[str, object]:
    asked = int(str(words["gpus"])) * int(str(words.get("nodes", 1)))
    least, most = rng.choice((1, asked)), rng.choice((asked, 4, 8, 8))
    text, found = f"min_gpus={least} max_gpus={max(asked, most)}", dict[str, object]()
    if rng.random() < 0.1:
        text += " weight=0.5"
    if rng.random() < 0.06:
        text, least, most = "resize=no", asked, asked
    elif trains and rng.random() < 0.15 and words.get("qos", "normal") == "normal":
        # longer than its limit: it goes on from its checkpoint
        text, found = f"{text} walltime=continue:2", {"continues": 2, "limit_s": MINUTE_S, "seconds": 75}
    return {**found, "directive": text, "min_gpus": least, "max_gpus": max(asked, most)}


def _impossible(rng: Random) -> dict[str, object]:
    """What no node has, or no limit allows: such a job is refused, or waits for ever."""
    choices: tuple[dict[str, object], ...] = (
        {"constraint": "nowhere", "gpu_type": ""},
        {"gpus": 8, "form": "gres"},
        {"memory_mib": 9000, "memory_per_gpu_mib": 0, "memory_per_cpu_mib": 0},
        {"exclude": frozenset(NODES), "nodelist": frozenset()},
        {"partitions": ("short",), "limit_s": 10 * MINUTE_S, "qos": "normal"},
    )
    return rng.choice(choices)
