"""Leadership begins between two turns of the loop and ends at any moment; a call to Slurm is begun within the lease or not at all."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from typing import Any, cast

import pytest
from synergy_core.errors import UsageError

from synergyd.daemon.lease_keeper import LEAST_S, LeaseKeeper
from synergyd.slurm.client import SlurmError
from synergyd.store.leader import Leader
from tests.unit.store.store_world import Clock


class Asked:
    """A leader whose answers the test sets."""

    wait_s = 0.005

    def __init__(self) -> None:
        self.time_left_s, self.term, self.problem = 5.0, 1, ""
        self.calls: list[str] = []
        self.fault: Exception | None = None

    @property
    def is_leading(self) -> bool:
        return self.time_left_s > 0

    def try_lead(self) -> bool:
        self.calls.append("try_lead")
        if self.fault and len(self.calls) > 1:
            raise self.fault
        return self.is_leading

    def step_back(self) -> None:
        self.calls.append("step_back")

    def release(self) -> None:
        self.calls.append("release")


@pytest.fixture
def leader() -> Asked:
    return Asked()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def keeper(leader: Asked, clock: Clock) -> Iterator[LeaseKeeper]:
    made = LeaseKeeper(cast(Leader, leader), 30.0, clock)
    yield made
    made.close()


def test_leadership_begins_with_a_turn_and_ends_at_once(keeper: LeaseKeeper, leader: Asked) -> None:
    assert not keeper.leads()  # no turn has begun
    leader.time_left_s = 0.0
    assert not keeper.begin_turn()
    leader.time_left_s = 5.0
    assert not keeper.leads()  # this turn began as a stand-by's
    assert keeper.begin_turn() and keeper.leads()
    leader.term = 3  # another led meanwhile
    assert not keeper.leads()
    assert keeper.begin_turn() and keeper.leads() and keeper.term == 3
    leader.time_left_s = 0.0
    assert not keeper.leads()


def test_nothing_is_written_without_a_lease(keeper: LeaseKeeper, leader: Asked) -> None:
    keeper.begin_turn()
    with keeper.guard_write():
        assert 0 < signal.getitimer(signal.ITIMER_REAL)[0] <= 5.0
    for time_left_s in (0.0, LEAST_S / 2):
        leader.time_left_s = time_left_s
        with pytest.raises(SlurmError, match="another synergyd may lead") as refused, keeper.guard_write():
            pytest.fail("written")
        assert refused.value.transient


def test_the_timer_of_others_goes_on(keeper: LeaseKeeper) -> None:
    before = signal.setitimer(signal.ITIMER_REAL, 100.0)
    try:
        keeper.begin_turn()
        with keeper.guard_write():
            pass
        assert 90 < signal.getitimer(signal.ITIMER_REAL)[0] <= 100
    finally:
        signal.setitimer(signal.ITIMER_REAL, *before)


def until(condition: Any) -> None:
    end_s = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end_s
        time.sleep(0.002)


def test_who_completes_no_epoch_steps_back(keeper: LeaseKeeper, leader: Asked, clock: Clock) -> None:
    keeper.start()
    until(lambda: len(leader.calls) > 2)
    assert set(leader.calls) == {"try_lead"}
    clock.now += 30.1
    until(lambda: leader.calls[-1] == "step_back")
    keeper.note_completed_epoch()
    until(lambda: leader.calls[-1] == "try_lead")


def test_its_turn_with_slurm_is_waited_for_without_loss(leader: Asked, clock: Clock) -> None:
    """Many starts at the pace that Slurm allows one user take longer than the grace."""
    waited_s = 0.0
    keeper = LeaseKeeper(cast(Leader, leader), 30.0, clock, lambda: waited_s)
    try:
        keeper.start()
        clock.now += 80.0
        waited_s += 70.0
        until(lambda: len(leader.calls) > 2)
        assert set(leader.calls) == {"try_lead"}
        clock.now += 21.0  # 31 s without
        until(lambda: leader.calls[-1] == "step_back")
        keeper.note_completed_epoch()
        until(lambda: leader.calls[-1] == "try_lead")
    finally:
        keeper.close()


def test_a_fault_of_ours_does_not_end_the_renewals(keeper: LeaseKeeper, leader: Asked) -> None:
    leader.fault = ZeroDivisionError("a fault")
    keeper.start()
    until(lambda: len(leader.calls) > 4)


def test_what_the_admin_has_to_mend_ends_the_loop(keeper: LeaseKeeper, leader: Asked) -> None:
    leader.fault = UsageError("leader", "no such table", "synergyctl db upgrade")
    keeper.start()
    until(lambda: len(leader.calls) > 1)
    with pytest.raises(UsageError, match="no such table"):
        until(lambda: not keeper.begin_turn())
