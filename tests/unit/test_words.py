from __future__ import annotations

import pytest

from synergyd.records import Plan, Shape
from synergyd.words import job_words, plan_words, shape_words, size_words

ONE, TWO = Shape("a100", 1, 4), Shape("h100", 2, 1)
PLAN = Plan(tp=2, dp=2, micro_batch=1, global_batch=8)


def test_a_shape() -> None:
    assert shape_words(ONE) == "4 a100 GPUs on one node" and shape_words(ONE, ("n1",)) == "4 a100 GPUs on n1"
    assert shape_words(TWO) == "2 nodes x 1 h100 GPU"
    assert shape_words(TWO, ("n1", "n2")) == "2 nodes x 1 h100 GPU on n1,n2"


def test_a_plan_and_a_size() -> None:
    assert plan_words(PLAN) == "tp 2, pp 1, dp 2, micro-batch 1, global batch 8"
    rare = Plan(pp=2, dp=4, vpp=2, cp=2, ep=4, global_batch=4, zero_stage=0)
    assert plan_words(rare) == "tp 1, pp 2, dp 4, vpp 2, cp 2, ep 4, zero 0, micro-batch 1, global batch 4"
    assert size_words(ONE) == shape_words(ONE)
    assert size_words(ONE, PLAN, ("n1",)) == f"4 a100 GPUs on n1 ({plan_words(PLAN)})"


@pytest.mark.parametrize(
    ("jobs", "words"), [((3,), "job 3"), ((3, 5), "jobs 3, 5"), ((3, 5, 7, 8, 9), "jobs 3, 5, 7 and 2 more")]
)
def test_jobs(jobs: tuple[int, ...], words: str) -> None:
    assert job_words(jobs) == words
