"""One contract for every backend that reads Slurm, held to a real cluster. The test ids say which backends ran."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from synergyd.slurm.command_line import CommandLine
from synergyd.slurm.parsed.rows import NAME_BYTES, JobRow, SlurmNodeRow, parse_gpus, shorten
from synergyd.slurm.pyslurm_reader import DIFFERENCES
from tests.paths import ROOT, python_path
from tests.throwaway.accounting import Accounting
from tests.throwaway.slurm import NodeGroup, SlurmCluster, missing_programs
from tests.throwaway.slurm_output import gres, queue, release

pytestmark = [
    pytest.mark.slurm,
    pytest.mark.skipif(bool(missing_programs()), reason="Slurm or munge is not installed"),
    pytest.mark.timeout(600),
]
SLEEP = "#!/bin/sh\nsleep 600\n"
BACKENDS = [
    "command line",
    pytest.param(
        "pyslurm",
        marks=pytest.mark.skipif(importlib.util.find_spec("pyslurm") is None, reason="pyslurm is not installed"),
    ),
]
LONG = ("longpartition-" + "a" * 40, "longpartition-" + "b" * 40)
HOSTILE = {
    "newline": "two\nlines",
    "row": "x\n999999      N/A         N/A         PENDING             None",
    "row after padding": "y".ljust(NAME_BYTES) + "\n999999      N/A",
    "separators": "a|b,c=d;e:f'g\"h\\i%j",
    "shell": "$(touch /tmp/synergy-owned) `id` ; rm -rf x &",
    "option": "--jobs=1",
    "unicode": "日本語 é ∂ 🚀",
    "long": "n" * 200,
    "long, two bytes each": "é" * 100,
    "long, three bytes each": "x" + "€" * 60,
    "white space": "  \t in front, behind \t ",
    "escape": "\x1b[31mred\x07",
    "no value": "N/A",
    "null": "(null)",
    "none": "None",
    "not UTF-8": "caf\udce9 \udcff\udcfe" + "z" * 80,  # surrogates: the bytes E9, FF, FE on the command line
}


@dataclasses.dataclass(frozen=True)
class Read:
    """What one backend gave of one cluster."""

    name: str
    version: str
    jobs: dict[int, JobRow]
    nodes: dict[str, SlurmNodeRow]


@dataclasses.dataclass(frozen=True)
class World:
    """A cluster with jobs in many states: ids by what they are for; each backend's reads, taken while nothing moved."""

    cluster: SlurmCluster
    ids: dict[str, int]
    left: set[int]
    reads: dict[str, Read]
    start_s: float


def read_raw(cluster: SlurmCluster, backend: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "tests.throwaway.read_rows", backend],
        env={**cluster.env, "PYTHONPATH": python_path(*(p for p in sys.path if p))},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


def read(cluster: SlurmCluster, backend: str) -> Read:
    raw = read_raw(cluster, backend)

    def rows(what: str) -> list[dict[str, Any]]:
        assert isinstance(raw[what], list), raw[what]
        return [{k: tuple(v) if isinstance(v, list) else v for k, v in row.items()} for row in raw[what]]

    jobs, nodes = [JobRow(**r) for r in rows("jobs")], [SlurmNodeRow(**r) for r in rows("nodes")]
    by_id, by_name = {j.job_id: j for j in jobs}, {n.name: n for n in nodes}
    assert (len(by_id), len(by_name)) == (len(jobs), len(nodes)), "a row came twice"
    return Read(raw["name"], raw["version"], by_id, by_name)


def gpus_counted() -> Accounting | None:
    """A slurmdbd where a reader needs one: pyslurm's newer classes know GPUs in use as far as Slurm counts them for it."""
    if len(available()) < 2 or release() < (25, 5):
        return None
    return Accounting(("add account chem", "add user root,games account=chem"), enforce="associations")


def available() -> list[str]:
    return ["command line", *(["pyslurm"] if importlib.util.find_spec("pyslurm") else [])]


NEWEST = len(available()) > 1 and release() >= (25, 11)  # pyslurm's newest class of jobs is there, see DIFFERENCES
TOTALS = ("begin", "by task", "by socket", "by job")  # of which it gives other words


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    start_s = time.time()
    # the second value of SlurmdTimeout, so that a node which is killed here stays as it is
    groups, lines = [NodeGroup("a100", 5, 4), NodeGroup("v100", 3, 2)], ["SlurmdTimeout=3600"]
    # a job that is requeued waits for as long as credentials last: longer than all this takes
    with SlurmCluster(groups, slurm_conf=lines, park_cred_expire_s=3600, accounting=gpus_counted()) as c:
        c.run("scontrol", "create", "PartitionName=second", "Nodes=n[1-2]")
        c.run("scontrol", "create", "PartitionName=secret", "Nodes=n1", "Hidden=YES")
        for name in LONG:
            c.run("scontrol", "create", f"PartitionName={name}", "Nodes=n2")
        c.run("scontrol", "update", "PartitionName=main", "Nodes=n[1-7]")  # n8 is in none
        ids, left = make_jobs(c)
        make_nodes(c, ids)
        reads: dict[str, Read] = {}
        for _ in range(30):  # the backfill scheduler goes on planning: read until nothing moved in between
            before = read(c, "command line")
            reads = {backend: read(c, backend) for backend in available()}
            after = read(c, "command line")
            if before == after:
                break
            time.sleep(1)
        else:
            pytest.fail("the queue never stood still")
        print(f"backends that ran: {', '.join(reads)}; {len(ids)} jobs")
        yield World(c, ids, left, reads, start_s)


def make_jobs(c: SlurmCluster) -> tuple[dict[str, int], set[int]]:
    """Submits everything; returns ids by what they are for, and the ids of jobs that have left."""
    ids: dict[str, int] = {}

    def submit(key: str, *options: str, script: str = SLEEP) -> int:
        ids[key] = c.sbatch(script, "-o", "/dev/null", *options)
        return ids[key]

    def wait(job_id: int, state: str) -> None:
        c.wait_for(lambda: c.state(job_id) == state, 120, f"job {job_id} to be {state}, it is {c.state(job_id)!r}")

    left = {c.sbatch("#!/bin/sh\ntrue\n", "-o", "/dev/null"), c.sbatch("#!/bin/sh\nfalse\n", "-o", "/dev/null")}
    cancelled = c.sbatch(SLEEP, "--hold")
    c.run("scancel", str(cancelled))
    left.add(cancelled)

    # one after the other, so that each is where the tests expect it
    for key, *options in (
        ("running typed", "-w", "n1", "--gres=gpu:a100:2"),
        ("running by job", "-w", "n1", "--gpus=1"),
        ("suspended", "-w", "n2", "-p", "second"),
        ("two nodes", "-w", "n[1-2]", "-N2", "-n2"),
        ("completing", "-w", "n5", "--gres=gpu:4"),
        ("hidden", "-p", "secret", "-w", "n1"),
        ("requeued", "-w", "n3", "--gres=gpu:1"),
        ("resized", "-w", "n3", "-N1", "--gres=gpu:1"),
    ):
        wait(submit(key, *options), "RUNNING")
    c.run("scontrol", "suspend", str(ids["suspended"]))
    c.run("scontrol", "requeue", str(ids["requeued"]))
    c.run("scontrol", "requeuehold", str(ids["resized"]))
    wait(ids["resized"], "PENDING")
    c.run("scontrol", "update", f"JobId={ids['resized']}", "ReqNodeList=", "NumTasks=2", "NumNodes=2-2")
    wait(ids["requeued"], "PENDING")
    c.kill("n5")  # a node that does not answer any more: its job stays completing
    c.run("scancel", str(ids["completing"]))
    wait(ids["completing"], "COMPLETING")

    submit("held", "--hold", "-N2", "-n2", "-c3", "--gres=gpu:4")
    submit("no requeue", "--hold", "--no-requeue")
    submit("begin", "--begin=now+1hour", "--gres=gpu")
    submit("too big", "-N6", "-n6", "--gres=gpu:2")
    submit("many partitions", "--hold", "-p", ",".join(LONG))
    submit("by task", "--hold", "-n2", "--gpus-per-task=1")
    submit("by socket", "--hold", "--sockets-per-node=1", "--gpus-per-socket=v100:1")
    submit("by job", "--hold", "--gpus=a100:2")
    submit("array", "--hold", "--array=0-3%2", "--gres=gpu:1")
    submit(
        "node options",
        "--hold",
        "-N2",
        "--nodelist=n[2-3]",
        "--exclude=n1",
        "--ntasks-per-node=2",
        "-c4",
        "--mem=3G",
        "-t",
        "1-2",
    )
    # of such a job pyslurm's newest class tells too little: with it the whole queue is read by the command line
    by_gpu = ("--mem-per-gpu=512M", "--cpus-per-gpu=4") if not NEWEST else ()
    submit("GPU options", "--hold", "--gres=gpu:2", *by_gpu, "--time-min=5", "-t", "10", "--nice=7")
    submit(
        "CPU options",
        "--hold",
        "-n3",
        "-N1",
        "--mem-per-cpu=300M",
        "--hint=nomultithread",
        "--exclusive",
        "--switches=1",
    )
    submit("array of one", "--hold", "--array=5")
    submit("array running", "--array=0-1%1", "-w", "n3")
    apart = submit("array apart", "--hold", "--array=0-5%2", "--exclude=n2")
    for task in (3, 4):  # pending tasks with job ids of their own
        c.run("scontrol", "update", f"JobId={apart}_{task}", "TimeLimit=5")
    submit("het", "-n1", "--hold", "--gres=gpu:1", ":", "-n2", "--hold")
    for key, name in HOSTILE.items():
        submit(f"name {key}", "--hold", f"--job-name={name}")
    if os.getuid() == 0:
        submit("other user", "--hold", "--uid=games", "-D", "/tmp")
    c.wait_for(lambda: not any(c.state(j) in ("RUNNING", "PENDING", "COMPLETING") for j in left), 120, "jobs to leave")
    c.wait_for(lambda: "RUNNING" in states_of(c, ids["array running"]), 150, "a task of the array to run")
    return ids, left


def states_of(c: SlurmCluster, job_id: int) -> list[str]:
    """The states of an array's tasks."""
    return c.run("squeue", "-h", "-r", "-j", str(job_id), "-o", "%T").stdout.split()


def make_nodes(c: SlurmCluster, ids: dict[str, int]) -> None:
    """n1 and n2 mixed, n3 mixed, n4 drained, n5 completing, n6 down, n7 idle, n5 and n7 not answering, n8 in no partition."""
    many = ",".join(["a100", "nvlink", *(f"feature{i}" for i in range(40))])  # longer than sinfo's first column
    c.run("scontrol", "update", "NodeName=n1", f"AvailableFeatures={many}", f"ActiveFeatures={many}")
    c.run("scontrol", "update", "NodeName=n4", "State=DRAIN", "Reason=fan\nn9 idle " + "é" * 100)
    c.run("scontrol", "update", "NodeName=n6", "State=DOWN", "Reason=broken: $(id)")
    c.kill("n7")
    for name in ("n5", "n7"):  # said at once: Slurm itself finds out at any moment
        c.run("scontrol", "update", f"NodeName={name}", "State=NoResp")
    c.wait_for(lambda: "array" in ids, 60, "jobs")


@pytest.fixture(params=BACKENDS)
def got(request: pytest.FixtureRequest, world: World) -> Read:
    return world.reads[request.param]


def test_which(world: World, got: Read, request: pytest.FixtureRequest) -> None:
    assert got.name in request.node.name
    assert (
        got.version.split(".")[0].isdigit()
        and world.cluster.run("scontrol", "--version").stdout.split()[-1] == got.version
    )


def records(world: World, key: str) -> list[int]:
    """Job ids of all records of the array."""
    return [row["job_id"] for row in queue(world.cluster) if row["array_job_id"] == world.ids[key]]


def test_exactly_the_jobs_of_the_queue(world: World, got: Read) -> None:
    expected = set(world.ids.values()) | {world.ids["het"] + 1}
    assert set(got.jobs) == expected | set(records(world, "array running")) | set(records(world, "array apart"))
    assert not world.left & set(got.jobs)


STATES: dict[str, Callable[[JobRow], bool]] = {
    "running typed": lambda j: (
        (j.state, j.tres_per_node, j.tres_other, j.node_names) == ("RUNNING", gres("gpu:a100:2"), "", ("n1",))
        and j.batch and j.requeue and j.priority > 0 and j.restarts == 0 and j.start_s is not None
    ),
    "running by job": lambda j: (j.state, j.tres_per_node, j.tres_other) == ("RUNNING", "", gres("gpu:1")),
    "suspended": lambda j: (j.state, j.node_names, j.partition) == ("SUSPENDED", ("n2",), "second"),
    "two nodes": lambda j: (j.node_names, j.num_nodes, j.num_tasks) == (("n1", "n2"), 2, 2),
    "completing": lambda j: (j.state, j.node_names) == ("COMPLETING", ("n5",)),
    "hidden": lambda j: (j.state, j.partition) == ("RUNNING", "secret"),
    "requeued": lambda j: (j.state, j.restarts, j.node_names, j.num_nodes) == ("PENDING", 1, (), 1),
    "resized": lambda j: (
        (j.state, j.restarts, j.priority, j.num_nodes, j.num_tasks, j.num_cpus) == ("PENDING", 1, 0, 2, 2, 2)
        and parse_gpus(j.tres_per_node) == ("", 1)
    ),
    "held": lambda j: (
        (j.state, j.priority, j.reason, j.num_nodes, j.num_tasks, j.num_cpus) == ("PENDING", 0, "JobHeldUser", 2, 2, 6)
        and (j.start_s, j.eligible_s, j.node_names) == (None, None, ())
    ),
    "no requeue": lambda j: not j.requeue,
    "begin": lambda j: (
        (j.state, j.reason, j.tres_per_node) == ("PENDING", "BeginTime", gres("gpu"))
        and j.eligible_s is not None and 3500 < j.eligible_s - j.submit_s < 3700
    ),
    "too big": lambda j: j.state == "PENDING" and j.num_nodes == 6 and len(j.reason) > 3,
    "many partitions": lambda j: j.partition == ",".join(LONG),
    "by task": lambda j: (j.tres_per_node, parse_gpus(j.tres_other)) == ("", ("", 1)),
    "by socket": lambda j: (j.tres_per_node, j.tres_other) == ("", gres("gpu:v100:1")),
    "by job": lambda j: (j.tres_per_node, j.tres_other) == ("", gres("gpu:a100:2")),
    "array": lambda j: j.array and not j.het and (j.array_job_id, j.array_task) == (j.job_id, "0-3%2"),
    "array of one": lambda j: j.array and j.array_task == "5",
    "array running": lambda j: j.array,
    "array apart": lambda j: j.array and j.array_task == ("0-2,5" if j.merged else "0-2,5%2") and j.time_limit_s != 300,
    "het": lambda j: j.het and not j.array and (j.het_job_id, j.het_offset) == (j.job_id, 0),
    "node options": lambda j: (
        (j.req_nodes, j.tasks_per_node, j.cpus_per_task, j.min_cpus, j.num_cpus) == (("n2", "n3"), 2, 4, 8, 16)
        and (j.min_memory_mib, j.memory_per_cpu, j.memory_mib, j.time_limit_s) == (3072, False, 6144, 26 * 3600.0)
    ),
    "GPU options": lambda j: (
        (j.min_time_s, j.time_limit_s, j.nice) == (300.0, 600.0, 7)
        and ((j.cpus_per_gpu, j.memory_per_gpu_mib) == (4, 512) or NEWEST)
        and (j.oversubscribe, j.switches, j.licenses, j.dependency, j.end_s) == ("OK", 0, "", "", None)
    ),
    "CPU options": lambda j: (
        (j.min_memory_mib, j.memory_per_cpu, j.memory_mib, j.oversubscribe) == (300, True, 900, "NO")
        and (j.threads_per_core, j.sockets_cores, j.switches) == (1, "", 1)
    ),
}  # fmt: skip


@pytest.mark.parametrize("key", STATES)
def test_job(world: World, got: Read, key: str) -> None:
    row = got.jobs[world.ids[key]]
    assert STATES[key](row) or (NEWEST and got.name == "pyslurm" and key in TOTALS and row.tres_gpus > 0), row
    assert world.start_s - 2 <= row.submit_s <= time.time()
    # every other flag is off where it is not what the job is for
    assert row.array == key.startswith("array") and row.het == (key == "het")
    assert row.requeue == (key != "no requeue")


def test_second_part_of_a_heterogeneous_job(world: World, got: Read) -> None:
    assert got.jobs[world.ids["het"] + 1].het


def test_tasks_of_an_array(world: World, got: Read) -> None:
    assert sorted(got.jobs[i].state for i in records(world, "array running")) == ["PENDING", "RUNNING"]
    first = world.ids["array apart"]
    own = [got.jobs[i] for i in records(world, "array apart") if i != first]
    assert sorted((j.array_job_id, j.array_task, j.time_limit_s) for j in own) == [(first, "3", 300), (first, "4", 300)]


@pytest.mark.parametrize("key", HOSTILE)
def test_hostile_name(world: World, got: Read, key: str) -> None:
    row = got.jobs[world.ids[f"name {key}"]]
    name = os.fsencode(HOSTILE[key]).decode(errors="replace")
    assert row.name == shorten(name, NAME_BYTES)
    assert len(row.name.encode()) <= NAME_BYTES
    # nothing else of the row has moved
    assert (row.state, row.partition, row.num_nodes, row.batch) == ("PENDING", "main", 1, True)
    assert not Path("/tmp/synergy-owned").exists()


@pytest.mark.skipif(os.getuid() != 0, reason="only root submits for another user")
def test_user(world: World, got: Read) -> None:
    row, own = got.jobs[world.ids["other user"]], got.jobs[world.ids["held"]]
    assert (row.user, row.uid) == ("games", 5) and (own.user, own.uid) == ("root", 0)


def test_nodes(got: Read) -> None:
    states = {name: n.state for name, n in got.nodes.items()}
    assert states == {
        "n1": "mixed", "n2": "mixed", "n3": "mixed", "n4": "idle+drain", "n5": "idle+completing+not_responding",
        "n6": "down", "n7": "idle+not_responding",
    }  # fmt: skip
    n1 = got.nodes["n1"]
    assert n1.partitions == ("main", "second", "secret")
    assert n1.features[:2] == ("a100", "nvlink") and n1.features[-1] == "feature39" and len(n1.features) == 42
    assert parse_gpus(n1.gres) == ("a100", 4) and parse_gpus(n1.gres_used) == ("a100", 3)
    assert parse_gpus(got.nodes["n7"].gres) == ("v100", 2) and parse_gpus(got.nodes["n7"].gres_used) == ("v100", 0)
    assert got.nodes["n2"].partitions == tuple(sorted(("main", "second", *LONG)))
    assert got.nodes["n4"].reason.startswith("fan\nn9 idle éé") and len(got.nodes["n4"].reason.encode()) <= 128
    assert (n1.cpus, n1.memory_mib, n1.threads_per_core) == (64, 64000, 1) and 0 < n1.cpus_alloc < 64
    assert (n1.reason, got.nodes["n6"].reason) == ("", "broken: $(id)")


@pytest.mark.skipif(len(available()) < 2, reason="pyslurm is not installed")
def test_backends_agree(world: World) -> None:
    """Field by field, but for what DIFFERENCES lists."""
    first, second = world.reads["command line"], world.reads["pyslurm"]
    differs = {
        "JobRow.tres_per_node",
        "JobRow.tres_other",
        "JobRow.reason",
        "SlurmNodeRow.state",
        "SlurmNodeRow.gres_used",
    }
    assert set(DIFFERENCES) == differs

    def plain(row: JobRow) -> JobRow:
        task = row.array_task.partition("%")[0]  # of a row that stood for several, squeue leaves out the throttle
        if NEWEST:
            row = dataclasses.replace(row, tres_per_node=str(parse_gpus(row.tres_per_node)), tres_other="")
        return dataclasses.replace(row, reason=row.reason.replace("_", " "), array_task=task, merged=False)

    def counted(row: SlurmNodeRow) -> SlurmNodeRow:
        return dataclasses.replace(row, gres_used=re.sub(r"\(.*?\)", "", row.gres_used))

    def differ(one: JobRow | SlurmNodeRow, other: JobRow | SlurmNodeRow) -> dict[str, tuple[object, object]]:
        fields = [f.name for f in dataclasses.fields(one)]
        return {n: (a, b) for n in fields if (a := getattr(one, n)) != (b := getattr(other, n))}

    assert first.jobs.keys() == second.jobs.keys() and first.nodes.keys() == second.nodes.keys()
    assert not [(i, d) for i, j in first.jobs.items() if (d := differ(plain(j), plain(second.jobs[i])))]
    # no node here is in one of the states that differ
    assert not [(n, d) for n, row in first.nodes.items() if (d := differ(counted(row), counted(second.nodes[n])))]


def test_command_line_single_jobs(world: World) -> None:
    line = CommandLine(world.cluster.env)
    for key in (
        "running typed",
        "array",
        "array apart",
        "het",
        "many partitions",
        "name newline",
        "resized",
        "completing",
    ):
        job_id = world.ids[key]
        assert line.job(job_id) == world.reads["command line"].jobs[job_id]
    for gone in (*world.left, 4_000_000):
        assert line.job(gone) is None
    assert line.required_nodes(world.ids["running typed"]) == ("n1",)
    assert line.required_nodes(world.ids["held"]) == ()
    chosen = world.ids["node options"]
    assert line.node_lists([chosen, world.ids["held"], 4_000_000]) == {
        chosen: (("n2", "n3"), ("n1",)),
        world.ids["held"]: ((), ()),
    }
    tasks = records(world, "array apart")
    assert line.node_lists(tasks) == {i: ((), ("n2",)) for i in tasks} and len(tasks) == 3


def test_partitions(world: World) -> None:
    rows = {p.name: p for p in CommandLine(world.cluster.env).partitions()}
    assert set(rows) == {"main", "second", "secret", *LONG}
    main = rows["main"]
    assert (main.state, main.max_nodes, main.max_time_s, main.oversubscribe) == ("UP", None, None, "NO")
    assert (main.counts_memory, main.whole_nodes, main.whole_cores) == (False, False, True)
