from __future__ import annotations

import pytest
from synergy_core.formatting import format_jobs, format_plan, format_shape, format_size
from synergy_core.records import Plan, Shape

ONE, TWO = Shape("a100", 1, 4), Shape("h100", 2, 1)
PLAN = Plan(tp=2, dp=2, micro_batch=1, global_batch=8)


def test_a_shape() -> None:
    assert format_shape(ONE) == "4 a100 GPUs on one node" and format_shape(ONE, ("n1",)) == "4 a100 GPUs on n1"
    assert format_shape(TWO) == "2 nodes x 1 h100 GPU"
    assert format_shape(TWO, ("n1", "n2")) == "2 nodes x 1 h100 GPU on n1,n2"


def test_a_plan_and_a_size() -> None:
    assert format_plan(PLAN) == "tp 2, pp 1, dp 2, micro-batch 1, global batch 8"
    rare = Plan(pp=2, dp=4, vpp=2, cp=2, ep=4, global_batch=4, zero_stage=0)
    assert format_plan(rare) == "tp 1, pp 2, dp 4, vpp 2, cp 2, ep 4, zero 0, micro-batch 1, global batch 4"
    assert format_size(ONE) == format_shape(ONE)
    assert format_size(ONE, PLAN, ("n1",)) == f"4 a100 GPUs on n1 ({format_plan(PLAN)})"


@pytest.mark.parametrize(
    ("jobs", "words"), [((3,), "job 3"), ((3, 5), "jobs 3, 5"), ((3, 5, 7, 8, 9), "jobs 3, 5, 7 and 2 more")]
)
def test_jobs(jobs: tuple[int, ...], words: str) -> None:
    assert format_jobs(jobs) == words
