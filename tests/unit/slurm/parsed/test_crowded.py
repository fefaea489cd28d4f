"""Jobs that wait for GPUs beside Synergy's: where they are, and who gives back for them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from synergy_core.node_needs import NodeNeeds, Room
from synergy_core.records import Job, Node

from synergyd.slurm.parsed.crowded import (
    find_crowded,
    find_holders,
    find_waiting_jobs,
    limit_to_requested_size,
    who_gives_back,
)
from synergyd.slurm.parsed.rows import JobRow
from tests.unit.scheduler.builders import job, node
from tests.unit.slurm.fake_slurm import row

NODES = {"n1": ("a",), "n2": ("b",), "n3": ("c",), "n4": ("a", "c")}


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
    found = find_crowded(find_waiting_jobs([row(1, **{**asked, **changes})], set()), (), ())
    assert (set(found.partitions), set(found.accounts)) == (partitions, accounts)
    assert found.full_accounts == set(), "it has only just come"
    assert find_crowded(find_waiting_jobs([row(1, **{**asked, **changes})], set()), (), {1}).full_accounts == accounts
    assert find_waiting_jobs([row(1, **{**asked, **changes})], {1}) == [], "Synergy decides about it"


@pytest.mark.parametrize(
    ("asks", "where", "partitions"),
    [
        ("gres:gpu:1", "a", {"a", "c"}),
        ("gres:gpu:v100:1", "a", {"a", "c"}),
        ("gres:gpu:h100:1", "a", {"a"}),
        ("gres:gpu:1", "b,c", {"a", "b", "c"}),
    ],
)
def test_others_wait_for_nodes_whatever_partition_these_are_asked_in(
    asks: str, where: str, partitions: set[str]
) -> None:
    cluster = [node(n, kind="v100" if n == "n4" else "a100", partitions=p) for n, p in NODES.items()]
    found = find_crowded([waits(1, tres_per_node=asks, partition=where)], cluster, ())
    assert found.partitions == partitions
    grown = replace(job(2, asked=2, nodes=("n3",), gpus=4), partition="c")
    assert bool(found.why(grown)) == ("c" in partitions) and not found.is_of_use(grown)


@pytest.mark.parametrize(("keeps", "most"), [((), 2), (("n3",), 2), (None, 4)])
def test_what_a_job_keeps_while_others_wait(keeps: tuple[str, ...] | None, most: int) -> None:
    held = limit_to_requested_size(job(2, asked=2, nodes=("n3",), gpus=4), "others wait", keeps)
    assert held.directive is not None and held.directive.max_gpus == most, "it grows onto none of them"
    assert (held.gives_back, held.keeps) == (("others wait", keeps) if keeps is not None else ("", ()))


# -- who gives back ------------------------------------------------------------------------------------------------


def waits(job_id: int, gpus: int = 1, **changes: Any) -> JobRow:
    """A plain job that Slurm says waits for GPUs."""
    plain = {"partition": "main", "tres_per_node": f"gres:gpu:{gpus}", "reason": "Resources", "priority": 100 - job_id}
    return row(job_id, **{**plain, **changes})


def grown(job_id: int, *nodes: str, asked: int = 4, gpus: int = 4, **changes: Any) -> Job:
    return job(job_id, asked=asked, nodes=nodes, gpus=gpus, partition="main", **changes)


def full(*names: str, **changes: Any) -> list[Node]:
    """Nodes of which every GPU is in use."""
    return [replace(node(n, used=4, partitions=("main",)), **changes) for n in names]


def gives(
    waiting: list[JobRow],
    jobs: list[Job],
    nodes: list[Node],
    required: dict[int, tuple[str, ...]] | None = None,
    excluded: dict[int, tuple[str, ...]] | None = None,
    **more: Any,
) -> dict[int, tuple[str, ...]]:
    lists = {r.job_id: ((required or {}).get(r.job_id, ()), (excluded or {}).get(r.job_id, ())) for r in waiting}
    return who_gives_back(waiting, find_holders(jobs), nodes, lists, {}, more.pop("now_s", 1000.0), **more)


def test_a_job_gives_back_for_one_that_can_start_then() -> None:
    assert gives([waits(1, 4)], [grown(9, "n1", "n2")], full("n1", "n2")) == {9: ("n1",)}
    assert gives([waits(1, 2)], [grown(9, "n1", asked=2)], full("n1")) == {9: ("n1",)}


def test_it_keeps_the_nodes_that_the_other_can_not_have() -> None:
    two = [grown(9, "n1", "n2")]
    assert gives([waits(1, 4)], two, full("n1", "n2"), required={1: ("n1",)}) == {9: ("n2",)}
    assert gives([waits(1, 4)], two, full("n1", "n2"), excluded={1: ("n2",)}) == {9: ("n2",)}
    fast = [*full("n1", features=("fast",)), *full("n2")]
    assert gives([waits(1, 4, features="fast")], two, fast) == {9: ("n2",)}


@pytest.mark.parametrize(
    "one",
    [
        waits(1, 4, num_nodes=2),  # more than it has too much
        waits(1, 5),
        waits(1, 1, partition="other"),
        waits(1, 1, features="fast"),
        waits(1, 1, tres_per_node="gres:gpu:h100:1"),
        waits(1, 1, reservation="maint"),
        waits(1, 1, reason="Priority", licenses="matlab:1"),
        waits(1, 1, num_cpus=100),
    ],
)
def test_nobody_gives_back_for_one_that_could_not_start_anyway(one: JobRow) -> None:
    room = {"room": Room(16, 1000), "used": Room(16, 1000)}
    holder = grown(9, "n1", "n2", needs=NodeNeeds(cpus=16))
    assert gives([one], [holder], full("n1", "n2", **room)) == {}
    assert gives([waits(1, 4, num_cpus=16)], [holder], full("n1", "n2", **room)) == {9: ("n1",)}


@pytest.mark.parametrize(("required", "excluded"), [(("n2",), ()), ((), ("n1",)), (("n1", "n2"), ())])
def test_nobody_gives_back_for_one_that_wants_another_node(
    required: tuple[str, ...], excluded: tuple[str, ...]
) -> None:
    jobs, nodes = [grown(9, "n1", asked=2)], full("n1", "n2")
    assert gives([waits(1, 1)], jobs, nodes, {1: required}, {1: excluded}) == {}


@pytest.mark.parametrize("changes", [{"fixed": "so"}, {"paused": True}, {"gives_back": "max_gpus=2 was set"}])
def test_nobody_is_counted_on_who_does_not_shrink(changes: dict[str, Any]) -> None:
    assert gives([waits(1, 1)], [grown(9, "n1", asked=2, **changes)], full("n1")) == {}


def test_no_more_give_back_than_are_needed() -> None:
    jobs = [grown(8, "n1", asked=2), grown(9, "n2", asked=2)]
    assert gives([waits(1, 2)], jobs, full("n1", "n2")) == {8: ("n1",)}
    assert gives([waits(1, 2), waits(2, 2)], jobs, full("n1", "n2")) == {8: ("n1",), 9: ("n2",)}
    free = [*full("n1"), node("n2", partitions=("main",))]
    assert gives([waits(1, 4)], jobs[:1], free) == {}, "it starts without"
    together = [grown(8, "n1", asked=1, gpus=2), grown(9, "n1", asked=1, gpus=2)]
    assert gives([waits(1, 2)], together, full("n1")) == {8: ("n1",), 9: ("n1",)}
    uneven = [grown(9, "n1", "n2", asked=6)]
    assert gives([waits(1, 1)], uneven, full("n1", "n2")) == {9: ("n1", "n2")}, "three on each are left to it"


def test_nobody_gives_back_for_one_behind_another_that_waits_on() -> None:
    """But for one that ends before Slurm expects to start the one in front."""
    first, jobs = waits(1, 4, num_nodes=3, start_s=5000.0), [grown(9, "n1", "n2")]
    behind: dict[str, Any] = {"gpus": 4, "reason": "Priority"}
    assert gives([first, waits(2, **behind)], jobs, full("n1", "n2")) == {}
    assert gives([first, waits(2, **behind, time_limit_s=5000.0)], jobs, full("n1", "n2")) == {}
    assert gives([first, waits(2, **behind, time_limit_s=600.0)], jobs, full("n1", "n2")) == {9: ("n1",)}
    unplanned = replace(first, start_s=None)
    assert gives([unplanned, waits(2, **behind, time_limit_s=600.0)], jobs, full("n1", "n2")) == {}


def test_nobody_gives_back_nodes_of_a_reservation() -> None:
    assert gives([waits(1, 4)], [grown(9, "n1", "n2")], full("n1", "n2"), exempt={"n1", "n2"}) == {}


def test_slurm_s_order() -> None:
    rows = [waits(3), waits(1, submit_s=2.0, priority=9), waits(2, submit_s=1.0, priority=9), waits(4, priority=0)]
    assert [r.job_id for r in find_waiting_jobs(rows, ())] == [3, 2, 1]
