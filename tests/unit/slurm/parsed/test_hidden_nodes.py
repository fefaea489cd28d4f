"""Cloud nodes that Slurm does not show while they are powered down."""

from __future__ import annotations

from dataclasses import replace

from synergy_core.records import Cluster, Directive, Job

from synergyd.slurm.parsed.hidden_nodes import HiddenNodes
from synergyd.slurm.parsed.rows import PartitionRow, SlurmNodeRow
from synergyd.slurm.parsed.snapshot import cluster_from_rows, job_from_row
from tests.unit.slurm.fake_slurm import row
from tests.unit.slurm.parsed.test_snapshot import KNOWN

STATIC = SlurmNodeRow("n1", "idle", "gpu:a100:4", "gpu:a100:2(IDX:0-1)", ("a100",), ("main",), "", cpus=8)
CLOUD = replace(STATIC, name="c1", state="mixed+cloud", gres_used="gpu:a100:4(IDX:0-3)", cpus_alloc=8)
MAIN = {"main": PartitionRow(name="main", nodes=("n1", "c1", "c2"), resume_timeout_s=120.0)}


def cluster(hidden: HiddenNodes, *rows: SlurmNodeRow, partitions: dict[str, PartitionRow] = MAIN) -> Cluster:
    return cluster_from_rows(hidden.with_hidden(rows, partitions), (), {}, partitions)


def test_one_that_was_shown_once_sleeps_while_it_is_not() -> None:
    hidden = HiddenNodes()
    assert [n.name for n in cluster(hidden, STATIC).nodes] == ["n1"]
    assert [n.wakeable for n in cluster(hidden, STATIC, CLOUD).nodes] == [False, False]
    asleep = cluster(hidden, STATIC).by_name["c1"]
    assert (asleep.up, asleep.wakeable, asleep.gpus, asleep.gpus_used, asleep.wake_s) == (False, True, 4, 0, 120.0)
    # taken out of slurm.conf; a static node that is gone sleeps nowhere
    assert [
        n.name for n in cluster(hidden, STATIC, partitions={"main": replace(MAIN["main"], nodes=("n1",))}).nodes
    ] == ["n1"]
    assert [n.name for n in cluster(hidden, CLOUD).nodes] == ["c1"]


def job(asked: int, **directive: int) -> Job:
    shape = replace(KNOWN.requested_shape, gpus_per_node=asked)
    known = replace(KNOWN, requested_shape=shape, directive=Directive(**directive))  # type: ignore[arg-type]
    return job_from_row(row(partition="main"), known, {}, is_paused=False)


def why(asked: int, gpus: int | None, **directive: int) -> str:
    hidden, partitions = HiddenNodes(), {"main": replace(MAIN["main"], gpus=gpus)}
    return hidden.may_need(job(asked, **directive), cluster(hidden, STATIC, partitions=partitions), partitions)


def test_a_job_that_may_need_nodes_never_shown_is_left_to_slurm() -> None:
    text = "its partition has 2 nodes that Slurm does not show while they are powered down"
    assert why(4, 12) == text  # 2 of the 4 GPUs that are shown are free
    assert why(2, 12) == ""
    assert why(4, 4) == ""  # those not shown have none
    # Slurm does not count GPUs: only where it could never start
    assert why(4, None) == "" and why(8, None, min_gpus=8) == text
    hidden = HiddenNodes()
    assert hidden.may_need(job(8, min_gpus=8), cluster(hidden, STATIC, CLOUD, replace(CLOUD, name="c2")), MAIN) == ""
