"""The look-ahead on the arbiter's own state machine."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence

import pytest
from synergy_core.errors import UsageError

from synergyd.links.arbiter import ArbiterState, ArbiterTerms, JobJoined, SendAsked, make_terms, step
from synergyd.links.disciplines import NOBODY_WAITS, Discipline, make_discipline
from synergyd.links.lookahead import (
    MOST_JOBS,
    WITH_NONE,
    Sender,
    choose,
    chosen_disciplines,
    finish_sum,
    sharing_groups,
)
from synergyd.links.model import Link, Topology

LINK = Link(1.0, 0.5)  # two share at 2.5 ms/MB
TOPOLOGY = Topology(nic=LINK)


def joined(jobs: Sequence[tuple[tuple[str, ...], float]]) -> ArbiterState:
    """Jobs of (nodes, remaining seconds), two GPUs each."""
    state = ArbiterState()
    for job_id, (nodes, left_s) in enumerate(jobs):
        state, _ = step(state, JobJoined(job_id, nodes, 2, left_s), 0.0, ArbiterTerms(topology=TOPOLOGY))
    return state


def terms(name: str) -> ArbiterTerms:
    return make_terms(name, TOPOLOGY, bound_s=10.0)


def test_groups_share_links_directly_or_through_others() -> None:
    links = {1: ("a", "b"), 2: ("b", "c"), 3: ("x", "y"), 4: ("c", "d"), 5: (), 6: ("z",), 7: ("y", "q")}
    assert sorted(map(sorted, sharing_groups(links))) == [[1, 2, 4], [3, 7]]
    assert sharing_groups({}) == []


def test_the_forecast_of_two_in_step_by_hand() -> None:
    """1 s of steps of 10 ms compute and 10 MB: 50 steps each, told as 40."""
    state = joined([(("a", "b"), 1.0), (("a", "b"), 1.0)])
    senders = [Sender(j, 0.01, 10.0, 0.01) for j in range(2)]
    # together each step takes 10 + 25 ms; in turns 10 + 10 ms once the second has waited 10 ms
    assert finish_sum(state, senders, 0.0, terms("srsf-2")) == pytest.approx(2 * 50 * 0.035)
    assert finish_sum(state, senders, 0.0, terms("srsf-1")) == pytest.approx((1.0 + 1.0 + 0.01 * 50 / 40), rel=1e-6)
    assert finish_sum(state, senders, 0.0, terms("srsf-2"), limit=3.0) == math.inf


def test_messages_that_take_half_of_a_link_fit_beside_each_other() -> None:
    state = joined([(("a", "b"), 1.0)] * 3)
    # 10 ms of compute, and 10 ms in which 5 MB go: two fit, a third makes each go at two thirds, and as much penalty
    senders = [Sender(j, 0.01, 10.0, 0.01, share=0.5) for j in range(3)]
    two = joined([(("a", "b"), 1.0)] * 2)
    assert finish_sum(two, senders[:2], 0.0, terms("srsf-2")) == pytest.approx(2 * 50 * 0.02)
    assert finish_sum(state, senders, 0.0, terms("srsf-3")) == pytest.approx(3 * 50 * (0.01 + 0.01 * 1.5 + 0.005 * 0.5))


def test_turns_must_bring_more_than_they_cost() -> None:
    state = joined([(("a", "b"), 10.0), (("a", "b"), 10.0)])
    seen = {j: Sender(j, 0.05, 40.0, 0.05) for j in range(2)}
    for cost, waits in ((0.02, True), (3.0, False)):
        (found,) = chosen_disciplines(state, seen, 0.0, terms("look-ahead"), cost=cost)
        assert (found[0].rule.most < 2 or found[0].rule.name == "ada-srsf") is waits


def test_lengths_that_are_not_told_are_the_mean_of_the_others() -> None:
    senders = [Sender(j, 0.01, 10.0, 0.01 * j) for j in range(3)]
    nodes = [("a", "b"), ("b", "c"), ("c", "d")]
    told = finish_sum(joined([(n, 1.0) for n in nodes]), senders, 0.0, terms("srsf-1"))
    lengths = [1.0, math.inf, 1.0]
    silent = finish_sum(joined(list(zip(nodes, lengths, strict=True))), senders, 0.0, terms("srsf-1"))
    assert silent == pytest.approx(told, rel=0.1)
    nobody = finish_sum(joined([(n, math.inf) for n in nodes]), senders, 0.0, terms("srsf-1"))
    assert 0 < nobody < math.inf


@pytest.mark.parametrize("sizes", [(10.0, 10.0, 10.0), (60.0, 2.0, 2.0), (5.0, 30.0, 80.0)])
def test_what_is_chosen_is_forecast_no_worse_than_any_candidate(sizes: tuple[float, ...]) -> None:
    state = joined([(("a", "b"), 5.0), (("b", "c"), 2.0), (("a", "c"), 9.0)])
    state, _ = step(state, SendAsked(0, sizes[0]), 0.0, terms("srsf-1"))
    senders = {j: Sender(j, 0.02, size, 0.003 * j) for j, size in enumerate(sizes)}
    (chosen,) = chosen_disciplines(state, senders, 0.0, terms("look-ahead"), margin=0.0, cost=0.0)
    assert set(chosen) == {0, 1, 2} and len(set(chosen.values())) == 1

    def total(discipline: Discipline) -> float:
        how = ArbiterTerms(discipline, TOPOLOGY, bound_s=10.0)
        return finish_sum(state, list(senders.values()), 0.0, how)

    assert total(chosen[0]) == min(map(total, WITH_NONE))


def test_equal_messages_take_turns_and_a_short_one_beside_a_long_one_does_not_wait() -> None:
    state = joined([(("a", "b"), 10.0), (("a", "b"), 10.0)])
    equal = {j: Sender(j, 0.05, 40.0, 0.05) for j in range(2)}
    (turns,) = chosen_disciplines(state, equal, 0.0, terms("look-ahead"))
    assert turns[0].rule.most == 1 or not turns[0].rule.admits(40.0, 1, [40.0], LINK)
    unequal = {0: Sender(0, 0.05, 400.0, 0.0), 1: Sender(1, 0.05, 4.0, 0.05)}
    (shares,) = chosen_disciplines(state, unequal, 0.0, terms("look-ahead"))
    assert shares[1].rule.admits(4.0, 1, [300.0], LINK)


def test_each_group_has_its_own_and_nobody_waits_in_one_not_seen_yet() -> None:
    state = joined([(("a", "b"), 10.0), (("a", "b"), 10.0), (("x", "y"), 10.0), (("x", "y"), 10.0), (("p", "q"), 1.0)])
    seen = {0: Sender(0, 0.05, 40.0, 0.05), 1: Sender(1, 0.05, 40.0, 0.05), 2: Sender(2, 0.05, 40.0, 0.0)}
    found = {j: d for group in chosen_disciplines(state, seen, 0.0, terms("look-ahead")) for j, d in group.items()}
    assert set(found) == {0, 1, 2, 3}
    assert found[2] == found[3] == NOBODY_WAITS and found[0] == found[1] != NOBODY_WAITS


def test_a_large_group_is_not_forecast() -> None:
    """It would take a core for minutes."""
    many = MOST_JOBS + 1
    state = joined([(("a", f"b{j}"), 10.0) for j in range(many)])
    seen = {j: Sender(j, 0.05, 4.0, 0.0) for j in range(many)}
    begun = time.process_time()
    (found,) = chosen_disciplines(state, seen, 0.0, terms("look-ahead"))
    assert time.process_time() - begun < 1.0
    assert found == dict.fromkeys(range(many), NOBODY_WAITS)


def test_who_is_idle_does_not_count() -> None:
    state = joined([(("a", "b"), 10.0), (("a", "b"), 10.0), (("a", "b"), 10.0)])
    seen = {j: Sender(j, 0.05, 40.0, 0.0) for j in range(3)}
    (found,) = chosen_disciplines(state, seen, 0.0, terms("look-ahead"), idle={2})
    assert set(found) == {0, 1}
    assert not list(chosen_disciplines(state, seen, 0.0, terms("look-ahead"), idle={1, 2}))


def test_the_one_in_force_is_left_only_for_a_gain_beyond_the_margin() -> None:
    totals = {"srsf-1": 100.0, "srsf-2": 99.8, "ada-srsf": 99.0}
    names = {make_discipline(name): total for name, total in totals.items()}

    def forecast(discipline: Discipline, limit: float) -> float:
        return names[discipline]

    present = make_discipline("srsf-1")
    assert choose(present, list(names)[:2], forecast, 1, 0.0, 0.005) == (present, 100.0)
    assert choose(present, list(names), forecast, 1, 0.0, 0.005) == (make_discipline("ada-srsf"), 99.0)


def test_rules_by_name() -> None:
    ahead = make_terms("look-ahead")
    assert ahead.look_ahead and ahead.discipline == NOBODY_WAITS
    assert not make_terms("ada-srsf").look_ahead
    with pytest.raises(UsageError, match="look-ahead"):
        make_terms("look-ahead-time")
