"""The loop around a step: the order of the examples is the run's own, and each micro-batch needs its step."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

import pytest
from synergy_core.errors import UsageError
from synergy_core.records import Plan
from synergy_launch.agent.agent import Agent
from synergy_launch.batch.data_order import NOTHING_SKIPPED
from synergy_launch.batch.learning_rate import Following

pytest.importorskip("torch")
from synergy_launch.pytorch.batch_loop import BatchLoop

pytestmark = pytest.mark.training


class _Ends:
    """Of an agent only what the loop's end needs."""

    ended = 0
    skipped = NOTHING_SKIPPED

    def finish(self) -> None:
        self.ended += 1


class _Loop(BatchLoop):
    """One rank whose steps do nothing. `then`: the plan from a step on, by its number."""

    def __init__(self, plan: Plan, rank: int, then: dict[int, Plan], stops_at: int = 0) -> None:
        self.end, self.plan, self.seed, self._data_rank = _Ends(), plan, 3, rank
        self.agent, self.following = cast(Agent, self.end), Following(8, "none")
        self._then, self._stops_at, self._micro_batches = then, stops_at, 0

    def step(self) -> None:
        self._micro_batches += 1
        if self._micro_batches == self.plan.micro_batches:
            self._micro_batches = 0
            self.following.advance(self.plan.global_batch, None)
            self.step_count += 1
            self._go_on = self.step_count != self._stops_at
            self.plan = self._then.get(self.step_count, self.plan)


WHOLE = Plan(tp=1, pp=1, dp=1, micro_batch=8, global_batch=8)
HALVES = replace(WHOLE, dp=2, micro_batch=2)
LARGER = replace(HALVES, global_batch=16)


def _examples(plan: Plan, steps: int, then: dict[int, Plan] | None = None) -> list[set[int]]:
    """Of each step, of all ranks."""
    seen: list[set[int]] = []
    for rank in range(plan.dp):
        loop = _Loop(plan, rank, then or {})
        for batch in loop.batches(range(1000), steps):
            seen.extend([set()] if loop.step_count == len(seen) else [])
            seen[loop.step_count] |= set(batch.tolist())
            loop.step()
        assert loop.end.ended == 1
    return seen


def test_a_step_sees_the_same_examples_on_any_number_of_ranks() -> None:
    whole = _examples(WHOLE, 4)
    assert [len(step) for step in whole] == [8] * 4
    assert _examples(HALVES, 4) == whole


def test_a_batch_that_changes_goes_on_with_the_next_examples_and_ends_at_the_same_one() -> None:
    whole = _examples(WHOLE, 6)
    moved = _examples(HALVES, 6, {2: LARGER})
    assert [len(step) for step in moved] == [8, 8, 16, 16]
    assert moved == [whole[0], whole[1], whole[2] | whole[3], whole[4] | whole[5]]


def test_a_loop_without_its_step_is_a_users_mistake() -> None:
    loop = _Loop(HALVES, 0, {})
    with pytest.raises(UsageError, match=r"_Loop: step\(loss\) was not called for each batch"):
        list(loop.batches(range(1000), 4))
    assert loop.end.ended == 0


def test_a_run_that_is_to_stop_ends_after_its_step_without_the_last_checkpoint() -> None:
    """Which has been written by then."""
    loop = _Loop(WHOLE, 0, {}, stops_at=2)
    with pytest.raises(SystemExit) as stopped:
        for _ in loop.batches(range(1000), 4):
            loop.step()
    assert stopped.value.code == 0
    assert (loop.step_count, loop.end.ended) == (2, 0)
