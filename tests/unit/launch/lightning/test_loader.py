"""Lightning's training data by the example's number in the run."""

from __future__ import annotations

from typing import Any

import pytest
from synergy_core.errors import UsageError
from synergy_core.records import Plan

pytest.importorskip("torch")
pytestmark = pytest.mark.training


def loader(rank: int = 0, start: list[int] | None = None, dp: int = 2, micro: int = 2, **options: Any) -> Any:
    from synergy_launch.lightning.loader import SampleLoader

    where = start if start is not None else [0]
    plan = Plan(dp=dp, global_batch=8, micro_batch=micro)
    return SampleLoader(list(range(20)), plan, rank, 3, lambda: where[0], options)


def rows(data: Any) -> list[list[int]]:
    return [batch.tolist() for batch in data]


def test_an_epoch_has_whole_steps_and_the_rest_comes_first_in_the_next() -> None:
    assert len(loader()) == 4 and loader().steps == 2
    seen: list[int] = []
    for start in (0, 16, 32):
        ranks = [rows(loader(rank, [start])) for rank in (0, 1)]
        assert [len(batches) for batches in ranks] == [4, 4]
        seen += [x for pair in zip(*ranks, strict=True) for batch in pair for x in batch]
    assert [sorted(seen[i : i + 20]) for i in (0, 20)] == [list(range(20))] * 2
    assert rows(loader(0, dp=1, micro=8)) == [seen[:8], seen[8:16]]


def test_its_place_is_that_of_the_first_batch_that_is_asked_for() -> None:
    """Lightning makes the iterator before it loads its checkpoint."""
    start = [0]
    data = loader(0, start, dp=1, micro=8)
    ahead = iter(data)
    start[0] = 8
    assert next(ahead).tolist() == rows(loader(0, [8], dp=1, micro=8))[0] != rows(loader(0, [0], dp=1, micro=8))[0]
    data.load_state_dict(data.state_dict())


@pytest.mark.parametrize("name", ["batch_size", "shuffle", "sampler", "batch_sampler", "drop_last"])
def test_options_of_batch_and_order_are_one_line(name: str) -> None:
    given: dict[str, Any] = {name: 1}
    with pytest.raises(UsageError, match=f"{name}= is Synergy's to set"):
        loader(**given)


def test_data_that_can_not_be_ordered_is_one_line() -> None:
    from synergy_launch.lightning.loader import SampleLoader

    with pytest.raises(UsageError, match="no length"):
        SampleLoader(iter([]), Plan(global_batch=8), 0, 0, lambda: 0, {})
    with pytest.raises(UsageError, match="has 5 examples, fewer than global_batch=8"):
        SampleLoader(range(5), Plan(global_batch=8, micro_batch=8), 0, 0, lambda: 0, {})
