"""Each option of sbatch's manual page: a job with the #SYNERGY line gets what a plain job gets, also after an update of its size.

The table is docs/sbatch-options.toml. Each row is submitted as a plain job and with the line, and once more to grow where its
resources are a node's. All are held at first, and read in one call. Then the daemon's own writer gives them their sizes, they run, and
say in which environment.
"""

from __future__ import annotations

import gzip
import re
import time
import tomllib
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from synergy_core.records import Shape

from synergyd.control.resize.events import CarriedOut
from synergyd.control.resize.instructions import Target, Update
from synergyd.daemon import heartbeat
from synergyd.daemon.job_registry import JobRegistry
from synergyd.slurm.actuator import Actuator
from synergyd.slurm.command_line import CommandLine
from tests.paths import ROOT
from tests.throwaway.slurm import NodeGroup, SlurmCluster
from tests.throwaway.slurm_output import release
from tests.throwaway.synergy import hook

pytestmark = [
    pytest.mark.slurm,
    pytest.mark.timeout(600),
    pytest.mark.skipif(release() != (22, 5), reason="the table is of the manual page of 22.05"),
]
TABLE: dict[str, dict[str, Any]] = tomllib.loads((ROOT / "docs" / "sbatch-options.toml").read_text())
MANUAL = Path("/usr/share/man/man1/sbatch.1.gz")
TOGETHER = "together"  # all rows that are not submitted alone
ALONE = sorted(name for name, row in TABLE.items() if "try" in row and row.get("alone"))

# what differs between any two jobs, and what is Synergy's to write
JOBS_OWN = {
    "JobId", "JobName", "Priority", "Reason", "StartTime", "EligibleTime", "SubmitTime", "AccrueTime", "EndTime",
    "PreemptEligibleTime", "LastSchedEval", "RunTime", "NodeList", "BatchHost", "SchedNodeList", "Scheduler",
    "Command", "AdminComment", "Requeue", "SuspendTime", "SecsPreSuspend", "AllocNode:Sid", "ArrayJobId", "Deadline",
    "Dependency", "asked", "cpus", "max_gpus", "begin", "time", "nodes", "resize",
}  # fmt: skip
# asked for by node, and with one task on each
REWRITTEN = {"CPUs/Task", "NtasksPerN:B:S:C", "TresPerJob", "TresPerTask", "TresPerNode", "NtasksPerTRES"}
SCALED = {"NumNodes", "NumTasks", "NumCPUs", "TRES", "ReqNodeList"}
# the job's own; those that sbatch writes for srun alone, and that no later size would meet; what one task a node makes of them
OWN_VARIABLES = re.compile(
    r"HOSTNAME$|SLURMD_NODENAME$|SLURM_(ARRAY_)?JOB_?ID$|SLURM_ARRAY_JOB_ID$|SLURM_.*NODELIST$|SLURM_TASK_PID$|SLURM_TOPOLOGY_ADDR$|"
    r"SLURM_JOB_GPUS$|GPU_DEVICE_ORDINAL$|CUDA_VISIBLE_DEVICES$|ROCR_VISIBLE_DEVICES$|ZE_AFFINITY_MASK$|SYNERGY_(STATE_DIR|JOB_SECRET)$|_$|"
    r"SLURM_GPUS(_PER_NODE|_PER_TASK)?$|SLURM_NPROCS$|SLURM_NTASKS(_PER_NODE)?$|SLURM_TASKS_PER_NODE$|SLURM_NTASKS_PER_GPU$"
)
LIMITS = re.compile(r"pending signals|resident|max memory")


@dataclass
class Trio:
    """The jobs of one row: their ids (0: refused), what sbatch said, and what was shown of them at the end."""

    options: list[str]
    ids: dict[str, int] = field(default_factory=dict)
    said: dict[str, str] = field(default_factory=dict)
    submitted: dict[str, dict[str, str]] = field(default_factory=dict)
    ran: dict[str, dict[str, str]] = field(default_factory=dict)
    seen: dict[str, dict[str, str]] = field(default_factory=dict)


def shown(cluster: SlurmCluster) -> dict[int, dict[str, str]]:
    """Return all jobs as scontrol shows them, by id."""
    jobs = {}
    for line in cluster.run("scontrol", "show", "job", "--oneliner").stdout.splitlines():
        words = [word.partition("=") for word in re.split(r" +(?=[A-Za-z][A-Za-z/:_]*=)", line.strip())]
        row = {key: value.strip() for key, equals, value in words if equals}
        jobs[int(row["JobId"])] = row | {"NumNodes": row["NumNodes"].partition("-")[0]}
    return jobs


def differences(one: dict[str, str], other: dict[str, str], besides: set[str]) -> dict[str, tuple[str, str]]:
    names = sorted((one.keys() | other.keys()) - JOBS_OWN - besides)
    return {n: (one.get(n, ""), other.get(n, "")) for n in names if one.get(n, "") != other.get(n, "")}


def script(cluster: SlurmCluster, output: Path, line: str) -> str:
    return (
        f"#!/bin/bash\n#SBATCH --gres=gpu:1 --output=/dev/null --error=/dev/null --hold --time=30 --job-name=job\n{line}"
        f"(echo pwd=$PWD; ulimit -a; printf '\\0'; env -0) > {output} 2>&1\n"
        "exit\nsrun synergy-launch train.py\n"
    )


def environment_of(path: Path) -> dict[str, str]:
    """Return what the script saw: its variables, its folder and limits."""
    head, *variables = path.read_bytes().decode(errors="replace").split("\0")
    pairs = (v.partition("=")[::2] for v in variables if v)
    limits = {line[:30]: line[30:] for line in head.splitlines() if not LIMITS.search(line)}
    return {name: value for name, value in pairs if not OWN_VARIABLES.match(name)} | limits


@pytest.fixture(scope="module")
def trios() -> Iterator[dict[str, Trio]]:
    made = SlurmCluster([NodeGroup("cpu", 5, 32, "fast")], cpus_per_node=200, counts_memory=True)
    made.job_submit = hook(made.state_dir)
    made.slurm_conf = (
        "Licenses=matlab:100", "DefMemPerCPU=10", "GresTypes=gpu,nic", "PartitionName=other Nodes=ALL",
        "MailProg=/bin/true", f"#SYNERGY StateDir={made.state_dir}",
    )  # fmt: skip
    with made as cluster:
        reserved = (
            "ReservationName=mine",
            "Nodes=n5",
            "StartTime=now",
            "Duration=60",
            "Users=root",
            "Flags=IGNORE_JOBS",
        )
        cluster.run("scontrol", "create", "reservation", *reserved)
        heartbeat.write(cluster.state_dir, time.time(), 40)
        found = submit_all(cluster)
        give_sizes(cluster, found)
        run_all(cluster, found)
        yield found


def submit_all(cluster: SlurmCluster) -> dict[str, Trio]:
    """Submit a plain job, one with the line and, where the row says so, one that is to grow; read them as sbatch left them."""
    together = [w for row in TABLE.values() if "try" in row and not row.get("alone") for w in row["try"].split()]
    trios = {TOGETHER: Trio(together)} | {name: Trio(TABLE[name]["try"].split()) for name in ALONE}
    for name, trio in trios.items():
        kinds = ["plain", "ours", *["grown"] * bool(TABLE.get(name, {}).get("scales"))]
        for kind in kinds:
            path = cluster.folder / f"{name}-{kind}.sh"
            path.write_text(
                script(cluster, cluster.folder / f"{name}-{kind}.env", "#SYNERGY max_gpus=8\n" * (kind != "plain"))
            )
            done = cluster.run("sbatch", "--parsable", *trio.options, str(path), check=False)
            trio.ids[kind] = int(done.stdout) if done.returncode == 0 else 0
            trio.said[kind] = done.stderr.strip()
    jobs = shown(cluster)
    for trio in trios.values():
        trio.submitted = {kind: jobs[job_id] for kind, job_id in trio.ids.items() if job_id}
    return trios


def give_sizes(cluster: SlurmCluster, trios: dict[str, Trio]) -> None:
    """Update each job that the daemon would decide about, as it does: to the size that it has, or to twice the nodes."""
    command_line = CommandLine(cluster.env)
    registry = JobRegistry(command_line, 40)
    registry.learn(command_line.jobs(), {})
    actuator = Actuator(command_line, cluster.state_dir, "", registry.submitted, names=registry.names)
    for name, trio in trios.items():
        for kind in ("ours", "grown"):
            known = registry.submitted.get(trio.ids.get(kind, 0))
            if known is None or known.directive is None:
                continue
            nodes = known.requested_shape.nodes * (2 if kind == "grown" else 1)
            target = Target(Shape(known.requested_shape.gpu_type or "cpu", nodes, known.requested_shape.gpus_per_node))
            answer = actuator.carry_out(Update(trio.ids[kind], target, 900))
            assert isinstance(answer, CarriedOut), (name, kind, answer)


def run_all(cluster: SlurmCluster, trios: dict[str, Trio]) -> None:
    ids = [job_id for trio in trios.values() for job_id in trio.ids.values() if job_id]
    names = ",".join(map(str, ids))
    cluster.run("scontrol", "update", f"JobId={names}", "StartTime=now", check=False)
    cluster.run("scontrol", "release", names, check=False)
    waits = ("PENDING", "RUNNING", "COMPLETING", "CONFIGURING")

    def over() -> bool:
        jobs = shown(cluster)
        return not any(jobs[i]["JobState"] in waits and jobs[i]["Reason"] != "BadConstraints" for i in ids)

    with suppress(RuntimeError):  # one that does not run is unlike its plain job
        cluster.wait_for(over, 180, "all jobs to run")
    jobs = shown(cluster)
    for name, trio in trios.items():
        for kind, job_id in trio.ids.items():
            path = cluster.folder / f"{name}-{kind}.env"
            if job_id:
                trio.ran[kind] = jobs[job_id]
            if path.exists():
                trio.seen[kind] = environment_of(path)


def test_the_table_has_all_options_of_the_manual_page() -> None:
    if not MANUAL.exists():
        pytest.skip("sbatch's manual page is not installed")
    text = (
        gzip.decompress(MANUAL.read_bytes())
        .decode()
        .replace("\\-", "-")
        .partition('.SH "OPTIONS"')[2]
        .partition('.SH "INPUT ENV')[0]
    )
    options = set(re.findall(r"^\.TP\n\\fB(?:-\w(?:\\fR, \\fB|, ))?--([a-z-]+)", text, re.MULTILINE))
    assert options >= {"account", "mincpus", "wrap"}
    assert options - TABLE.keys() == set() and TABLE.keys() - options == set()


@pytest.mark.parametrize("name", [TOGETHER, *ALONE])
def test_a_job_with_the_line_gets_what_a_plain_one_gets(trios: dict[str, Trio], name: str) -> None:
    trio, at = trios[name], TABLE.get(name, {}).get("at", "same")
    if at == "refused":
        assert not any(trio.ids.values()) and trio.said["plain"] == trio.said["ours"]
        return
    assert all(trio.ids.values()), trio.said
    words = trio.said["ours"].replace(trio.said["plain"], "").strip()
    assert ("keeps the job at its size" in words) == (at == "kept") and len(words.splitlines()) == (at == "kept"), words
    besides = REWRITTEN if at == "rewritten" else set()
    assert differences(trio.submitted["plain"], trio.submitted["ours"], besides) == {}
    assert differences(trio.ran["plain"], trio.ran["ours"], besides) == {}
    assert trio.seen.get("plain") == trio.seen.get("ours")


@pytest.mark.parametrize("name", [name for name in ALONE if TABLE[name].get("scales")])
def test_each_node_has_as_much_at_another_size(trios: dict[str, Trio], name: str) -> None:
    plain, grown = trios[name].ran["plain"], trios[name].ran["grown"]
    assert differences(plain, grown, SCALED | (REWRITTEN if TABLE[name].get("at") == "rewritten" else set())) == {}
    assert [int(grown[key]) for key in ("NumNodes", "NumCPUs")] == [
        2 * int(plain[key]) for key in ("NumNodes", "NumCPUs")
    ]
    one, two = (dict(word.split("=") for word in job["TRES"].split(",")) for job in (plain, grown))
    assert {key: float(value.rstrip("M")) * 2 for key, value in one.items()} == {
        key: float(value.rstrip("M")) for key, value in two.items()
    }
