"""Answers that name others' jobs."""

from __future__ import annotations

from typing import Any

import pytest
from synergy_core.masking import hide_invisible
from synergy_core.reasons import Reason, format_reasons
from synergy_core.wire.codec import encode


def is_seven(job_id: int) -> bool:
    return job_id == 7


@pytest.mark.parametrize(
    ("reason", "shown"),
    [
        (Reason("lent-spare", {"jobs": [8], "lost": "n1"}), "lent as a spare, and another job has lost n1"),
        (Reason("lent-spare", {"jobs": [7], "lost": "n1"}), "lent as a spare, and job 7 has lost n1"),
        (Reason("capped-together", {"jobs": [7, 8, 9]}), "Together with it, other jobs would change."),
        (
            Reason("gpus-go-to", {"groups": [[[[7, 4, 8], [8, None, 2]], 3]]}),
            "This epoch they go to job 7 (4 -> 8), another job (starts on 2) and 3 more.",
        ),
        (
            Reason("gives-back", {"gpus": 4, "because": {"code": "lent-spare", "fields": {"jobs": [8], "lost": "n1"}}}),
            "Gives back 4 GPUs: lent as a spare, and another job has lost n1.",
        ),
        (Reason("text", {"text": "7 jobs, 4 nodes"}), "7 jobs, 4 nodes"),
    ],
)
def test_only_visible_jobs_are_named(reason: Reason, shown: str) -> None:
    value: dict[str, Any] = {"why": format_reasons((reason,)), "reasons": encode((reason,))}
    seen = hide_invisible(value, is_seven)
    assert seen["why"] == shown
    assert "8" not in str(seen["reasons"]).replace("-> 8", "").replace("4, 8]", ""), seen
    again = tuple(Reason(r["code"], r["fields"]) for r in seen["reasons"])
    assert format_reasons(again) == shown
    assert hide_invisible(value, lambda _: True)["why"] == value["why"]


def test_a_text_of_an_older_daemon_is_left_out() -> None:
    """Nobody can say which jobs it names."""
    assert hide_invisible({"why": "shares n1 with job 8", "reasons": []}, is_seven)["why"] == ""


def test_shared_links_are_left_out() -> None:
    value = {"links": ["x"], "decision": {"sharing": {"links": [{"jobs": [8]}]}, "cell": {"step_s": 1.5}}}
    assert hide_invisible(value, lambda _: False) == {
        "links": [],
        "decision": {"sharing": None, "cell": {"step_s": 1.5}},
    }
