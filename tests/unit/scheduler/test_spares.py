"""Spare nodes: lent to jobs that can shrink, kept from jobs that start, and given to a job that lost a node."""

from __future__ import annotations

from dataclasses import replace

import pytest
from synergy_core.records import Action, Cell, Decision, Directive, Job, JobState, Node, Shape, Snapshot

from synergyd.settings import Settings
from tests.unit.scheduler.builders import Cells, cell, job, node, snapshot
from tests.unit.scheduler.epochs import decide

KEPT = Settings(spare_nodes={"gpu": 1.0})
WHOLE = cell(4.0, 1, 4)  # one node
TWO = cell(7.0, 2, 4)


def nodes(count: int = 4, down: tuple[str, ...] = ()) -> list[Node]:
    return [node(f"n{i + 1}", up=f"n{i + 1}" not in down, partitions=("gpu",)) for i in range(count)]


def decided(snap: Snapshot, cells: dict[int, Cells], settings: Settings = KEPT) -> dict[int, Decision]:
    plans = {j.job_id: next(c.plan for c in cells[j.job_id] if c.shape == j.shape) for j in snap.jobs if j.node_names}
    return {d.job_id: d for d in decide(snap, settings, cells, {}, plans)}


def in_gpu(job_id: int, *where: str, **changes: object) -> Job:
    return replace(job(job_id, nodes=where, gpus=4, partition="gpu"), **changes)  # type: ignore[arg-type]


def lost(job_id: int, names: tuple[str, ...], shape: Shape) -> Job:
    return in_gpu(job_id, lost=names, lost_shape=shape, restarts=1)


@pytest.mark.parametrize("kept, starts", [(0.0, True), (1.0, False), (0.1, False)])
def test_a_job_waits_that_would_take_the_last_spare(kept: float, starts: bool) -> None:
    fixed = [in_gpu(i, f"n{i}", directive=Directive(resize=False)) for i in (1, 2, 3)]
    snap = snapshot(nodes(), [*fixed, in_gpu(4)])
    found = decided(snap, {i: (WHOLE,) for i in (1, 2, 3, 4)}, Settings(spare_nodes={"gpu": kept} if kept else {}))
    assert found[4].action is (Action.START if starts else Action.WAIT)
    assert starts or "fewer than 1 of the 4 nodes of partition gpu would be idle or lent as spares" in found[4].why


def test_a_spare_is_lent_and_a_job_starts_beside_it() -> None:
    # what job 1 holds beyond one node can be had back
    snap = snapshot(nodes(), [in_gpu(1, "n1", "n2"), in_gpu(2, "n3", directive=Directive(resize=False)), in_gpu(3)])
    found = decided(snap, {1: (WHOLE, TWO), 2: (WHOLE,), 3: (WHOLE,)})
    assert found[3].action is Action.START


def test_a_job_of_a_size_that_leaves_no_spare_ever_is_told_so() -> None:
    snap = snapshot(nodes(2), [in_gpu(1)])
    found = decided(snap, {1: (TWO,)})
    assert found[1].action is Action.WAIT and "Can't start" in found[1].why


def test_spares_of_one_partition_are_nothing_to_another() -> None:
    others = [node("m1", partitions=("cpu",)), *nodes(1)]
    snap = snapshot(others, [job(1, partition="cpu"), in_gpu(2)])
    found = decided(snap, {1: (WHOLE,), 2: (WHOLE,)})
    assert (found[1].action, found[2].action) == (Action.START, Action.WAIT)


def test_a_job_of_two_partitions_takes_no_spare_of_one() -> None:
    others = [*nodes(1), node("n2", partitions=("gpu",)), node("m1", partitions=("cpu",))]
    both = replace(in_gpu(2), partition="gpu,cpu")
    snap = snapshot(others, [in_gpu(1, "n1", directive=Directive(resize=False)), both])
    assert decided(snap, {1: (WHOLE,), 2: (WHOLE,)})[2].node_names == ("m1",)
    full = snapshot([*others[:2], replace(others[2], gpus_used=4)], [*snap.jobs])
    assert decided(full, {1: (WHOLE,), 2: (WHOLE,)})[2].action is Action.WAIT


def test_a_job_that_lost_a_node_gets_an_idle_spare() -> None:
    snap = snapshot(nodes(4, down=("n1",)), [lost(1, ("n1",), TWO.shape), in_gpu(2, "n3")])
    found = decided(snap, {1: (WHOLE, TWO), 2: (WHOLE,)})
    assert (found[1].action, found[1].node_names) == (Action.START, ("n2", "n4"))
    assert found[1].cell is not None and found[1].cell.shape == TWO.shape
    assert found[1].why.startswith("Starts on 2 nodes x 4 a100 GPUs on n2,n4, as before it lost n1, with a spare node")
    assert found[2].action is Action.KEEP


def test_a_lent_spare_is_given_back_to_the_job_that_lost_a_node() -> None:
    # the larger goodput of job 2 would not let it shrink
    rich = cell(4.0, 1, 4), cell(40.0, 2, 4)
    snap = snapshot(nodes(4, down=("n1",)), [lost(1, ("n1",), TWO.shape), in_gpu(2, "n3", "n4", priority=1.0)])
    found = decided(snap, {1: (WHOLE, TWO), 2: rich})
    assert (found[1].action, found[1].node_names) == (Action.START, ("n2", "n4"))
    assert "which job 2 gives back" in found[1].why
    assert (found[2].action, found[2].node_names) == (Action.RESIZE, ("n3",))
    assert found[2].why.startswith("Gives back 4 GPUs: lent as a spare, and job 1 has lost n1.")


def test_no_more_nodes_are_given_back_than_are_spares() -> None:
    many = cell(4.0, 1, 4), cell(40.0, 3, 4)
    three = cell(9.0, 3, 4)
    snap = snapshot(nodes(5, down=("n1",)), [lost(1, ("n1",), three.shape), in_gpu(2, "n3", "n4", "n5")])
    settings = replace(KEPT, spare_nodes={"gpu": 2.0})
    assert decided(snap, {1: (three,), 2: many}, settings)[1].action is Action.START
    found = decided(snap, {1: (three,), 2: many})
    assert found[1].action is Action.WAIT and "Gives back" not in found[2].why


def test_jobs_that_lose_nodes_at_once_get_no_more_than_are_spares_together() -> None:
    pair: tuple[Cell, ...] = cell(4.0, 1, 4), cell(40.0, 2, 4)
    both = [lost(1, ("n1",), WHOLE.shape), lost(2, ("n2",), WHOLE.shape)]
    snap = snapshot(nodes(6, down=("n1", "n2")), [*both, in_gpu(3, "n3", "n4"), in_gpu(4, "n5", "n6")])
    offers = {1: (WHOLE,), 2: (WHOLE,), 3: pair, 4: pair}
    found = decided(snap, offers)
    assert [found[i].action for i in (1, 2)] == [Action.START, Action.WAIT]
    assert sum("Gives back" in found[i].why for i in (3, 4)) == 1
    found = decided(snap, offers, replace(KEPT, spare_nodes={"gpu": 2.0}))
    assert [found[i].action for i in (1, 2)] == [Action.START, Action.START]


def test_two_lenders_give_together() -> None:
    pair: tuple[Cell, ...] = cell(4.0, 1, 4), cell(40.0, 2, 4)
    snap = snapshot(nodes(5, down=("n1",)), [lost(1, ("n1",), TWO.shape), in_gpu(2, "n2", "n3"), in_gpu(3, "n4", "n5")])
    found = decided(snap, {1: (TWO,), 2: pair, 3: pair}, replace(KEPT, spare_nodes={"gpu": 2.0}))
    assert (found[1].action, found[1].node_names) == (Action.START, ("n3", "n5"))
    assert [found[i].node_names for i in (2, 3)] == [("n2",), ("n4",)]


def test_nobody_gives_back_what_is_of_no_use() -> None:
    # job 9 holds nodes of another partition; what job 2 gives alone is too little, and job 3 gives enough
    pair: tuple[Cell, ...] = cell(4.0, 1, 4), cell(40.0, 2, 4)
    much: tuple[Cell, ...] = cell(4.0, 1, 4), cell(80.0, 3, 4)
    others = [node("m1", partitions=("cpu",)), node("m2", partitions=("cpu",))]
    running = [in_gpu(2, "n2", "n3"), in_gpu(3, "n4", "n5", "n6"), replace(in_gpu(9, "m1", "m2"), partition="cpu")]
    snap = snapshot([*nodes(6, down=("n1",)), *others], [lost(1, ("n1",), TWO.shape), *running])
    found = decided(snap, {1: (TWO,), 2: pair, 3: much, 9: pair}, replace(KEPT, spare_nodes={"gpu": 3.0}))
    assert found[1].action is Action.START
    assert [i for i in (2, 3, 9) if "Gives back" in found[i].why] == [3]


def test_no_more_gpus_are_given_back_than_spares_have() -> None:
    half: tuple[Cell, ...] = cell(3.0, 1, 2), cell(40.0, 1, 4)
    spread = cell(9.0, 4, 2)
    running = {i: in_gpu(i, f"n{i}") for i in (2, 3, 4, 5)}
    snap = snapshot(nodes(5, down=("n1",)), [lost(1, ("n1",), spread.shape), *running.values()])
    found = decided(snap, {1: (spread,), **dict.fromkeys(running, half)})
    assert found[1].action is Action.WAIT and all("Gives back" not in found[i].why for i in running)


def test_limits_hold_for_a_job_with_a_spare() -> None:
    limited = replace(KEPT, account_limits={"a": 8})
    lost_one = replace(lost(1, ("n1",), TWO.shape), account="a")
    # it counts as what runs does
    snap = snapshot(nodes(6, down=("n1",)), [lost_one, replace(in_gpu(2), account="a")])
    found = decided(snap, {1: (TWO,), 2: (TWO,)}, limited)
    assert (found[1].action, found[2].action) == (Action.START, Action.WAIT)
    # and nobody gives back for what the limit does not allow
    rich = cell(4.0, 1, 4), cell(40.0, 2, 4)
    running = [replace(in_gpu(2, "n2", "n3"), account="a"), replace(in_gpu(3, "n4", "n5"), account="b")]
    snap = snapshot(nodes(6, down=("n1",)), [lost_one, *running])
    found = decided(snap, {1: (TWO,), 2: (TWO,), 3: rich}, limited)
    assert found[1].action is Action.WAIT and "Gives back" not in found[3].why


def test_spares_of_a_qos_are_for_its_jobs() -> None:
    settings = Settings(spare_nodes={"qos/high": 1.0})
    for qos, action in (("high", Action.START), ("low", Action.WAIT)):
        job_1 = replace(lost(1, ("n1",), TWO.shape), qos=qos)
        rich = cell(4.0, 1, 4), cell(40.0, 2, 4)
        snap = snapshot(nodes(4, down=("n1",)), [job_1, in_gpu(2, "n3", "n4")])
        found = decided(snap, {1: (TWO,), 2: rich}, settings)
        assert found[1].action is action, found[1].why
        assert job_1.state is JobState.PENDING
