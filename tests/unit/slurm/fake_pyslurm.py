"""pyslurm's two shapes over the same records of slurmctld, each field made as its own source makes it.

`old`: pyslurm 22.5.3 (pyslurm.pyx, classes job and node, tables). `new`: 25.11.2 (core/job/job.pyx, core/node.pyx, db/tres.pyx, objects).
A module file whose text is `module(shape)` stands in for the package, also in a process of its own.
"""

from __future__ import annotations

import re
import time
from types import SimpleNamespace
from typing import Any

NO_VAL16, NO_VAL, INFINITE = 0xFFFE, 0xFFFFFFFE, 0xFFFFFFFF
NO_VAL64, PER_CPU = 0xFFFFFFFFFFFFFFFE, 1 << 63
JOB: dict[str, Any] = dict(
    job_id=7, name="train", user_id=0, partition="main", job_state="PENDING", state_reason="Resources", num_nodes=1, num_cpus=8,
    num_tasks=1, tres_alloc_str=None, tres_req_str="cpu=8,mem=64000M,node=1,billing=8,gres/gpu=4,gres/gpu:a100=4",
    tres_per_node="gres/gpu:a100:4", tres_per_job=None, tres_per_socket=None, tres_per_task=None, nodes=None, submit_time=1000,
    start_time=0, eligible_time=1060, end_time=0, restart_cnt=0, requeue=1, priority=4294, batch_flag=1, account="chem", qos="normal",
    features=None, resv_name=None, pn_min_memory=64000, mem_per_tres=None, cpus_per_task=1, cpus_per_tres=None, pn_min_cpus=1,
    ntasks_per_node=0, threads_per_core=NO_VAL16, sockets_per_node=NO_VAL16, cores_per_socket=NO_VAL16, pn_min_tmp_disk=0, max_nodes=0,
    req_nodes=None, shared="OK", contiguous=0, core_spec=NO_VAL16, licenses=None, req_switch=0, time_limit=60, time_min=0, nice=0,
    dependency=None, array_job_id=0, array_task_id=NO_VAL, array_task_str=None, array_max_tasks=0, het_job_id=0, het_job_offset=NO_VAL,
)  # fmt: skip
RUNNING = dict(
    job_state="RUNNING", state_reason="None", nodes="n[1-2]", num_nodes=2, start_time=1100, end_time=4700,
    tres_alloc_str="cpu=16,mem=125G,node=2,billing=16,gres/gpu=8,gres/gpu:a100=8",
)  # fmt: skip
JOBS = [
    {**JOB},
    {**JOB, **RUNNING, "job_id": 8, "restart_cnt": 2, "req_nodes": "n1,n2"},
    {**JOB, "job_id": 9, "job_state": "COMPLETED"},
    {**JOB, "job_id": 10, "array_job_id": 10, "array_task_str": "0-3%2", "array_max_tasks": 2},
    {**JOB, **RUNNING, "job_id": 11, "array_job_id": 10, "array_task_id": 0},
    {**JOB, "job_id": 12, "het_job_id": 12, "het_job_offset": 0, "partition": "main,second"},
    {**JOB, "job_id": 13, "het_job_id": 12, "het_job_offset": 1},
    {**JOB, "job_id": 14, "time_limit": INFINITE, "start_time": 1060, "end_time": 1060 + INFINITE, "priority": 0, "nice": -5,
     "user_id": 4_000_000, "requeue": 0, "batch_flag": 0},
    {**JOB, "job_id": 15, "pn_min_memory": 2000 | PER_CPU, "tres_req_str": "cpu=8,mem=16000M,node=1,gres/gpu=4", "features": "ib&fast",
     "tres_per_node": "gres/gpu:4", "licenses": "matlab:2,abaqus:1", "req_switch": 1, "shared": "NO", "contiguous": 1,
     "dependency": "afterok:3:4", "time_min": 30, "core_spec": 2, "sockets_per_node": 2, "threads_per_core": 1, "resv_name": "week"},
]  # fmt: skip
NODE: dict[str, Any] = dict(
    name="n1", state="IDLE", gres="gpu:a100:4(S:0-1)", gres_used="gpu:a100:0(IDX:N/A)", alloc_tres_fmt_str=None, features="a100,ib",
    partitions="main,second", reason=None, cpus=64, alloc_cpus=0, real_memory=64000, alloc_memory=0, threads=1, tmp_disk=0,
    version="22.05.8",
)  # fmt: skip
NODES = [
    NODE,
    {**NODE, "name": "n2", "state": "MIXED+DRAIN", "alloc_cpus": 8, "alloc_memory": 32000, "reason": "fan",
     "gres_used": "gpu:a100:2(IDX:0-1)", "alloc_tres_fmt_str": "cpu=8,mem=32000M,gres/gpu=2,gres/gpu:a100=2"},
    {**NODE, "name": "n3", "gres": None, "gres_used": None, "features": None, "version": None},
    {**NODE, "name": "n4", "partitions": None},
]  # fmt: skip


def _or_none(value: int, bits: int = 16) -> int | None:
    return None if value in ((NO_VAL16, 0xFFFF) if bits == 16 else (NO_VAL, INFINITE)) else value


def _split(text: str | None, by: str = ",") -> list[str] | None:
    return text.split(by) if text else None


def old_job(r: dict[str, Any], *, leaks: bool = False) -> dict[str, Any]:
    """`Job_dict`. `leaks`: of a pyslurm that Cython 3 has made, where `value is NO_VAL16` is never true (24.11.0, 25.5)."""
    array = r["array_job_id"] and (r["array_task_str"] or r["array_task_id"] != NO_VAL)
    limit = {NO_VAL: "Partition_Limit", INFINITE: "UNLIMITED"}.get(r["time_limit"], r["time_limit"])
    return {
        **r,
        "array_job_id": r["array_job_id"] if array else None,
        "array_task_id": None if not array or r["array_task_str"] else r["array_task_id"],
        "het_job_id": r["het_job_id"] or None,
        "het_job_offset": r["het_job_offset"] if r["het_job_id"] else None,
        "contiguous": bool(r["contiguous"]),
        "requeue": bool(r["requeue"]),
        "core_spec": r["core_spec"] if leaks else _or_none(r["core_spec"]),
        "cores_per_socket": r["cores_per_socket"] if leaks else _or_none(r["cores_per_socket"]),
        "sockets_per_node": r["sockets_per_node"] if leaks else _or_none(r["sockets_per_node"]),
        "threads_per_core": r["threads_per_core"] if leaks else _or_none(r["threads_per_core"]),
        "cpus_per_task": "N/A" if r["cpus_per_tres"] else r["cpus_per_task"],
        "features": _split(r["features"]) or [],
        "req_nodes": _split(r["req_nodes"]) or [],
        "licenses": dict((n, int(c)) for n, c in (x.split(":") for x in _split(r["licenses"]) or ())),
        "pn_min_memory": r["pn_min_memory"] & ~PER_CPU,
        "shared": {"NO": "0", "YES": "1"}.get(r["shared"], r["shared"]),
        "time_limit": limit,
    }


def old_node(r: dict[str, Any]) -> dict[str, Any]:
    """`Host_dict`."""
    used = re.split(r",(?![^(]*\))", r["gres_used"]) if r["gres_used"] else None
    lists = {"gres": _split(r["gres"]) or [], "partitions": _split(r["partitions"]) or []}
    return {**r, **lists, "gres_used": used, "alloc_mem": r["alloc_memory"]}


def _parse(value: int, none: int = NO_VAL, *, zero: bool = False, on_noval: int | None = None) -> Any:
    """`u32_parse` and its like; zero is no value unless it is said to be one."""
    return on_noval if value == none or (value == 0 and not zero) else value


def _tres(text: str | None) -> Any:
    """`TrackableResources.from_cstr`: only what has an equals sign, memory in MiB."""
    if not text or "=" not in text:
        return None
    found = SimpleNamespace(cpu=None, mem=None, node=None, billing=None, gres={})
    for name, value in (x.split("=") for x in text.split(",") if "=" in x):
        count = int(value) if value.isdigit() else int(value[:-1]) * {"M": 1, "G": 1024}[value[-1]]
        if name.startswith("gres/"):
            found.gres[name.removeprefix("gres/")] = SimpleNamespace(count=count)
        else:
            setattr(found, name, SimpleNamespace(count=count))
    return found


def _gres(text: str | None) -> dict[str, int]:
    """`cstr.to_gres_dict`."""
    found = {}
    for item in (text or "").split(","):
        words = item.replace("gres:", "").partition("(")[0].split(":")
        if item:
            found[":".join(words[:-1]) if len(words) > 1 else item] = int(words[-1]) if len(words) > 1 else 1
    return found


class Job:
    """`core/job/job.pyx`: properties, of which one may fail by itself."""

    def __init__(self, r: dict[str, Any]) -> None:
        self.r = r
        per_cpu = r["pn_min_memory"] & ~PER_CPU if r["pn_min_memory"] != NO_VAL64 else 0
        by_cpu = r["pn_min_memory"] != NO_VAL64 and bool(r["pn_min_memory"] & PER_CPU)
        waiting = r["array_task_str"]
        values = dict(
            id=r["job_id"], name=r["name"], user_id=r["user_id"], user_name={0: "root"}.get(r["user_id"], str(r["user_id"])),
            partition=r["partition"], state=r["job_state"], state_reason=r["state_reason"], num_nodes=_parse(r["num_nodes"]),
            cpus=_parse(r["num_cpus"], on_noval=1), ntasks=_parse(r["num_tasks"], on_noval=1), gres_per_node=_gres(r["tres_per_node"]),
            allocated_tres=_tres(r["tres_alloc_str"]), requested_tres=_tres(r["tres_req_str"]), allocated_nodes=r["nodes"],
            submit_time=_parse(r["submit_time"]), start_time=_parse(r["start_time"]), eligible_time=_parse(r["eligible_time"]),
            end_time=_parse(r["end_time"]), requeue_count=_parse(r["restart_cnt"], NO_VAL16, on_noval=0), is_requeueable=bool(r["requeue"]),
            priority=_parse(r["priority"], zero=True), is_batch_job=bool(r["batch_flag"]), array_id=_parse(r["array_job_id"]),
            array_task_id=_parse(r["array_task_id"]), array_tasks_parallel=_parse(r["array_max_tasks"]),
            array_tasks_waiting=waiting and waiting.partition("%")[0], heterogeneous_id=_parse(r["het_job_id"], 0),
            heterogeneous_offset=_parse(r["het_job_offset"], 0), account=r["account"], qos=r["qos"],
            constraints=_split(r["features"]) or [], reservation=r["resv_name"], memory_per_cpu=_parse(per_cpu) if by_cpu else None,
            memory_per_node=None if by_cpu else _parse(per_cpu), cpus_per_task=None if r["cpus_per_tres"] else _parse(r["cpus_per_task"]),
            min_cpus_per_node=_parse(r["pn_min_cpus"]), ntasks_per_node=_parse(r["ntasks_per_node"], NO_VAL16),
            threads_per_core=_parse(r["threads_per_core"], NO_VAL16), sockets_per_node=_parse(r["sockets_per_node"], NO_VAL16),
            cores_per_socket=_parse(r["cores_per_socket"], NO_VAL16), temporary_disk_per_node=_parse(r["pn_min_tmp_disk"]),
            max_nodes=_parse(r["max_nodes"]), required_nodes=r["req_nodes"], resource_sharing=r["shared"],
            requires_contiguous_nodes=bool(r["contiguous"]), cores_reserved_for_system=_or_none(r["core_spec"]),
            threads_reserved_for_system=None, licenses=_split(r["licenses"]) or [], required_switches=_parse(r["req_switch"]),
            time_limit=None if r["time_limit"] == INFINITE else _parse(r["time_limit"]), time_limit_min=_parse(r["time_min"]),
            nice=r["nice"],
        )  # fmt: skip
        self.__dict__.update(values)

    @property
    def memory_per_gpu(self) -> int | None:
        if self.r["mem_per_tres"] and self.r["pn_min_memory"] == NO_VAL64:
            return int(self.r["mem_per_tres"].split(":")[2])
        return None

    @property
    def cpus_per_gpu(self) -> int | None:
        if not self.r["cpus_per_tres"] or self.r["cpus_per_task"] != NO_VAL16:
            return None
        return int(self.r["cpus_per_tres"].split(":")[2])

    @property
    def dependencies(self) -> dict[str, Any] | None:
        if not self.r["dependency"]:
            return None
        kind, *ids = self.r["dependency"].split(":")
        return {"after": [], "afterok": [], "singleton": False, "satisfy": "all", kind: [int(x) for x in ids]}


def new_node(r: dict[str, Any]) -> Any:
    """`core/node.pyx`."""
    used = {
        k.replace("gres/", ""): int(v) for k, v in re.findall(r"(gres/[^=,]*)=(\d+)", r["alloc_tres_fmt_str"] or "")
    }
    return SimpleNamespace(
        name=r["name"], state=r["state"], configured_gres=_gres(r["gres"]), allocated_gres=used, reason=r["reason"],
        active_features=_split(r["features"]) or [], partitions=_split(r["partitions"]) or [], total_cpus=r["cpus"],
        allocated_cpus=r["alloc_cpus"], real_memory=r["real_memory"] or None, allocated_memory=r["alloc_memory"],
        threads_per_core=_parse(r["threads"], NO_VAL16), temporary_disk=_parse(r["tmp_disk"]), slurm_version=r["version"],
    )  # fmt: skip


class RPCError(Exception):
    """As pyslurm's own."""


def module(shape: str, **says: Any) -> str:
    """The text of a pyslurm.py. `says`: version, jobs, nodes, tres (AccountingStorageTRES), first (statements before all)."""
    return f"{says.pop('first', '')}\nfrom tests.unit.slurm.fake_pyslurm import fill\nfill(globals(), {shape!r}, **{says!r})\n"


def fill(
    names: dict[str, Any],
    shape: str,
    *,
    version: str = "22.5.3",
    jobs: list[dict[str, Any]] = JOBS,
    nodes: list[dict[str, Any]] = NODES,
    tres: str = "cpu,mem,energy,node,billing,fs/disk,vmem,pages,gres/gpu",
    fails: str = "",
    takes_s: float = 0.0,
) -> None:
    """Puts the package's names into a module's. `fails`: the text of each RPC's error; `takes_s`: each one's time."""

    def rpc(answer: dict[Any, Any]) -> dict[Any, Any]:
        print("to standard output, as 25.11.2 does of TRES that it does not know")
        time.sleep(takes_s)
        if fails:
            raise ValueError(fails, 1) if shape == "old" else RPCError(fails)
        return answer

    numbers = tuple(int(x) for x in (version + ".0.0").split(".")[:3])
    names.update(__version__=version, slurm_api_version=lambda: numbers)
    if shape != "new":
        table = {r["job_id"]: old_job(r, leaks=shape == "mixed") for r in jobs}
        names["job"] = lambda: SimpleNamespace(get=lambda: rpc(table))
    if shape == "old":
        hosts = {r["name"]: old_node(r) for r in nodes}
        names["node"] = lambda: SimpleNamespace(get=lambda: rpc(hosts))
    else:
        config = SimpleNamespace(accounting_storage_tres=tres.split(","))
        names["Jobs"] = SimpleNamespace(load=lambda: rpc({r["job_id"]: Job(r) for r in jobs}))
        names["Nodes"] = SimpleNamespace(load=lambda: rpc({r["name"]: new_node(r) for r in nodes}))
        names["slurmctld"] = SimpleNamespace(Config=SimpleNamespace(load=lambda: config))
