"""Who has been passed by jobs without a directive."""

from __future__ import annotations

from typing import Any

import pytest

from synergyd.slurm.parsed.snapshot import find_overtaken_jobs
from tests.unit.slurm.fake_slurm import row

NODES = {"n1": ("a",), "n2": ("b",), "n3": ("c",), "n4": ("a", "c")}


def test_a_later_plain_job_with_gpus_of_the_same_partition_passes_those_that_wait() -> None:
    ours = row(1, state="PENDING", submit_s=100.0, priority=5, partition="a,b")
    other = row(2, state="RUNNING", submit_s=101.0, partition="b", tres_per_node="gres:gpu:1", node_names=("n2",))
    assert find_overtaken_jobs([ours, other], {1}, 200.0, {}, NODES) == {1}
    assert find_overtaken_jobs([ours, other], {1, 2}, 200.0, {}, NODES) == frozenset()
    assert find_overtaken_jobs([ours, other], {1, 2}, 200.0, {}, NODES, by_ours=True) == {1}
    assert find_overtaken_jobs([ours, other], {1}, 100.0, {}, NODES) == frozenset(), "it has only just come"


@pytest.mark.parametrize(
    ("mine", "others"),
    [
        ({"state": "RUNNING"}, {}),
        ({"priority": 0}, {}),
        ({"submit_s": 101.5}, {}),
        ({}, {"state": "PENDING"}),
        ({}, {"partition": "c", "node_names": ("n3",)}),
        ({}, {"tres_per_node": ""}),
    ],
)
def test_and_no_others(mine: dict[str, Any], others: dict[str, Any]) -> None:
    ours = {"state": "PENDING", "submit_s": 100.0, "priority": 5, "partition": "a", **mine}
    other = {
        "state": "RUNNING",
        "submit_s": 101.0,
        "partition": "a",
        "tres_per_node": "gres:gpu:1",
        "node_names": ("n1",),
        **others,
    }
    assert find_overtaken_jobs([row(1, **ours), row(2, **other)], {1}, 200.0, {}, NODES) == frozenset()


def test_one_of_another_partition_passes_those_of_its_nodes() -> None:
    ours = row(1, state="PENDING", submit_s=100.0, priority=5, partition="a")
    other = row(2, state="RUNNING", submit_s=101.0, partition="c", tres_per_node="gres:gpu:1", node_names=("n4",))
    assert find_overtaken_jobs([ours, other], {1}, 200.0, {}, NODES) == {1}
