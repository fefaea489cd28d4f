"""Sentences that name others' jobs."""

from __future__ import annotations

import pytest

from synergyd.masking import masked


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("shares n1 with job 8", "shares n1 with another job"),
        ("job 7 grows; job 8 (4 -> 8)", "job 7 grows; another job (4 -> 8)"),
        ("jobs 7, 8 and 9 wait", "other jobs wait"),
        ("slow under job 8_3", "slow under another job"),
        ("7 jobs, 4 nodes", "7 jobs, 4 nodes"),
        ("16 GPUs, 3 nodes", "16 GPUs, 3 nodes"),
    ],
)
def test_only_visible_jobs_are_named(text: str, shown: str) -> None:
    assert masked({"why": [text]}, lambda job_id: job_id == 7) == {"why": [shown]}


def test_shared_links_are_left_out() -> None:
    value = {"links": ["x"], "decision": {"sharing": {"links": [{"jobs": [8]}]}, "cell": {"step_s": 1.5}}}
    assert masked(value, lambda _: False) == {"links": [], "decision": {"sharing": None, "cell": {"step_s": 1.5}}}
