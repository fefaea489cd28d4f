from __future__ import annotations

from synergy_launch.agent.step_timer import StepTimer


def test_the_median_of_the_recent_steps() -> None:
    timer = StepTimer(window=3)
    for seconds in (50.0, 50.0, 9.0, 1.0, 2.0, 7.0):
        timer.add(seconds)
    assert timer.median_s == 2.0


def test_a_round_of_local_steps_counts_with_its_average() -> None:
    """Three steps in four are without an average: their median would leave it out."""
    timer = StepTimer(skip=1)
    for _ in range(5):
        for seconds in (1.0, 1.0, 1.0):
            timer.add(seconds, round_over=False)
        timer.add(5.0)
    assert timer.median_s == 2.0
    unfinished = StepTimer(skip=0)
    unfinished.add(1.0, round_over=False)
    assert unfinished.median_s is None
