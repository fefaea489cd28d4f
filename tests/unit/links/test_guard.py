"""Whether turns really help, by steps seen with and without them."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from synergyd.links.disciplines import NOBODY_WAITS, Discipline, Srsf
from synergyd.links.guard import (
    BARRED_S,
    FIRST_STEPS,
    KEPT_STEPS,
    MOST_STEPS,
    TRIAL_STEPS,
    Guards,
    Phase,
    first_watch,
    slower_in_turns,
    watched,
)

TURNS = Discipline(Srsf(1))
LINKS = {1: ("nic:a", "nic:b"), 2: ("nic:a", "nic:b")}


def row(begin_s: float, took: Sequence[float]) -> list[tuple[float, float]]:
    """Steps one after another."""
    found = []
    for seconds in took:
        found.append((begin_s, begin_s + seconds))
        begin_s += seconds
    return found


class World:
    """Two jobs whose steps take `turns_s` in turns and `alone_s` left alone, looked at each second."""

    def __init__(self, turns_s: float, alone_s: float, noise: float = 0.05) -> None:
        self.turns_s, self.alone_s, self.noise = turns_s, alone_s, noise
        self.now_s, self.guards, self.draw = 0.0, Guards(), random.Random(5)
        self.links: dict[int, tuple[str, ...]] = dict(LINKS)
        self.steps: dict[int, list[tuple[float, float]]] = {1: [], 2: []}
        self.barred: list[tuple[list[int], float]] = []
        self.seen: list[bool] = []  # whether they take turns, look by look

    def look(self, group: Sequence[int] = (1, 2)) -> bool:
        """One more second; whether they take turns in it."""
        found, barred = self.guards.in_force([dict.fromkeys(group, TURNS)], self.links, self.steps, self.now_s)
        turns = found[1] == TURNS
        assert turns or set(found.values()) == {NOBODY_WAITS}
        assert self.guards.on_trial <= set(group) and not (turns and self.guards.on_trial)
        self.barred += [(jobs, watch.slower) for jobs, watch in barred]
        for some in self.steps.values():
            begin_s = some[-1][1] if some else self.now_s
            while begin_s < self.now_s + 1.0:
                took = (self.turns_s if turns else self.alone_s) * self.draw.uniform(1 - self.noise, 1 + self.noise)
                some.append((begin_s, begin_s + took))
                begin_s += took
            del some[:-KEPT_STEPS]
        self.now_s += 1.0
        self.seen.append(turns)
        return turns


def test_turns_that_cost_time_are_given_up_for_long_and_told_once() -> None:
    world = World(turns_s=0.5, alone_s=0.4)
    for _ in range(int(3 * BARRED_S)):
        world.look()
    ((jobs, slower),) = world.barred
    assert jobs == [1, 2] and slower == pytest.approx(0.2, abs=0.05)
    # at first 16 steps in turns; then as many again each hour, before it is barred again
    assert sum(world.seen) <= 3 * (FIRST_STEPS * 0.5 + 4)
    # it does not flap: each hour it changes twice
    assert sum(a != b for a, b in zip(world.seen, world.seen[1:], strict=False)) <= 6


@pytest.mark.parametrize(("alone_s", "noise"), [(0.6, 0.3), (0.5, 0.3), (0.497, 0.01)])
def test_turns_that_help_or_do_no_harm_stay(alone_s: float, noise: float) -> None:
    world = World(turns_s=0.5, alone_s=alone_s, noise=noise)
    for _ in range(2000):
        world.look()
    assert not world.barred
    # the trials get rarer
    assert 0.94 < sum(world.seen[500:]) / len(world.seen[500:]) < 1.0


def test_another_job_makes_another_group() -> None:
    world = World(turns_s=0.5, alone_s=0.4)
    while not world.barred:
        world.look()
    assert not world.look()
    world.links[3] = LINKS[1]
    world.steps[3] = []
    assert world.look((1, 2, 3))
    del world.links[3], world.steps[3]
    assert not world.look()  # the group as it was, where all are where they were
    world.links[2] = ("nic:a", "nic:c")
    assert world.look()
    world.links[2] = LINKS[2]
    assert world.look()  # it had gone: what was known of it has, too


def test_a_group_that_the_forecast_leaves_alone_is_none_of_the_guards() -> None:
    guards = Guards()
    wanted = [{1: NOBODY_WAITS, 2: NOBODY_WAITS}, {3: TURNS, 4: TURNS}]
    found, barred = guards.in_force(wanted, LINKS, {}, 0.0)  # 3 and 4 have just gone
    assert found == wanted[0] | wanted[1] and not barred and not guards.on_trial
    # so many at a time that nobody waits
    assert guards.in_force([dict.fromkeys((1, 2), Discipline(Srsf(2)))], LINKS, {}, 0.0)[0][1] == Discipline(Srsf(2))


def test_a_watch_counts_steps_that_lie_within_its_phase() -> None:
    watch = first_watch(100.0)
    early = {1: row(80.0, [0.5] * 60), 2: row(80.0, [0.5] * 60)}  # 20 of them since 100 s
    assert watched(watch, [1, 2], early, 110.0).phase is Phase.TRIAL
    assert watched(watch, [1, 2], {1: early[1], 2: early[2][:50]}, 110.0) == watch
    assert watched(watch, [1, 2], {1: early[1]}, 110.0) == watch  # nothing seen of 2
    trial = watched(watch, [1, 2], early, 110.0)
    short = {j: early[j] + row(110.0, [0.4] * (TRIAL_STEPS - 1)) for j in (1, 2)}
    assert watched(trial, [1, 2], short, 115.0) == trial
    alone = {j: early[j] + row(110.0, [0.5] * TRIAL_STEPS) for j in (1, 2)}
    after = watched(trial, [1, 2], alone, 115.0)
    assert (after.phase, after.steps) == (Phase.TURNS, 2 * FIRST_STEPS)
    assert after.steps <= MOST_STEPS


def test_how_much_slower() -> None:
    steady = {1: row(0.0, [0.5, 0.5, 0.5]), 2: row(0.0, [1.0, 1.0, 1.0])}
    quick = {1: row(9.0, [0.4, 0.4, 0.4]), 2: row(9.0, [1.0, 1.0, 1.0])}
    assert slower_in_turns(steady, quick) == pytest.approx(0.1)  # 0.2 of the one's steps, none of the other's
    assert slower_in_turns(quick, steady) == 0.0
    # what one loses another gains
    assert slower_in_turns({1: quick[1], 2: steady[1]}, {1: steady[1], 2: quick[1]}) == 0.0
    # within the noise
    wild = {1: row(0.0, [0.2, 0.9, 0.5, 0.6]), 2: row(0.0, [0.5, 0.2, 0.9, 0.6])}
    assert slower_in_turns(wild, {j: row(9.0, [0.5] * 4) for j in (1, 2)}) == 0.0
    # a checkpoint is no step
    saves = {1: row(0.0, [0.5, 30.0, 0.5, 0.5]), 2: steady[2]}
    assert slower_in_turns(saves, steady) == 0.0
    assert slower_in_turns({1: [], 2: []}, quick) == 0.0
