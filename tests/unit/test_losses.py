"""The ledger: each GPU second that a job held counts once, by what took it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from synergy_core.losses import Losses, losses, losses_message
from synergy_core.usage import Usage, totals


def part(from_s: float, to_s: float, gpus: int = 4, **changes: Any) -> Usage:
    told: dict[str, Any] = {"job_id": 7, "user": "mina", "account": "chem", "start_s": from_s, "asked_gpus": 4}
    return Usage(**(told | {"from_s": from_s, "to_s": to_s, "gpus": gpus} | changes))


def hours(ledger: Losses) -> dict[str, float]:
    """GPU seconds by what they went into, without what is 0."""
    values = {n.removesuffix("_gpu_h"): getattr(ledger, n) for n in vars(ledger) if n.endswith("_gpu_h")}
    return {name: round(3600 * value, 3) for name, value in values.items() if value}


def test_a_run_that_is_resized_and_requeued_and_fails() -> None:
    """60 s until it trains, 10 s for the checkpoint before it grows, 20 s for the start, and 30 s after a node has failed."""
    parts = (
        part(0, 1000, trained_s=930.0, restart_s=10.0, waited_s=50.0, useful_gpu_s=4 * 930.0),
        part(
            1010,
            2010,
            8,
            trained_s=980.0,
            restart_s=20.0,
            checkpoint_s=10.0,
            predicted_ratio=1.5,
            useful_gpu_s=4 * 1.5 * 980.0,
        ),
        part(2100, 3100, 8, trained_s=970.0, restart_s=30.0, useful_gpu_s=4 * 1.5 * 970.0, slow_s=97.0),
    )
    ledger = losses(parts)
    assert hours(ledger) == {
        "held": 20000.0, "training": 4 * 930.0 + 8 * 980.0 + 8 * 873.0, "start": 240.0, "checkpoint": 40.0, "resize": 160.0,
        "failure": 240.0, "straggler": 776.0, "queue": 200.0, "size": 2 * 1950.0,
    }  # fmt: skip
    assert ledger.effective == pytest.approx((4 * 930.0 + 8 * 980.0 + 8 * 873.0) / 20000.0)
    assert losses_message(ledger) == (
        "LEDGER: 92.7 % of 5.56 GPU hours in training; lost: start 0.07, checkpoint 0.01, resize 0.04, failure 0.07, straggler 0.22; "
        "sizes, as predicted, +1.08. Queue: 0.06; not known: 0.00."
    )


def test_a_change_in_place_is_a_resize() -> None:
    parts = (
        part(0, 500, trained_s=488.0, restart_s=12.0),
        part(500, 900, start_s=0.0, trained_s=400.0, changed_s=500.0, checkpoint_s=12.0, predicted_ratio=1.2),
    )
    assert hours(losses(parts))["resize"] == 48.0 and "checkpoint" not in hours(losses(parts))


def test_plain_jobs_are_not_known() -> None:
    ledger = losses((part(0, 100), part(0, 50, job_id=8, trained_s=40.0)))
    assert hours(ledger)["unknown"] == 400.0 and ledger.effective == pytest.approx(0.8)
    assert losses((part(0, 100),)).effective is None
    assert losses_message(losses((part(0, 100),))) == "LEDGER: no job has told of its training."


def test_idle_gpus_are_lost_and_lower_what_is_effective() -> None:
    ledger = losses((part(0, 1000, trained_s=600.0, idle_s=300.0),))
    assert hours(ledger) == {"held": 4000.0, "training": 2400.0, "idle": 1200.0, "start": 400.0, "size": 2400.0}
    assert ledger.effective == pytest.approx(0.6) and "idle 0.33" in losses_message(ledger)
    never = losses((part(0, 1000, idle_s=700.0),))
    assert hours(never) == {"held": 4000.0, "idle": 2800.0, "unknown": 1200.0} and never.effective == 0.0


SECONDS = st.floats(0, 100)


@given(
    st.lists(
        st.tuples(st.integers(1, 3), SECONDS, SECONDS, SECONDS, SECONDS, st.sampled_from([None, 0.0, 1.3])), max_size=12
    )
)
def test_the_parts_add_up_to_what_was_held(rows: list[tuple[int, float, float, float, float, float | None]]) -> None:
    parts, at_s = [], dict.fromkeys((1, 2, 3), 0.0)
    for job_id, trained_s, restart_s, rest_s, slow_s, ratio in sorted(rows, key=lambda row: row[0]):
        end_s = at_s[job_id] + trained_s + restart_s + rest_s
        changes: dict[str, Any] = {
            "trained_s": trained_s,
            "restart_s": restart_s,
            "slow_s": slow_s,
            "idle_s": slow_s,
            "checkpoint_s": rest_s,
            "predicted_ratio": ratio,
        }
        parts.append(part(at_s[job_id], end_s, job_id=job_id, **changes))
        at_s[job_id] = end_s
    ledger = losses(parts)
    names = ("training", "start", "checkpoint", "resize", "failure", "straggler", "idle", "unknown")
    assert sum(getattr(ledger, f"{name}_gpu_h") for name in names) == pytest.approx(ledger.held_gpu_h, abs=1e-6)
    assert ledger.held_gpu_h == pytest.approx(totals(parts).held_gpu_h)
    assert all(getattr(ledger, f"{name}_gpu_h") >= -1e-9 for name in names)
