"""Which memory checkpoints count, and which one a run goes on from."""

from __future__ import annotations

import pytest
from synergy_launch.launcher.memory.generations import (
    Generation,
    Ledger,
    choose_generation,
    is_worth_keeping,
    next_node,
)

NODES = ("n1", "n2", "n3", "n4")


def at(step: int, run: int = 0, nodes: tuple[str, ...] = NODES) -> Generation:
    return Generation(step=step, run=run, nodes=nodes)


def counting(ledger: Ledger) -> list[Generation]:
    return list(ledger.complete)


def test_each_part_lies_on_the_next_node_too() -> None:
    assert [next_node(NODES, node) for node in NODES] == ["n2", "n3", "n4", "n1"]
    assert at(5).holders("n4") == ("n4", "n1")
    assert next_node(("n1",), "n1") == "n1"


def test_one_counts_when_every_part_is_held_twice() -> None:
    ledger = Ledger()
    assert [ledger.add_part(at(10), node) for node in ("n1", "n2", "n2", "n4")] == [False] * 4
    assert counting(ledger) == []
    assert ledger.add_part(at(10), "n3") and counting(ledger) == [at(10)]
    assert not ledger.add_part(at(10), "n3"), "once"


def test_the_last_two_are_kept() -> None:
    ledger = Ledger()
    for step in (10, 20, 30):
        for node in NODES:
            ledger.add_part(at(step), node)
    assert counting(ledger) == [at(20), at(30)]
    ledger.discard()
    assert counting(ledger) == []


def test_two_runs_go_on_from_one() -> None:
    ledger = Ledger()
    for node in NODES:
        ledger.add_part(at(10), node)
    ledger.note_offer(at(10))
    assert ledger.offerable == (at(10),), "the failure after it may have nothing to do with it"
    ledger.note_offer(at(10))
    assert not ledger.offerable and counting(ledger) == [at(10)]
    for node in NODES:
        ledger.add_part(at(20, 2), node)
    assert ledger.offerable == (at(20, 2),)


def test_a_late_part_of_an_older_one_does_not_displace_the_one_under_way() -> None:
    ledger = Ledger()
    for node in NODES[:3]:
        ledger.add_part(at(20), node)
    assert not ledger.add_part(at(10), "n4") and ledger.add_part(at(20), "n4")


def test_a_later_run_begins_anew_at_an_earlier_step() -> None:
    ledger, fewer = Ledger(), ("n1", "n3")
    ledger.add_part(at(40), "n1")
    ledger.add_part(at(25, 1, fewer), "n1")
    assert ledger.add_part(at(25, 1, fewer), "n3") and counting(ledger) == [at(25, 1, fewer)]
    assert not ledger.add_part(at(25, 1, fewer), "n2"), "no node of that run"


@pytest.mark.parametrize(
    ("lost", "after_step", "step"),
    [
        ((), 0, 30),
        (("n2",), 0, 30),
        (("n2", "n4"), 0, 30),  # no neighbours
        (("n2", "n3"), 0, None),  # both copies of the part of n2
        (("n4", "n1"), 0, None),
        (("n2",), 29, 30),
        (("n2",), 30, None),  # as new as on disk
    ],
)
def test_the_latest_with_all_parts_is_chosen(lost: tuple[str, ...], after_step: int, step: int | None) -> None:
    choice = choose_generation((at(20), at(30)), [node for node in NODES if node not in lost], after_step)
    assert (choice[0].step if choice else None) == step
    if choice is not None:
        assert choice[1] == {
            node: tuple(holder for holder in at(30).holders(node) if holder not in lost) for node in NODES
        }


def test_an_older_one_does_where_the_parts_of_the_latest_are_lost() -> None:
    earlier, latest = at(20, 0), at(30, 1, ("n2", "n3"))
    choice = choose_generation((earlier, latest), ["n1", "n4", "n2"], 0)
    assert choice is not None and choice[0] == latest
    choice = choose_generation((at(20, 0, ("n1", "n4")), latest), ["n1", "n4"], 0)
    assert choice is not None and choice[0].step == 20


def test_what_no_failure_can_need_is_removed() -> None:
    acknowledged = [(0, 10), (0, 20), (1, 15)]
    keys = [(0, 10), (0, 20), (0, 25), (1, 15), (1, 18), (2, 3)]
    assert [key for key in keys if is_worth_keeping(key, acknowledged)] == [(0, 20), (1, 15), (1, 18), (2, 3)]
    assert is_worth_keeping((0, 10), []), "nothing counts yet"
