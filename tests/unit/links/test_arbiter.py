"""The arbiter's state machine, and the forecast of what shared links cost."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from synergyd.links.arbiter import (
    ArbiterState,
    ArbiterTerms,
    ArbiterTick,
    Event,
    JobJoined,
    JobLeft,
    SendAsked,
    SendDone,
    SendGrant,
    step,
    wake_s,
)
from synergyd.links.disciplines import Discipline, discipline_named
from synergyd.links.model import Link, Topology
from synergyd.links.slowdown import Traffic, slowdowns
from synergyd.sim.contention.engine import Engine
from synergyd.sim.contention.machine import Machine
from synergyd.sim.contention.workload import JobSpec

LINK = Link(1.0, 0.5)  # 1 ms/MB alone, threshold 1/3
TOPOLOGY = Topology(nic=LINK)


def terms(name: str = "srsf-1") -> ArbiterTerms:
    return ArbiterTerms(discipline_named(name), TOPOLOGY, bound_s=0.2, lost_s=1.0)


def play(events: Sequence[tuple[float, Event]], how: ArbiterTerms) -> tuple[ArbiterState, list[tuple[float, int, str]]]:
    """The state in the end, and every grant with its time."""
    state, found = ArbiterState(), []
    for now, event in events:
        state, grants = step(state, event, now, how)
        found += [(now, g.job_id, g.why) for g in grants]
    return state, found


TWO: list[tuple[float, Event]] = [(0.0, JobJoined(1, ("a", "b"), 8, 100.0)), (0.0, JobJoined(2, ("b", "c"), 2, 100.0))]


def test_granted_at_once_when_nothing_contends() -> None:
    state, grants = play([*TWO, (1.0, SendAsked(1, 30.0)), (1.03, SendDone(1)), (1.03, SendAsked(2, 30.0))], terms())
    assert grants == [(1.0, 1, "rule"), (1.03, 2, "rule")]
    assert wake_s(state, terms()) is None


def test_who_is_unknown_or_on_one_node_is_never_held_up() -> None:
    events: list[tuple[float, Event]] = [
        *TWO,
        (0.0, SendAsked(1, 1e6)),
        (0.0, JobJoined(3, ("a",), 8, 1.0)),
        (0.1, SendAsked(3, 1.0)),
        (0.1, SendAsked(9, 1.0)),
    ]
    assert play(events, terms())[1][1:] == [(0.1, 3, "open"), (0.1, 9, "open")]


def test_the_second_waits_for_the_first_and_shortest_service_goes_first() -> None:
    third = JobJoined(3, ("b", "d"), 1, 100.0)
    events: list[tuple[float, Event]] = [
        *TWO,
        (0.0, third),
        (0.0, SendAsked(1, 30.0)),
        (0.01, SendAsked(2, 5.0)),
        (0.02, SendAsked(3, 5.0)),
        (0.03, SendDone(1)),
    ]
    assert play(events, terms())[1] == [(0.0, 1, "rule"), (0.03, 3, "rule")]


def test_no_wait_is_longer_than_the_bound() -> None:
    how = terms()
    state, grants = play([*TWO, (0.0, SendAsked(1, 900.0)), (0.1, SendAsked(2, 5.0)), (0.29, ArbiterTick())], how)
    assert grants == [(0.0, 1, "rule")]
    due = wake_s(state, how)
    assert due == pytest.approx(0.3)
    assert due is not None and step(state, ArbiterTick(), due, how)[1] == (SendGrant(2, "bound"),)


def test_a_lost_end_is_forgotten() -> None:
    how = ArbiterTerms(discipline_named("srsf-1"), TOPOLOGY, bound_s=10.0, lost_s=1.0)
    _, grants = play(
        [*TWO, (0.0, SendAsked(1, 5.0)), (0.5, SendAsked(2, 5.0)), (0.9, ArbiterTick()), (1.0, ArbiterTick())], how
    )
    assert grants == [(0.0, 1, "rule"), (1.0, 2, "rule")]


def test_leaving_lets_others_and_oneself_go() -> None:
    how = terms()
    _, grants = play([*TWO, (0.0, SendAsked(1, 500.0)), (0.1, SendAsked(2, 5.0)), (0.15, JobLeft(1))], how)
    assert grants == [(0.0, 1, "rule"), (0.15, 2, "rule")]
    _, grants = play([*TWO, (0.0, SendAsked(1, 500.0)), (0.1, SendAsked(2, 5.0)), (0.15, JobLeft(2))], how)
    assert grants == [(0.0, 1, "rule"), (0.15, 2, "open")]


@pytest.mark.parametrize(("size", "shares"), [(9.3, True), (9.4, False)])
def test_adadual_by_the_estimated_rest(size: float, shares: bool) -> None:
    """30 MB begun at 0 have 28 left after 2 ms; a third of that is 9.33."""
    _, grants = play([*TWO, (0.0, SendAsked(1, 30.0)), (0.002, SendAsked(2, size))], terms("ada-srsf"))
    assert (len(grants) == 2) is shares


def test_two_who_ask_together_are_not_both_let_in() -> None:
    """One event frees the link for two that wait: the second sees the first."""
    events: list[tuple[float, Event]] = [*TWO, (0.0, JobJoined(3, ("b", "d"), 4, 50.0)), (0.0, SendAsked(1, 30.0)),
                                         (0.01, SendAsked(2, 5.0)), (0.01, SendAsked(3, 5.0)), (0.03, SendDone(1))]  # fmt: skip
    # Both have 200 GPU seconds left: the lower number goes first.
    assert [g[1] for g in play(events, terms())[1]] == [1, 2]


def test_slowdown_of_two_by_hand() -> None:
    """Compute 10 ms, 10 MB: u = c/(1+c) with c = 1 + 1.5u ms/MB gives u = 1 - 1/(2 + 1.5u) = 0.6076."""
    jobs = [Traffic(1, ("a", "b"), 0.01, 10.0), Traffic(2, ("b", "c"), 0.01, 10.0), Traffic(3, ("c",), 0.01, 10.0)]
    found = slowdowns(jobs, TOPOLOGY)
    u = (-0.5 + (0.25 + 4 * 1.5 * 1.0) ** 0.5) / 3.0
    assert found[1].slowdown == pytest.approx((1 + 1 + 1.5 * u) / 2, abs=1e-6)
    assert (found[1].link, found[1].others) == ("nic:b", (2,))
    assert found[3].slowdown == 1.0 and found[3].others == ()


def test_slowdown_counts_uplinks_and_only_shared_links() -> None:
    tree = Topology(nic=LINK, leaf={"a": "x", "b": "y", "c": "x", "d": "y"}, uplink=Link(3.0, 0.0))
    jobs = [Traffic(1, ("a", "b"), 0.01, 10.0), Traffic(2, ("c", "d"), 0.01, 10.0)]
    assert slowdowns(jobs, TOPOLOGY)[1].slowdown == 1.0
    found = slowdowns(jobs, tree)
    assert found[1].slowdown > 1.3 and found[1].link.startswith("leaf:")
    assert slowdowns([jobs[0], Traffic(2, ("c", "d"), 0.01, 0.0)], tree)[1].slowdown == 1.0


def test_slowdown_grows_with_every_neighbour_and_lies_between_turns_and_step() -> None:
    """Against the simulation: two alike in lockstep are the worst that can be, alternating the best."""
    last = 1.0
    for n in range(2, 6):
        jobs = [Traffic(i, ("a", f"n{i}"), 0.01, 10.0) for i in range(n)]
        now = slowdowns(jobs, TOPOLOGY)[0].slowdown
        assert last < now <= (10 + 10 * LINK.cost(n)) / 20
        last = now
    steps = {}
    where = [(0, 2), (1, 3)]
    for name in ("srsf-1", "srsf-2"):
        specs = [JobSpec(i, "x", 2, 50, 0.0, 4.0, 6.0, 10.0) for i in range(2)]
        engine = Engine(Machine(2, 2, topology=TOPOLOGY), specs, lambda _, j: where[j], discipline_named(name))
        engine.advance()
        steps[name] = max(engine.finish) / (50 * 20.0)
    two = slowdowns([Traffic(i, ("a", "b"), 0.01, 10.0) for i in range(2)], TOPOLOGY)[0].slowdown
    assert steps["srsf-1"] < two < steps["srsf-2"]


def test_the_default_is_to_avoid_contention() -> None:
    assert ArbiterTerms().discipline == Discipline(discipline_named("srsf-1").rule)
