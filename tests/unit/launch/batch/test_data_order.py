"""The elastic sampler: over any resizes, each epoch shows every example once."""

from __future__ import annotations

from collections import Counter
from itertools import islice

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from synergy_core.errors import UsageError
from synergy_core.records import Plan
from synergy_launch.batch.data_order import RankIndices, SampleOrder, SkippedSamples, rank_samples

resize = st.tuples(
    st.integers(1, 9),  # dp
    st.integers(1, 5),  # micro-batch
    st.integers(1, 4),  # micro-batches a replica
    st.integers(0, 6),  # steps that count
    st.integers(0, 3),  # steps after the last checkpoint, lost with it
)


@given(count=st.integers(1, 120), seed=st.integers(0, 5), schedule=st.lists(resize, min_size=1, max_size=8))
@settings(max_examples=100, deadline=None)
def test_every_epoch_shows_each_example_once_whatever_the_resizes(
    count: int, seed: int, schedule: list[tuple[int, int, int, int, int]]
) -> None:
    order = SampleOrder(count, seed)
    start = 0
    seen: list[int] = []  # examples in the order of their sample numbers
    for dp, micro, times, steps, lost in schedule:
        plan = Plan(dp=dp, micro_batch=micro, global_batch=dp * micro * times)
        loaders = [iter(RankIndices(order, plan, rank, start)) for rank in range(dp)]
        for step in range(steps + lost):
            shown = [[next(loader) for _ in range(times)] for loader in loaders]
            if step < steps:
                # by micro-batch, then rank: the order in which they were numbered
                seen += [example for m in range(times) for rank in shown for example in rank[m]]
        start += steps * plan.global_batch
    assert len(seen) == start
    for epoch in range(0, start, count):
        shown_in_epoch = Counter(seen[epoch : epoch + count])
        assert max(shown_in_epoch.values()) == 1
        if epoch + count <= start:
            assert set(shown_in_epoch) == set(range(count))


@given(start=st.integers(0, 10**12), dp=st.integers(1, 40), micro=st.integers(1, 8), times=st.integers(1, 6))
def test_the_ranks_of_a_step_share_out_exactly_its_samples(start: int, dp: int, micro: int, times: int) -> None:
    batch = dp * micro * times
    parts = [rank_samples(start, batch, dp, rank, micro) for rank in range(dp)]
    assert sorted(n for part in parts for micro_batch in part for n in micro_batch) == list(range(start, start + batch))
    assert all(len(part) == times and all(len(m) == micro for m in part) for part in parts)


def test_epochs_and_seeds_have_orders_of_their_own() -> None:
    orders = [
        tuple(SampleOrder(50, seed).index(epoch * 50 + i) for i in range(50)) for seed in (0, 1) for epoch in (0, 1)
    ]
    assert len(set(orders)) == 4
    indices = RankIndices(SampleOrder(50, 0), Plan(global_batch=50, micro_batch=50), 0, 0)
    assert tuple(next(islice(indices, 1, None))) == orders[1]


@given(spans=st.lists(st.tuples(st.integers(0, 60), st.integers(1, 20)), max_size=6))
@settings(max_examples=200, deadline=None)
def test_what_is_skipped_is_skipped_whatever_was_before(spans: list[tuple[int, int]]) -> None:
    """Each time the samples at some positions are left out, of those that were left then."""
    skipped, left = SkippedSamples(), list(range(400))
    for start, count in spans:
        skipped = skipped.with_positions(start, start + count)
        del left[start : start + count]
        assert [skipped.number(position) for position in range(100)] == left[:100]
        assert SkippedSamples.read([list(one) for one in skipped.ranges]) == skipped
    assert all(b + 1 < c for (_, b), (c, _) in zip(skipped.ranges, skipped.ranges[1:], strict=False))


def test_ranks_skip_together() -> None:
    plan, skipped = Plan(dp=2, micro_batch=2, global_batch=8), SkippedSamples(((3, 6),))
    loaders = [iter(RankIndices(SampleOrder(100), plan, rank, 0, skipped)) for rank in range(2)]
    shown = [next(loader) for _ in range(2) for loader in loaders]
    order = SampleOrder(100)
    assert sorted(n for micro in shown for n in micro) == sorted(order.index(n) for n in (0, 1, 2, 7, 8, 9, 10, 11))


@pytest.mark.parametrize("data", [3, "ab", [[1]], [[1, 0]], [[0, 5], [6, 7]], [[-1, 2]], [[True, 2]], [[0, 1.5]]])
def test_a_list_of_skipped_samples_that_makes_no_sense_is_refused(data: object) -> None:
    with pytest.raises(UsageError):
        SkippedSamples.read(data)
