"""What a job takes of each node, by its options and its partitions' defaults."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from synergy_core.node_needs import NodeNeeds, Room

from synergyd.slurm.parsed.needs import needs_of, open_partitions, other_gres, placement_obstacle
from synergyd.slurm.parsed.partition_cpus import cpu_caps, with_caps
from synergyd.slurm.parsed.rows import PartitionRow, SlurmNodeRow
from tests.unit.slurm.fake_slurm import row

COUNTED = PartitionRow(name="main", counts_memory=True)


def on(changes: dict[str, Any], gpus: int = 2, threads: int = 1, **limits: Any) -> Room:
    """Of one node with 1000 MiB; eight CPUs a node unless the partition or the job says more."""
    partition = PartitionRow(name="main", counts_memory=True, **limits)
    return needs_of(row(**changes), changes.get("num_cpus", 8), [partition]).room_for(gpus, threads, 1000)


@pytest.mark.parametrize(
    "changes, limits, room",
    [
        ({"min_memory_mib": 300}, {}, Room(8, 300)),  # --mem
        ({"min_memory_mib": 30, "memory_per_cpu": True}, {}, Room(8, 240)),
        ({"min_memory_mib": 30, "num_cpus": 1}, {"def_mem_per_cpu_mib": 30}, Room(1, 30)),
        ({"memory_per_gpu_mib": 50}, {}, Room(8, 100)),
        ({"memory_per_gpu_mib": 50, "min_memory_mib": 7}, {}, Room(8, 100)),  # the default of a CPU does not count then
        ({}, {"def_mem_per_gpu_mib": 40}, Room(8, 80)),
        ({}, {}, Room(8, 1000)),  # no --mem and no default: all of it
        ({"cpus_per_gpu": 6, "min_memory_mib": 1}, {}, Room(12, 1)),
        ({"cpus_per_gpu": 2, "min_memory_mib": 1}, {}, Room(8, 1)),
        ({"min_memory_mib": 1}, {"def_cpus_per_gpu": 5}, Room(10, 1)),
        ({"min_cpus": 20, "min_memory_mib": 1}, {}, Room(20, 1)),
        ({"tasks_per_node": 3, "cpus_per_task": 4, "min_memory_mib": 1}, {}, Room(12, 1)),
        ({"tres_per_node": "gres:gpu:2,gres:nic:1", "min_memory_mib": 1}, {}, Room(8, 1, (("nic", 1),))),
    ],
)
def test_what_slurm_charges(changes: dict[str, Any], limits: dict[str, Any], room: Room) -> None:
    assert on(changes, **limits) == room


def test_cores_and_their_threads() -> None:
    assert on({"num_cpus": 7, "min_memory_mib": 1}, threads=2).cpus == 8, "whole cores"
    assert on({"num_cpus": 7, "min_memory_mib": 1, "threads_per_core": 1}, threads=2).cpus == 14


def test_memory_that_slurm_does_not_count_must_be_there_all_the_same() -> None:
    needs = needs_of(row(min_memory_mib=300), 8, [PartitionRow(name="main")])
    assert (needs.room_for(2).memory_mib, needs.total_memory_mib, needs.whole_memory) == (0, 300, False)


def test_whole_nodes() -> None:
    for word in ("NO", "USER"):
        assert needs_of(row(oversubscribe=word), 8, []).whole_nodes
    assert needs_of(row(), 8, [COUNTED, PartitionRow(name="x", whole_nodes=True)]).whole_nodes
    assert not needs_of(row(oversubscribe="YES"), 8, [COUNTED]).whole_nodes


def test_limits_of_a_node() -> None:
    strict = PartitionRow(name="x", max_cpus_per_node=10, max_mem_per_node_mib=500)
    assert (needs_of(row(), 8, [COUNTED, strict]).max_cpus, needs_of(row(), 8, [strict]).max_memory_mib) == (10, 500)
    assert needs_of(row(), 8, []) == NodeNeeds(cpus=8)


@pytest.mark.parametrize(
    ("groups", "uid", "names"),
    [
        (frozenset({"physics", "users"}), 1000, ("main", "x")),
        (frozenset({"users"}), 1000, ("x",)),
        (frozenset[str](), 1000, ("x",)),
        (None, 1000, ("main", "x")),
        (frozenset[str](), 0, ("main", "x")),
    ],
)
def test_groups_that_a_partition_allows(groups: frozenset[str] | None, uid: int, names: tuple[str, ...]) -> None:
    """As slurmctld does, which lets root in anywhere; a user whom this machine does not know is not shut out."""
    partitions = {"main": PartitionRow(name="main", allow_groups=("physics", "chemistry"))}
    job = row(partition="main,x", uid=uid)
    assert open_partitions(job, 1, partitions, groups) == (names, "")
    shut = open_partitions(row(uid=uid), 1, partitions, groups)[1]
    assert ("none of ann's groups is allowed" in shut) == ("main" not in names)


@pytest.mark.parametrize(
    ("changes", "flags", "names"),
    [
        ({"time_limit_s": 600.0}, frozenset[str](), ("main",)),
        ({"time_limit_s": 180.0}, frozenset[str](), ("short", "main")),
        ({"time_limit_s": 600.0, "min_time_s": 120.0}, frozenset[str](), ("short", "main")),
        ({"time_limit_s": 600.0, "min_time_s": 240.0}, frozenset[str](), ("main",)),
        ({"time_limit_s": None}, frozenset[str](), ("short", "main")),  # the partition's own
        ({"time_limit_s": 600.0}, frozenset({"PartitionTimeLimit", "OverPartQOS"}), ("short", "main")),
        ({"time_limit_s": 600.0}, None, ("short", "main")),
    ],
)
def test_partitions_whose_max_time_is_too_short(
    changes: dict[str, Any], flags: frozenset[str] | None, names: tuple[str, ...]
) -> None:
    partitions = {"short": PartitionRow(name="short", max_time_s=180.0), "main": PartitionRow(name="main")}
    assert open_partitions(row(partition="short,main", **changes), 1, partitions, None, flags) == (names, "")
    why = open_partitions(row(partition="short", **changes), 1, partitions, None, flags)[1]
    assert ("MaxTime=3 min" in why) == ("short" not in names)


def test_a_qos_comes_over_a_partitions_most_nodes() -> None:
    partitions = {"main": PartitionRow(name="main", max_nodes=1)}
    assert open_partitions(row(), 2, partitions, None, frozenset({"PartitionMaxNodes"})) == (("main",), "")
    assert "MaxNodes=1" in open_partitions(row(), 2, partitions, None, frozenset())[1]


CAPPED = {"main": PartitionRow(name="main", max_cpus_per_node=24), "cpu": PartitionRow(name="cpu")}


def machine(alloc: int = 0, partitions: tuple[str, ...] = ("main", "cpu")) -> SlurmNodeRow:
    return SlurmNodeRow("n1", "mixed", "gpu:a100:4", "", (), partitions, "", cpus=64, cpus_alloc=alloc)


def test_cpus_that_a_partition_may_have_of_a_node() -> None:
    ours = row(state="RUNNING", node_names=("n1",), num_cpus=16)
    other = row(2, partition="cpu", state="RUNNING", node_names=("n1", "n2"), num_cpus=40, tres_per_node="")
    assert cpu_caps([machine(36)], [ours, other], CAPPED) == {"n1": 44}, "8 of its 24 are free"
    assert cpu_caps([machine(60)], [ours, replace(other, num_cpus=88)], CAPPED) == {"n1": 64}, "4 CPUs are free"
    assert cpu_caps([machine(20)], [other, row()], CAPPED) == {"n1": 44}, "all 24 are free"
    (shown,) = with_caps([machine(36)], {"n1": 44})
    assert (shown.cpus, shown.cpus_alloc) == (44, 36)
    assert with_caps([machine(36)], {}) == (machine(36),)


def test_where_partitions_differ_the_loosest_counts() -> None:
    both = [row(), row(2, partition="cpu")]
    assert cpu_caps([machine()], both, CAPPED) == {}
    strict = CAPPED | {"cpu": PartitionRow(name="cpu", max_cpus_per_node=8)}
    assert cpu_caps([machine()], both, strict) == {"n1": 24}
    assert cpu_caps([machine(partitions=("cpu",))], both, strict) == {"n1": 8}
    assert cpu_caps([machine()], [row(tres_per_node="")], strict) == {}, "no job wants its GPUs"


def test_other_gres() -> None:
    assert other_gres("gpu:a100:4(S:0-1),nic:ib:2,nic:1,nvme") == {"nic": 3, "nvme": 1}
    assert other_gres("bandwidth:lustre:no_consume:4G,mem:4K") == {"mem": 4096}
    assert other_gres("") == other_gres("gres:gpu:2") == {}


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({}, ""),
        ({"features": "ib"}, ""),
        ({"features": "ib&fast"}, ""),
        ({"features": "ib|fast|slow"}, ""),
        ({"features": "ib&fast|slow"}, "--constraint=ib&fast|slow is more than"),
        ({"features": "[rack1|rack2]"}, "--constraint=[rack1|rack2] is more than"),
        ({"features": "ib*2"}, "--constraint=ib*2 is more than"),
        ({"features": "ib&(fast|slow)"}, ""),
        ({"licenses": "matlab:3"}, "licences (matlab:3)"),
        ({"switches": 1}, "at most 1 leaf switch (--switches)"),
        ({"contiguous": True}, "--contiguous"),
        ({"core_spec": 2}, "--core-spec"),
        ({"sockets_cores": "2:8"}, "sockets and cores (2:8)"),
        ({"reservation": "maint_7"}, ""),
    ],
)
def test_what_is_beyond_placing(changes: dict[str, Any], says: str) -> None:
    found = placement_obstacle(row(**changes))
    assert says in found and bool(found) == bool(says)
