"""Which incarnation a row of the queue shows, and since when it is over."""

from __future__ import annotations

import pytest

from synergyd.control.usage_ledger import UsageLedger
from synergyd.daemon.usage_look import holdings, midnight, span_of
from synergyd.usage import Usage, totals
from tests.unit.slurm.fake_slurm import row

NOW_S = 1_000_000.0


@pytest.mark.parametrize(
    ("state", "start_s", "end_s", "shown"),
    [
        ("RUNNING", NOW_S - 60, NOW_S + 3540, (NOW_S - 60, None)),
        ("SUSPENDED", NOW_S - 60, NOW_S + 3540, (NOW_S - 60, None)),
        ("PENDING", NOW_S + 120, NOW_S + 3720, (None, None)),
        ("COMPLETING", NOW_S - 60, NOW_S - 5, (NOW_S - 60, NOW_S - 5)),
        # slurmctld's clock is a little ahead, or the look took its time
        ("COMPLETING", NOW_S - 60, NOW_S + 4, (NOW_S - 60, NOW_S + 4)),
        # a job that is being requeued: with the shortest limit there is, with one of a year, and without
        ("COMPLETING", NOW_S, NOW_S + 60, (None, None)),
        ("COMPLETING", NOW_S, NOW_S + 365 * 86400.0, (None, None)),
        ("COMPLETING", NOW_S, None, (None, None)),
    ],
)
def test_a_planned_end_is_no_end(
    state: str, start_s: float, end_s: float | None, shown: tuple[float | None, float | None]
) -> None:
    assert span_of(row(state=state, start_s=start_s, end_s=end_s), NOW_S) == shown


@pytest.mark.parametrize("limit_s", [3600.0, None])
def test_a_job_that_is_slow_to_leave_its_nodes_when_requeued_is_counted_once(limit_s: float | None) -> None:
    """As squeue 22.05 shows it, look by look: at each it would start now, and end with its limit."""
    ledger = UsageLedger(midnight)

    def look(now_s: float, state: str, start_s: float, submit_s: float, restarts: int) -> None:
        end_s = None if limit_s is None else start_s + limit_s
        shown = row(
            state=state, start_s=start_s, end_s=end_s, submit_s=submit_s, restarts=restarts, tres_gpus=4, batch=True
        )
        ledger.look(now_s, holdings([shown], (), {}, (), {}, now_s))

    for t in (2.0, 4.0, 6.0):
        look(NOW_S + t, "RUNNING", NOW_S, NOW_S - 5, 0)
    for t in (8.0, 10.0, 12.0, 14.0):
        look(NOW_S + t, "COMPLETING", NOW_S + t, NOW_S - 5, 1)
    look(NOW_S + 16, "PENDING", NOW_S + 140, NOW_S + 15, 1)
    look(NOW_S + 22, "RUNNING", NOW_S + 20, NOW_S + 15, 1)
    look(NOW_S + 24, "RUNNING", NOW_S + 20, NOW_S + 15, 1)
    rows: dict[float, Usage] = {p.from_s: p for p in ledger.pending()}
    assert [(p.from_s - NOW_S, p.to_s - NOW_S) for p in rows.values() if not p.is_open] == [(0.0, 7.0)]
    assert totals(rows.values()).held_gpu_h * 3600 < 4 * 12
