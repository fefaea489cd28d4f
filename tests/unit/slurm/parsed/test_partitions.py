"""Partitions' limits and defaults out of scontrol's text: lines as Slurm 22.05 prints them."""

from __future__ import annotations

from synergyd.slurm.parsed.partitions import partition_rows
from synergyd.slurm.parsed.rows import PartitionRow

LINE = (
    "PartitionName={name} AllowGroups=ALL AllowAccounts={accounts} AllowQos=ALL AllocNodes=ALL Default=YES QoS=N/A DefaultTime={default} "
    "DisableRootJobs=NO ExclusiveUser=NO GraceTime=60 Hidden=NO MaxNodes={nodes} MaxTime={time} MinNodes=0 LLN=NO MaxCPUsPerNode=UNLIMITED "
    "Nodes=n[1-3] PriorityJobFactor=1 PriorityTier=3 RootOnly=NO ReqResv=NO OverSubscribe={share} OverTimeLimit=NONE PreemptMode=REQUEUE "
    "State={state} TotalCPUs=192 TotalNodes=3 SelectTypeParameters={select} JobDefaults={job} {memory} MaxMemPerNode=UNLIMITED "
    "TRES=cpu=192,mem=187.50G,node=3,billing=192\n"
)
PLAIN = {
    "name": "main", "accounts": "ALL", "default": "NONE", "nodes": "UNLIMITED", "time": "UNLIMITED", "share": "NO", "state": "UP",
    "select": "NONE", "job": "(null)", "memory": "DefMemPerNode=UNLIMITED",
}  # fmt: skip
CONFIG = "SelectType              = select/cons_tres\nSelectTypeParameters    = {}\nDefMemPerCPU            = {}\n"


def row(config: str = CONFIG.format("CR_CORE", "UNLIMITED"), **changes: str) -> PartitionRow:
    (only,) = partition_rows("\n" + LINE.format(**{**PLAIN, **changes}), config)
    return only


def test_a_partition_without_limits() -> None:
    assert row() == PartitionRow(name="main", grace_s=60.0, nodes=("n1", "n2", "n3"))


def test_times_to_power_up_and_gpus() -> None:
    config = CONFIG.format("CR_CORE", "UNLIMITED") + "ResumeTimeout           = 15 sec\n"
    assert (row().resume_timeout_s, row(config).resume_timeout_s, row(config).gpus) == (None, 15.0, None)
    line = LINE.format(**PLAIN).replace("node=3,", "node=3,gres/gpu=12,gres/gpu:a100=8,")
    for word, timeout_s in (("300", 300.0), ("GLOBAL", 15.0)):
        (found,) = partition_rows(f"{line.strip()} ResumeTimeout={word}", config)
        assert (found.resume_timeout_s, found.gpus) == (timeout_s, 12)
    (odd,) = partition_rows(line.replace("n[1-3]", "n[3-"), config)
    assert odd.nodes == ()


def test_limits_and_defaults() -> None:
    found = row(
        accounts="a,b", default="00:10:00", nodes="2", time="1-00:00:00", state="DRAIN", memory="DefMemPerNode=500",
        job="DefCpuPerGPU=4,DefMemPerGPU=1000",
    )  # fmt: skip
    assert (found.allow_accounts, found.max_nodes) == (("a", "b"), 2)
    assert (found.max_time_s, found.state, found.def_mem_per_node_mib) == (86400.0, "DRAIN", 500)
    assert (found.def_cpus_per_gpu, found.def_mem_per_gpu_mib) == (4, 1000)


def test_what_it_does_not_say_is_the_cluster_s() -> None:
    config = CONFIG.format("CR_CORE_MEMORY", "100")
    assert (row(config).counts_memory, row(config).def_mem_per_cpu_mib) == (True, 100)
    own = row(config, select="CR_SOCKET", memory="DefMemPerNode=500")
    assert (own.counts_memory, own.def_mem_per_cpu_mib, own.def_mem_per_node_mib) == (False, None, 500)
    assert row(CONFIG.format("CR_CPU", "0")).whole_cores is False


def test_whole_nodes() -> None:
    assert row(share="EXCLUSIVE").whole_nodes and not row(share="FORCE:4").whole_nodes
    assert row("SelectType = select/linear\n").whole_nodes
    newer = [row(share=f"NO Exclusive={word}") for word in ("NO", "NODE", "TOPO", "USER")]  # 26.05
    assert [(p.whole_nodes, p.exclusive_user) for p in newer] == [
        (False, False), (True, False), (True, False), (False, True),
    ]  # fmt: skip


def test_several_and_none() -> None:
    text = LINE.format(**PLAIN) + LINE.format(**{**PLAIN, "name": "second"})
    assert [r.name for r in partition_rows(text, "")] == ["main", "second"]
    assert partition_rows("No partitions in the system\n", "") == ()
