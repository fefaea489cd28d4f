"""Dally's delay timers: what counts as a wait, how it sets the timers, and what they gate."""

from __future__ import annotations

from dataclasses import replace

import pytest
from synergy_core.records import Cluster, Snapshot

from synergyd.scheduler.problem.delays import (
    LEASE_S,
    NO_DELAYS,
    WINDOW,
    DelayHistory,
    Tier,
    Wait,
    clock_set,
    find_tier,
    may_take,
    timer_s,
    with_observation,
)
from tests.unit.scheduler.builders import NOW, job, node, snapshot

LEAVES = {"n0": "x", "n1": "x", "n2": "y", "n3": "y"}


def seen(*jobs: object, at_s: float = 0.0) -> Snapshot:
    nodes = [replace(node(name), leaf=leaf) for name, leaf in LEAVES.items()]
    shown = snapshot(nodes, jobs)  # type: ignore[arg-type]
    return replace(shown, time_s=NOW + at_s, cluster=Cluster(shown.cluster.nodes))


def waits(gpus: int, tier: Tier, *leases: float) -> tuple[Wait, ...]:
    return tuple(Wait(NOW, gpus, tier, LEASE_S * n) for n in leases)


def test_tiers() -> None:
    assert find_tier(["n0"], LEAVES) is find_tier((), LEAVES) is Tier.NODE
    assert find_tier(["n0", "n1"], LEAVES) is Tier.LEAF
    assert find_tier(["n0", "n2"], LEAVES) is Tier.ACROSS
    assert find_tier(["a", "b"], {}) is Tier.LEAF  # no leaf is known: all are in one


def test_timers_are_two_deviations_above_the_mean_of_like_jobs_waits() -> None:
    assert (timer_s(NO_DELAYS, 8, Tier.NODE), timer_s(NO_DELAYS, 8, Tier.LEAF)) == (6 * LEASE_S, 12 * LEASE_S)
    others = (*waits(4, Tier.LEAF, 20, 20), *waits(8, Tier.NODE, 7, 9))
    history = DelayHistory(waits=(*others, *waits(8, Tier.LEAF, 12, 16)))
    # mean 14, deviation 2; mean 8, deviation 1
    assert timer_s(history, 8, Tier.LEAF) == 18 * LEASE_S
    assert timer_s(history, 8, Tier.NODE) == 10 * LEASE_S
    assert timer_s(history, 16, Tier.LEAF) == 12 * LEASE_S
    endless = DelayHistory(waits=(*waits(8, Tier.LEAF, 500), *waits(8, Tier.NODE, 500)))
    assert timer_s(endless, 8, Tier.LEAF) == WINDOW * LEASE_S
    assert timer_s(endless, 8, Tier.NODE) == 20 * LEASE_S  # 0.8 of the window, in whole leases


@pytest.mark.parametrize(
    ("best", "waited", "tier"),
    [
        (Tier.NODE, 0, Tier.NODE),
        (Tier.NODE, 5.9, Tier.NODE),
        (Tier.NODE, 6, Tier.LEAF),
        (Tier.NODE, 12, Tier.ACROSS),
        (Tier.LEAF, 0, Tier.LEAF),
        (Tier.LEAF, 12, Tier.ACROSS),
        (Tier.ACROSS, 0, Tier.ACROSS),
    ],
)
def test_the_further_the_longer(best: Tier, waited: float, tier: Tier) -> None:
    assert may_take(NO_DELAYS, 8, best, waited * LEASE_S) is tier


def test_a_wait_counts_from_the_first_sight_of_it_to_the_start() -> None:
    history = with_observation(
        NO_DELAYS, seen(job(1), job(2, held=True), job(3, reason="Dependency"), job(4, begin_s=NOW + 1))
    )
    assert history == DelayHistory({1: NOW})
    history = with_observation(history, seen(job(1), job(2), at_s=30))
    assert history.waiting == {1: NOW, 2: NOW + 30}
    started = [job(1, nodes=("n0", "n2"), gpus=4, start_s=NOW + 90), job(2, nodes=("n1",), gpus=2, start_s=NOW + 80)]
    history = with_observation(history, seen(*started, at_s=95))
    # job 2 waited for less than a lease
    assert history == DelayHistory({}, {1: NOW + 90, 2: NOW + 80}, (Wait(NOW + 95, 8, Tier.ACROSS, 90.0),))
    # stopped, it waits anew; what is older than the window no longer counts
    late = with_observation(history, seen(job(1), at_s=95 + WINDOW * LEASE_S))
    assert late.waits == history.waits and late.waiting == {1: NOW + 95 + WINDOW * LEASE_S} and not late.running
    assert with_observation(late, seen(at_s=96 + WINDOW * LEASE_S)) == NO_DELAYS


@pytest.mark.parametrize("by_s", [-86400.0, 86400.0])
def test_a_clock_that_is_set_neither_prolongs_nor_ends_a_wait(by_s: float) -> None:
    history = DelayHistory({1: NOW}, {2: NOW - 5.0}, waits(8, Tier.LEAF, 14))
    later = with_observation(clock_set(history, by_s), seen(job(1), at_s=by_s + 60.0))
    assert later == DelayHistory({1: NOW + by_s}, {}, (Wait(NOW + by_s, 8, Tier.LEAF, 14 * LEASE_S),))
