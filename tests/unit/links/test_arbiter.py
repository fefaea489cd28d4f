"""The arbiter's state machine, and the forecast of what shared links cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from synergy_sim.contention.engine import Engine, Machine
from synergy_sim.contention.workload import JobSpec

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
    asks_in_vain,
    step,
    wake_s,
)
from synergyd.links.disciplines import Discipline, Srsf, make_discipline
from synergyd.links.model import Link, Topology
from synergyd.links.slowdown import Traffic, slowdowns

LINK = Link(1.0, 0.5)  # 1 ms/MB alone, threshold 1/3
TOPOLOGY = Topology(nic=LINK)


def terms(name: str = "srsf-1") -> ArbiterTerms:
    return ArbiterTerms(make_discipline(name), TOPOLOGY, bound_s=0.2, lost_s=1.0)


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
    how = ArbiterTerms(make_discipline("srsf-1"), TOPOLOGY, bound_s=10.0, lost_s=1.0)
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
        engine = Engine(Machine(2, 2, topology=TOPOLOGY), specs, lambda _, j: where[j], make_discipline(name))
        engine.advance()
        steps[name] = max(engine.finish) / (50 * 20.0)
    two = slowdowns([Traffic(i, ("a", "b"), 0.01, 10.0) for i in range(2)], TOPOLOGY)[0].slowdown
    assert steps["srsf-1"] < two < steps["srsf-2"]


def test_who_shares_with_nobody_or_in_a_group_where_nobody_waits_asks_in_vain() -> None:
    state, _ = play([*TWO, (0.0, JobJoined(3, ("x", "y"), 2, 1.0))], terms())
    assert [asks_in_vain(state, j, terms()) for j in (1, 2, 3, 9)] == [False, False, True, True]
    everybody = dict.fromkeys((1, 2), Discipline(Srsf(4)))
    assert asks_in_vain(state, 1, replace(terms(), disciplines=everybody))
    assert not asks_in_vain(state, 1, replace(terms(), disciplines=dict.fromkeys((1, 2), Discipline(Srsf(3)))))


def test_the_default_is_to_avoid_contention() -> None:
    assert ArbiterTerms().discipline == Discipline(make_discipline("srsf-1").rule)


def neighbours_slowdown(
    how: ArbiterTerms, every_ms: int, alone_ms: tuple[int, int] = (100, 100), steps: int = 50
) -> float:
    """How much longer a job's steps (compute, then a message that takes so long) take beside one that asks anew every so often
    and never says that it is done. In steps of a millisecond."""
    state, now_ms, done, left, phase = ArbiterState(), 0, 0, alone_ms[0], "compute"
    for joined in (JobJoined(1, ("a", "b"), 1, 1.0), JobJoined(2, ("b", "c"), 8, 1e6)):
        state, _ = step(state, joined, 0.0, how)
    while done < steps:
        now_s, events = now_ms / 1000.0, list[Event]()
        due = wake_s(state, how)
        if due is not None and due <= now_s:
            events.append(ArbiterTick())
        if every_ms and now_ms % every_ms == 0:
            events.append(SendAsked(1, 1e6))
        if phase == "compute" and left == 0:
            events.append(SendAsked(2, float(alone_ms[1])))
            phase = "wait"
        if phase == "send" and left == 0:
            events.append(SendDone(2))
            done, left, phase = done + 1, alone_ms[0], "compute"
        for event in events:
            state, grants = step(state, event, now_s, how)
            if phase == "wait" and any(g.job_id == 2 for g in grants):
                left, phase = alone_ms[1], "send"
        now_ms += 1
        left -= phase != "wait"
    return now_ms / (steps * sum(alone_ms))


@pytest.mark.slow
@pytest.mark.parametrize("every_ms", [1, 3, 10, 30])
@pytest.mark.parametrize("name", ["srsf-1", "srsf-2", "ada-srsf"])
def test_who_asks_again_and_again_does_not_keep_the_link(name: str, every_ms: int) -> None:
    how = ArbiterTerms(make_discipline(name), TOPOLOGY, bound_s=0.5, lost_s=30.0)
    assert neighbours_slowdown(how, 0) == pytest.approx(1.0, abs=0.02)
    # at most the rest of one message and one that overtakes: of every_ms each
    assert neighbours_slowdown(how, every_ms) <= 1.02 + 2 * every_ms / 200


def test_a_job_overtakes_another_once_and_the_shortest_still_goes_first() -> None:
    events: list[tuple[float, Event]] = [
        *TWO,
        (0.0, JobJoined(3, ("b", "d"), 1, 1.0)),
        (0.0, SendAsked(3, 30.0)),
        (0.01, SendAsked(1, 30.0)),
        (0.02, SendAsked(3, 30.0)),  # overtakes 1
        (0.03, SendAsked(3, 30.0)),  # and now 1 has its turn
        (0.06, SendDone(1)),
    ]
    assert [g[:2] for g in play(events, terms())[1]] == [(0.0, 3), (0.02, 3), (0.03, 1), (0.06, 3)]
