"""What is expected of nodes that power up, by what was seen of them."""

from __future__ import annotations

import math
from dataclasses import replace

from synergy_core.records import Cluster, Node

from synergyd.control.power_up import AGAIN_S, PowerUps
from synergyd.control.resize.events import CarriedOut, Refused
from synergyd.control.resize.instructions import Wake
from synergyd.control.resize.lifecycle import JobLifecycle
from synergyd.control.tracked import Remember, TrackedJob

ASLEEP = Node("c1", "a100", 4, up=False, wakeable=True, wake_s=300.0)
WAKING = replace(ASLEEP, waking=True)
UP, DOWN = Node("c1", "a100", 4), Node("c1", "a100", 4, up=False)


def see(power_ups: PowerUps, node: Node, now_s: float) -> float:
    return power_ups.see(Cluster((node,)), now_s).nodes[0].wake_s


def test_resume_timeout_is_expected_until_a_power_up_was_seen_whole() -> None:
    seen = PowerUps()
    assert [see(seen, n, t) for t, n in ((0, ASLEEP), (10, WAKING), (60, WAKING), (90, UP))] == [
        300.0,
        300.0,
        250.0,
        0.0,
    ]
    assert see(seen, ASLEEP, 200) == 80.0
    assert [see(seen, WAKING, t) for t in (210, 250, 400)] == [80.0, 40.0, 0.0]


def test_one_seen_from_its_middle_on_measures_nothing() -> None:
    seen = PowerUps()
    assert [see(seen, n, t) for t, n in ((0, WAKING), (5, UP), (9, ASLEEP))] == [300.0, 0.0, 300.0]


def test_one_that_failed_is_not_taken_for_a_while() -> None:
    seen = PowerUps()
    for t, n in ((0, ASLEEP), (10, WAKING), (70, DOWN)):
        see(seen, n, t)
    assert see(seen, ASLEEP, 80) == math.inf
    assert see(seen, WAKING, 90) == 300.0  # somebody else powers it up
    see(seen, DOWN, 100)
    assert see(seen, ASLEEP, 100 + 2 * AGAIN_S - 1) == math.inf
    assert see(seen, ASLEEP, 100 + 2 * AGAIN_S) == 300.0
    for t, n in ((2000, WAKING), (2010, UP), (2020, ASLEEP), (2030, WAKING), (2040, DOWN)):
        see(seen, n, t)
    assert see(seen, ASLEEP, 2040 + AGAIN_S) < math.inf


def test_one_that_sleeps_again_was_called_off_or_has_failed_unseen() -> None:
    seen = PowerUps()
    assert [see(seen, n, t) for t, n in ((0, ASLEEP), (10, WAKING), (20, ASLEEP))] == [300.0, 300.0, math.inf]


def test_the_clock_may_be_set() -> None:
    seen = PowerUps()
    for t, n in ((0, ASLEEP), (10, WAKING), (70, DOWN)):
        see(seen, n, t)
    seen.set_clock(-1e6)
    assert see(seen, ASLEEP, 80 - 1e6) == math.inf and see(seen, ASLEEP, 70 - 1e6 + AGAIN_S) == 300.0


def test_nodes_that_may_not_be_powered_up_are_not_asked_for_again_at_once() -> None:
    seen, tracked, wake = PowerUps(), TrackedJob(lifecycle=JobLifecycle(1, 0.0)), Wake(1, ("c1",))
    see(seen, ASLEEP, 0)
    (done,) = seen.note_answer(wake, CarriedOut(wake), tracked, 0)
    assert isinstance(done, Remember) and done.story == ("c1 powered up for it to grow onto",)
    assert (
        seen.note_answer(wake, Refused(wake, "slurmctld is away", True), tracked, 5) == []
        and see(seen, ASLEEP, 6) == 294.0
    )
    (refused,) = seen.note_answer(wake, Refused(wake, "Access/permission denied", False), tracked, 10)
    assert isinstance(refused, Remember) and "c1 can't be powered up for it: Access" in refused.story[0]
    assert see(seen, ASLEEP, 20) == math.inf and seen.note_answer(wake, CarriedOut(wake), None, 30) == []


def test_one_that_slurm_took_and_never_began_counts_as_failed() -> None:
    seen, wake = PowerUps(), Wake(1, ("c1",))
    see(seen, ASLEEP, 0)
    seen.note_answer(wake, CarriedOut(wake), None, 0)
    for now_s, left_s in ((60, 240.0), (299, 1.0), (300, math.inf), (300 + AGAIN_S - 1, math.inf)):
        (node,) = seen.see(Cluster((ASLEEP,)), now_s).nodes
        assert (node.wake_s, node.waking) == (left_s, now_s < 300), "not asked for again meanwhile"
    assert see(seen, ASLEEP, 300 + AGAIN_S) == 300.0
    seen.note_answer(wake, CarriedOut(wake), None, 1000)
    see(seen, DOWN, 1010)
    assert see(seen, ASLEEP, 1010 + 2 * AGAIN_S - 1) == math.inf, "it went DOWN between two epochs"
    seen.note_answer(wake, CarriedOut(wake), None, 5000)
    assert [see(seen, n, t) for t, n in ((5010, UP), (5020, ASLEEP))] == [0.0, 300.0]


def test_a_cluster_without_such_nodes_is_left_as_it_is() -> None:
    cluster = Cluster((UP, DOWN))
    assert PowerUps().see(cluster, 0.0) is cluster
