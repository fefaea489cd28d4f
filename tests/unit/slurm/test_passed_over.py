"""Who has been passed by jobs without a directive."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from synergyd.slurm.parsed.snapshot import crowded, held_to_asked, passed_over
from tests.unit.scheduler.builders import job, node
from tests.unit.slurm.fake_slurm import row

NODES = {"n1": ("a",), "n2": ("b",), "n3": ("c",), "n4": ("a", "c")}


def test_a_later_plain_job_with_gpus_of_the_same_partition_passes_those_that_wait() -> None:
    ours = row(1, state="PENDING", submit_s=100.0, priority=5, partition="a,b")
    other = row(2, state="RUNNING", submit_s=101.0, partition="b", tres_per_node="gres:gpu:1", node_names=("n2",))
    assert passed_over([ours, other], {1}, 200.0, {}, NODES) == {1}
    assert passed_over([ours, other], {1, 2}, 200.0, {}, NODES) == frozenset()
    assert passed_over([ours, other], {1}, 100.0, {}, NODES) == frozenset(), "it has only just come"


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
    assert passed_over([row(1, **ours), row(2, **other)], {1}, 200.0, {}, NODES) == frozenset()


def test_one_of_another_partition_passes_those_of_its_nodes() -> None:
    ours = row(1, state="PENDING", submit_s=100.0, priority=5, partition="a")
    other = row(2, state="RUNNING", submit_s=101.0, partition="c", tres_per_node="gres:gpu:1", node_names=("n4",))
    assert passed_over([ours, other], {1}, 200.0, {}, NODES) == {1}


@pytest.mark.parametrize(
    ("changes", "partitions", "accounts"),
    [
        ({"reason": "Resources"}, {"a", "b"}, set()),
        ({"reason": "(Priority)"}, {"a", "b"}, set()),
        ({"reason": "AssocGrpGRES"}, set(), {"chem"}),
        ({"reason": "AssocGrpNodeLimit"}, set(), {"chem"}),
        ({"reason": "AssocGrpGRESRunMinutes"}, set(), {"chem"}),
        ({"reason": "AssocGrpJobsLimit"}, set(), set()),  # no size of others is in its way
        ({"reason": "AssocGrpGRESMinutes"}, set(), set()),  # used up, whatever others hold
        ({"reason": "AssocGrpWallLimit"}, set(), set()),
        ({"reason": "Dependency"}, set(), set()),
        ({"reason": "Resources", "priority": 0}, set(), set()),
        ({"reason": "Resources", "state": "RUNNING"}, set(), set()),
        ({"reason": "Resources", "tres_per_node": ""}, set(), set()),
    ],
)
def test_where_others_wait_for_gpus(changes: dict[str, Any], partitions: set[str], accounts: set[str]) -> None:
    asked = {"state": "PENDING", "priority": 5, "partition": "a,b", "account": "chem", "tres_per_node": "gres:gpu:1"}
    found = crowded([row(1, **{**asked, **changes})], set(), ())
    assert (set(found.partitions), set(found.accounts)) == (partitions, accounts)
    assert crowded([row(1, **{**asked, **changes})], {1}, ()) == type(found)(), "Synergy decides about it"


@pytest.mark.parametrize(
    ("asks", "where", "nodes", "partitions"),
    [
        ("gres:gpu:1", "a", {"n1", "n4"}, {"a", "c"}),
        ("gres:gpu:v100:1", "a", {"n4"}, {"a", "c"}),
        ("gres:gpu:h100:1", "a", set(), {"a"}),
        ("gres:gpu:1", "b,c", {"n2", "n3", "n4"}, {"a", "b", "c"}),
    ],
)
def test_others_wait_for_nodes_whatever_partition_these_are_asked_in(
    asks: str, where: str, nodes: set[str], partitions: set[str]
) -> None:
    cluster = [node(n, kind="v100" if n == "n4" else "a100", partitions=p) for n, p in NODES.items()]
    waits = row(1, state="PENDING", priority=5, partition=where, tres_per_node=asks, reason="Resources")
    found = crowded([waits], set(), cluster)
    assert (set(found.nodes), set(found.partitions)) == (nodes, partitions)
    grown = replace(job(2, asked=2, nodes=("n3",), gpus=4), partition="c")
    held = held_to_asked(grown, found.why(grown), found.of_use(grown)) if found.why(grown) else grown
    assert bool(held.gives_back) == ("n3" in nodes)
    most = held.directive.max_gpus if held.directive else None
    assert most == (None if "c" not in partitions else 2 if "n3" in nodes else 4), "it grows onto none of them"


@pytest.mark.parametrize(
    ("changes", "nodes"),
    [
        ({"reason": "Priority"}, {"n1", "n2"}),
        (
            {"reason": "None"},
            set(),
        ),  # Slurm has not looked at it: with SchedulerParameters=defer it may start a second later
        ({"reason": ""}, set()),
        ({"req_nodes": ("n2",)}, {"n2"}),
        ({"req_nodes": ("n2",), "num_nodes": 2}, {"n1", "n2"}),  # and any other
    ],
)
def test_nobody_shrinks_for_a_job_that_would_not_gain_by_it(changes: dict[str, Any], nodes: set[str]) -> None:
    asked = {"state": "PENDING", "priority": 5, "partition": "a", "tres_per_node": "gres:gpu:1", "reason": "Resources"}
    cluster = [node(n, kind="a100", partitions=("a",)) for n in ("n1", "n2")]
    others = crowded([row(1, **{**asked, **changes})], set(), cluster)
    assert (set(others.nodes), set(others.partitions)) == (nodes, {"a"})
    grown = replace(job(2, asked=2, nodes=("n1",), gpus=4), partition="a")
    held = held_to_asked(grown, others.why(grown), others.of_use(grown))
    assert bool(held.gives_back) == ("n1" in nodes)


def test_a_job_that_takes_any_node_counts_beside_one_that_requires_some() -> None:
    asked = {"state": "PENDING", "priority": 5, "partition": "a", "tres_per_node": "gres:gpu:1", "reason": "Resources"}
    cluster = [node(n, kind="a100", partitions=("a",)) for n in ("n1", "n2", "n3")]
    rows = [row(1, **asked, req_nodes=("n2",)), row(2, **asked, req_nodes=("n3",))]
    assert crowded(rows, set(), cluster).nodes == {"n2", "n3"}
    assert crowded([*rows, row(3, **asked)], set(), cluster).nodes == {"n1", "n2", "n3"}
