"""Rows out of squeue's columns."""

from __future__ import annotations

import pytest

from synergyd.slurm.columns import job_row

JOB = {
    "JobID": "7", "ArrayJobID": "7", "ArrayTaskID": "N/A", "HetJobID": "N/A", "HetJobOffset": "N/A",
    "State": "PENDING", "Reason": "Priority", "UserID": "1000", "UserName": "ann",
    "Partition": "main", "NumNodes": "1", "NumCPUs": "8", "NumTasks": "1", "tres-alloc": "cpu=16,mem=2G,node=2,billing=16,gres/gpu=4",
    "tres-per-node": "gres:gpu:2", "tres-per-job": "N/A", "tres-per-socket": "N/A", "tres-per-task": "N/A", "NodeList": "",
    "SubmitTime": "1700000000", "StartTime": "1700000900", "EligibleTime": "1700000500", "RestartCnt": "3", "Requeue": "1",
    "PriorityLong": "4294901759", "BatchFlag": "1",
    "Account": "chem", "QOS": "high", "Feature": "ib&fast", "Reservation": "(null)", "Name": "train",
    "MinMemory": "1024M", "mem-per-tres": "N/A", "cpus-per-tres": "N/A", "cpus-per-task": "8", "MinCpus": "8", "NTPerNode": "0",
    "SCT": "*:*:*", "MinTmpDisk": "0", "MaxNodes": "2", "ReqNodes": "", "OverSubscribe": "OK", "Contiguous": "0", "CoreSpec": "N/A",
    "Licenses": "(null)", "ReqSwitch": "0", "TimeLimit": "UNLIMITED", "EndTime": "N/A", "MinTime": "0:00", "Dependency": "(null)",
    "Nice": "0",
}  # fmt: skip
NODE = {
    "NodeList": "n1", "StateComplete": "idle", "Gres": "gpu:a100:4", "GresUsed": "gpu:a100:0(IDX:N/A)", "Features": "a100,ib",
    "PartitionName": "main", "Reason": "none", "CPUsState": "24/40/0/64", "Memory": "64000", "AllocMem": "1024", "Threads": "2",
    "Disk": "9000", "Version": "22.05.8",
}  # fmt: skip


@pytest.mark.parametrize(
    "changes, attribute, value",
    [
        ({"tres-alloc": "", "NumNodes": "4-8"}, "num_nodes", 4),
        ({"tres-alloc": "cpu=2K,node=1K"}, "num_nodes", 1024),
        ({"tres-alloc": "cpu=2K,node=1"}, "num_cpus", 2048),
        ({"tres-alloc": "cpu=1.5K,node=1"}, "num_cpus", 1536),
        ({"NumTasks": "N/A"}, "num_tasks", 0),
        ({"StartTime": "N/A"}, "start_s", None),
        ({"EligibleTime": "N/A"}, "eligible_s", None),
        ({"SubmitTime": "Unknown"}, "submit_s", 0.0),
        ({"ArrayTaskID": "1-4%2"}, "array", True),
        ({"HetJobID": "7"}, "het", True),
        ({"Requeue": "0"}, "requeue", False),
        ({"BatchFlag": "0"}, "batch", False),
        ({"BatchFlag": "2"}, "batch", True),  # requeued after its node was lost
        ({"tres-per-node": "N/A"}, "tres_per_node", ""),
        ({"tres-per-job": "gres:gpu:8", "tres-per-task": "gres:gpu:1"}, "tres_other", "gres:gpu:8,gres:gpu:1"),
        ({"NodeList": "n[1-3]"}, "node_names", ("n1", "n2", "n3")),
        ({"PriorityLong": "0"}, "priority", 0),
        ({}, "memory_mib", 2048),
        ({}, "min_memory_mib", 1024),
        ({}, "memory_per_cpu", False),  # 2 nodes x 1 GiB
        ({"MinMemory": "128M"}, "memory_per_cpu", True),  # 16 CPUs x 128 MiB
        ({"tres-alloc": "cpu=2,mem=62.50G,node=2", "MinMemory": "32000M"}, "memory_per_cpu", False),
        ({"mem-per-tres": "gres:gpu:512"}, "memory_per_gpu_mib", 512),
        ({"cpus-per-tres": "gres:gpu:4"}, "cpus_per_gpu", 4),
        ({}, "cpus_per_task", 8),
        ({}, "min_cpus", 8),
        ({"NTPerNode": "3"}, "tasks_per_node", 3),
        ({"SCT": "*:*:1"}, "threads_per_core", 1),
        ({"SCT": "*:*:1"}, "sockets_cores", ""),
        ({"SCT": "2:8:*"}, "sockets_cores", "2:8"),
        ({"MinTmpDisk": "3072M"}, "tmp_disk_mib", 3072),
        ({}, "max_nodes", 2),
        ({"ReqNodes": "n[2-3]"}, "req_nodes", ("n2", "n3")),
        ({"OverSubscribe": "NO"}, "oversubscribe", "NO"),
        ({"Contiguous": "1"}, "contiguous", True),
        ({"CoreSpec": "2"}, "core_spec", 2),
        ({"Licenses": "matlab:3"}, "licenses", "matlab:3"),
        ({"ReqSwitch": "1"}, "switches", 1),
        ({}, "time_limit_s", None),
        ({"TimeLimit": "3-04:06:00"}, "time_limit_s", 3 * 86400 + 4 * 3600 + 360.0),
        ({"TimeLimit": "10:00"}, "time_limit_s", 600.0),
        ({"EndTime": "1700001000"}, "end_s", 1700001000.0),
        ({"State": "EXPEDITING"}, "state", "PENDING"),
        ({"MinTime": "5:00"}, "min_time_s", 300.0),
        ({"Dependency": "afterok:1(unfulfilled)"}, "dependency", "afterok:1(unfulfilled)"),
        ({"ArrayJobID": "5", "ArrayTaskID": "1-9%2"}, "array_task", "1-9%2"),
        ({"ArrayJobID": "5", "ArrayTaskID": "1-9%2"}, "array_job_id", 5),
        ({}, "array_job_id", 0),
        ({"HetJobID": "5", "HetJobOffset": "2"}, "het_job_id", 5),
        ({"HetJobID": "5", "HetJobOffset": "2"}, "het_offset", 2),
        ({"Nice": "-5"}, "nice", -5),
    ],
)
def test_fields(changes: dict[str, str], attribute: str, value: object) -> None:
    assert getattr(job_row({**JOB, **changes}), attribute) == value
