"""Whether turns really help, by steps seen with and without them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import pytest

from synergyd.links.disciplines import NOBODY_WAITS, Discipline, Srsf
from synergyd.links.guard import (
    BARRED_S,
    FIRST_STEPS,
    KEPT_STEPS,
    LEAST_STEPS,
    MOST_STEPS,
    PROOF_STEPS,
    TRIAL_STEPS,
    Guards,
    Phase,
    advance_trial,
    compute_turn_loss,
    first_trial,
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


def test_turns_that_cost_time_are_given_up_at_once_and_told_once() -> None:
    world = World(turns_s=0.5, alone_s=0.4)
    for _ in range(int(3 * BARRED_S)):
        world.look()
    ((jobs, slower),) = world.barred
    assert jobs == [1, 2] and slower == pytest.approx(0.2, abs=0.05)
    assert not any(world.seen[: int(TRIAL_STEPS * 0.4)])  # what they do without is seen first
    # then a few steps in turns, and as many again each hour, before it is barred again
    assert sum(world.seen) <= 3 * (LEAST_STEPS * 0.5 + 2)
    # it does not flap: each hour it changes twice
    assert sum(a != b for a, b in zip(world.seen, world.seen[1:], strict=False)) <= 6


@pytest.mark.parametrize(("alone_s", "noise"), [(0.6, 0.1), (0.7, 0.3), (0.51, 0.01)])
def test_turns_that_help_stay(alone_s: float, noise: float) -> None:
    world = World(turns_s=0.5, alone_s=alone_s, noise=noise)
    for _ in range(2000):
        world.look()
    assert not world.barred
    # the trials get rarer
    assert 0.94 < sum(world.seen[500:]) / len(world.seen[500:]) < 1.0


@pytest.mark.parametrize(("alone_s", "noise"), [(0.5, 0.0), (0.497, 0.01), (0.492, 0.02)])
def test_turns_that_bring_nothing_are_given_up_after_their_proof(alone_s: float, noise: float) -> None:
    """Less than what is told as harm, and still not for long."""
    world = World(turns_s=0.5, alone_s=alone_s, noise=noise)
    for _ in range(int(BARRED_S)):
        world.look()
    assert [slower for _, slower in world.barred] == [0.0]
    assert sum(world.seen) <= PROOF_STEPS * 0.5 + 2


def until_turns(world: World, group: Sequence[int]) -> int:
    """Looks until the group takes turns."""
    return next(n for n in range(100) if world.look(group))


def test_another_job_makes_another_group() -> None:
    world = World(turns_s=0.5, alone_s=0.4)
    while not world.barred:
        world.look()
    assert not world.look()
    world.links[3] = LINKS[1]
    world.steps[3] = []
    assert until_turns(world, (1, 2, 3)) >= TRIAL_STEPS * 0.4
    del world.links[3], world.steps[3]
    assert not any(world.look() for _ in range(100))  # the group as it was, where all are where they were
    world.links[2] = ("nic:a", "nic:c")
    assert until_turns(world, (1, 2)) < 10
    world.links[2] = LINKS[2]
    assert until_turns(world, (1, 2)) < 10  # it had gone: what was known of it has, too


@pytest.mark.parametrize(("alone_s", "stay"), [(0.4, False), (0.6, True)])
def test_what_came_of_a_group_holds_for_those_that_another_has_left(alone_s: float, stay: bool) -> None:
    world = World(turns_s=0.5, alone_s=alone_s)
    world.links[3], world.steps[3] = LINKS[1], []
    for _ in range(2 * (TRIAL_STEPS + PROOF_STEPS)):
        world.look((1, 2, 3))
    del world.links[3], world.steps[3]
    assert {world.look() for _ in range(8)} == {stay}


def test_a_group_that_has_stood_its_proof_and_comes_back_goes_on() -> None:
    """One of its jobs evaluates for a while."""
    world = World(turns_s=0.5, alone_s=0.6)
    for _ in range(20):
        world.look()
    for _ in range(50):
        world.guards.in_force([], world.links, world.steps, world.now_s)
        world.now_s += 1.0
    assert world.look()


def test_a_group_that_the_forecast_leaves_alone_is_none_of_the_guards() -> None:
    guards = Guards()
    wanted = [{1: NOBODY_WAITS, 2: NOBODY_WAITS}, {3: TURNS, 4: TURNS}]
    found, barred = guards.in_force(wanted, LINKS, {}, 0.0)  # 3 and 4 have just gone
    assert found == wanted[0] | wanted[1] and not barred and not guards.on_trial
    # so many at a time that nobody waits
    assert guards.in_force([dict.fromkeys((1, 2), Discipline(Srsf(2)))], LINKS, {}, 0.0)[0][1] == Discipline(Srsf(2))


def test_a_watch_counts_steps_that_lie_within_its_phase() -> None:
    watch = first_trial(100.0)
    early = {1: row(80.0, [0.5] * 56), 2: row(80.0, [0.5] * 56)}  # 16 of them since 100 s
    assert advance_trial(watch, [1, 2], {1: early[1], 2: early[2][:47]}, 104.0) == watch
    assert advance_trial(watch, [1, 2], {1: early[1]}, 104.0) == watch  # nothing seen of 2
    turns = advance_trial(watch, [1, 2], {j: some[:48] for j, some in early.items()}, 104.0)
    assert (turns.phase, turns.since_s, turns.before_s) == (Phase.TURNS, 104.0, 100.0)

    def then(took: float, steps: int) -> dict[int, list[tuple[float, float]]]:
        return {j: early[j][:48] + row(104.0, [took] * steps) for j in (1, 2)}

    assert advance_trial(turns, [1, 2], then(0.9, LEAST_STEPS - 1), 110.0) == turns
    assert advance_trial(turns, [1, 2], then(0.9, LEAST_STEPS), 110.0).phase is Phase.BARRED
    assert advance_trial(turns, [1, 2], then(0.4, PROOF_STEPS - 1), 112.0) == turns
    proven = advance_trial(turns, [1, 2], then(0.4, PROOF_STEPS), 112.0)
    assert proven.proven and proven.since_s == 104.0 and proven.steps == FIRST_STEPS
    assert advance_trial(proven, [1, 2], then(0.4, FIRST_STEPS - 1), 116.0) == proven
    trial = advance_trial(proven, [1, 2], then(0.4, FIRST_STEPS), 117.0)
    assert (trial.phase, trial.before_s) == (Phase.TRIAL, 104.0)
    alone = {j: some + row(117.0, [0.41] * TRIAL_STEPS) for j, some in then(0.4, FIRST_STEPS).items()}
    again = advance_trial(trial, [1, 2], alone, 121.0)
    assert (again.phase, again.steps) == (Phase.TURNS, 2 * FIRST_STEPS)
    assert (
        replace(again, steps=MOST_STEPS).steps
        == advance_trial(replace(trial, steps=MOST_STEPS), [1, 2], alone, 121.0).steps
    )
    quick = {j: some + row(117.0, [0.3] * TRIAL_STEPS) for j, some in then(0.4, FIRST_STEPS).items()}
    assert advance_trial(trial, [1, 2], quick, 121.0).phase is Phase.BARRED


def test_what_turns_cost() -> None:
    steady = {1: row(0.0, [0.5, 0.5, 0.5]), 2: row(0.0, [1.0, 1.0, 1.0])}
    quick = {1: row(9.0, [0.4, 0.4, 0.4]), 2: row(9.0, [1.0, 1.0, 1.0])}
    assert compute_turn_loss(steady, quick).harm == pytest.approx(0.1)  # 0.2 of the one's steps, none of the other's
    gain = compute_turn_loss(quick, steady)
    assert gain.harm == 0.0 and gain.is_gain and gain.share == pytest.approx(-0.125)
    # what one loses another gains
    even = compute_turn_loss({1: quick[1], 2: steady[1]}, {1: steady[1], 2: quick[1]})
    assert even.harm == 0.0
    # within the noise
    wild = {1: row(0.0, [0.2, 0.9, 0.5, 0.6]), 2: row(0.0, [0.5, 0.2, 0.9, 0.6])}
    noisy = compute_turn_loss(wild, {j: row(9.0, [0.5] * 4) for j in (1, 2)})
    assert noisy.harm == 0.0 and not noisy.is_gain
    # a checkpoint is no step
    saves = {1: row(0.0, [0.5, 30.0, 0.5, 0.5]), 2: steady[2]}
    assert compute_turn_loss(saves, steady).harm == 0.0
    nothing = compute_turn_loss({1: [], 2: []}, quick)
    assert nothing.harm == 0.0 and not nothing.is_gain
