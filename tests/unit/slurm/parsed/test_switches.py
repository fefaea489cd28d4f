"""Jobs under few leaf switches."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from synergy_core.records import Cluster, Directive, Job, JobState, Node, Shape

from synergyd.slurm.parsed.needs import placement_obstacle
from synergyd.slurm.parsed.snapshot import SubmittedJob, job_from_row
from synergyd.slurm.parsed.switches import Leaves
from tests.unit.slurm.fake_slurm import row


def job(job_id: int = 1, nodes: int = 1, **changes: Any) -> Job:
    known = SubmittedJob(Directive(), "", Shape("", nodes, 4), 1)
    found = job_from_row(row(job_id, switches=1, tres_per_node="gres:gpu:4"), known, {}, is_paused=False, topology=True)
    return replace(found, **changes)


def cluster(**used: int) -> Cluster:
    """Leaf a with nodes a0, a1, and leaf b with b0 to b2, of four GPUs each."""
    names = ("a0", "a1", "b0", "b1", "b2")
    return Cluster(tuple(Node(n, "a100", 4, used.get(n, 0), partitions=("main",), leaf=n[0]) for n in names))


B, A = ("a0", "a1"), ("b0", "b1", "b2")  # what is excluded from a job in leaf b, and in leaf a


@pytest.mark.parametrize(
    ("used", "changes", "excluded"),
    [
        ({}, {}, B),
        ({"b0": 4, "b1": 4}, {}, A),
        ({"b0": 3, "b1": 3, "b2": 3, "a0": 4}, {}, A),  # five GPUs, but no node with four
        ({n: 4 for n in ("a0", "a1", "b0", "b1", "b2")}, {}, B),  # all are busy: where most can be made free
        ({}, {"exclude": ("b0", "b1")}, tuple(sorted((*A,)))),
        ({"a0": 4}, {"state": JobState.RUNNING, "node_names": ("a0",)}, A),
    ],
)
def test_a_job_sees_the_leaf_where_it_fits_best(
    used: dict[str, int], changes: dict[str, Any], excluded: tuple[str, ...]
) -> None:
    assert set(Leaves(cluster(**used)).keep_in_one_leaf(job(**changes), 1).exclude) == {
        *excluded,
        *changes.get("exclude", ()),
    }


def test_jobs_leave_each_other_room() -> None:
    leaves = Leaves(cluster())
    chosen = [leaves.keep_in_one_leaf(job(i, nodes=2), 1).exclude for i in range(3)]
    assert chosen == [B, A, B]


def test_as_many_leaves_as_there_are_bind_nobody() -> None:
    assert (
        Leaves(cluster()).keep_in_one_leaf(job(), 2).exclude
        == ()
        == Leaves(cluster()).keep_in_one_leaf(job(), 0).exclude
    )


def test_a_running_job_on_more_leaves_keeps_them() -> None:
    running = job(state=JobState.RUNNING, node_names=("a0", "b0"))
    assert Leaves(cluster()).keep_in_one_leaf(running, 1).exclude == ()


def test_what_no_leaf_could_hold_is_slurms() -> None:
    left = Leaves(cluster()).keep_in_one_leaf(job(nodes=4), 1)
    assert left.directive is None and "no 1 leaf switch has 4 nodes for it (--switches)" in left.directive_error
    assert Leaves(cluster()).keep_in_one_leaf(job(nodes=3), 1).directive is not None


def test_without_a_topology_it_is_slurms() -> None:
    assert "(--switches)" in placement_obstacle(row(switches=1)) and placement_obstacle(row(switches=1), True) == ""
