"""Which incarnation a row of the queue shows, and since when it is over."""

from __future__ import annotations

from dataclasses import replace

import pytest
from synergy_core.job_report import InPlace, Report
from synergy_core.records import Job, JobState, Plan, Shape
from synergy_core.usage import Usage, totals

from synergyd.control.resize.lifecycle import JobLifecycle, ResizeState
from synergyd.control.resize.restart_history import RestartHistory, RestartInProgress
from synergyd.control.tracked import TrackedJob
from synergyd.control.usage_ledger import Holding, UsageLedger
from synergyd.daemon.usage_look import find_span, holdings, midnight
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
    assert find_span(row(state=state, start_s=start_s, end_s=end_s), NOW_S) == shown


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


def test_an_allocation_with_a_jobs_name_is_the_jobs_if_its_owner_is_the_same() -> None:
    job = row(7, state="RUNNING", start_s=NOW_S - 60, uid=5, account="chem", tres_gpus=2, node_names=("n1",))
    beside = row(
        9, name="synergy-nodes-of-7.0.1", state="RUNNING", start_s=NOW_S - 9, uid=5, account="chem", tres_gpus=4
    )
    rows = [job, beside, replace(beside, job_id=10, uid=6), replace(beside, job_id=11, account="phys")]
    shown = {h.job_id: (h.of_job, h.gpus) for h in holdings(rows, (), {}, (), {}, NOW_S)}
    assert shown == {7: (0, 2), 9: (7, 4), 10: (0, 4), 11: (0, 4)}


def in_place(**changes: object) -> TrackedJob:
    """A job that its launchers have restarted at order 2, 40 s ago by Slurm's clock, whose new run has trained for 30 s."""
    one = RestartInProgress(begun_s=NOW_S - 45, chosen=True, checkpoint_s=3.0, started_s=NOW_S - 40, in_place=True)
    history = RestartHistory(lost_s=50.0, chosen=2, under_way=one)
    plan = Plan(global_batch=8, micro_batch=1, dp=4)
    life = JobLifecycle(7, 0.0, state=ResizeState.RUNNING, plan=plan, restart_history=history)
    report = Report(7, 0, 100, step_s=1.0, trained_s=30.0, in_place=InPlace(number=2, order=2))
    return TrackedJob(lifecycle=life, report=replace(report, **changes), heard_s=NOW_S)  # type: ignore[arg-type]


def look_of(tracked: TrackedJob) -> Holding:
    shown = row(7, state="RUNNING", start_s=NOW_S - 600, tres_gpus=4)
    (holding,) = holdings([shown], (), {7: tracked}, (), {}, NOW_S)
    return holding


def test_what_a_restart_in_place_took_is_known_from_the_first_steps_of_its_new_run() -> None:
    shown = look_of(in_place())
    assert (shown.order, shown.training_gpus, shown.lost_s, shown.in_transit) == (2, 4, 50.0 + 3.0 + 10.0, True)
    early = look_of(in_place(step_s=None))
    assert (early.order, early.training_gpus, early.relative) == (None, 0, None), "its last report is of the run before"


def test_a_restart_in_place_that_was_measured_is_in_the_history() -> None:
    tracked = in_place()
    history = RestartHistory(lost_s=63.0, chosen=2)
    tracked.lifecycle = replace(tracked.lifecycle, restart_history=history)
    shown = look_of(tracked)
    assert (shown.order, shown.lost_s, shown.in_transit) == (2, 63.0, False)


def test_idle_gpus_are_seen_in_the_incarnation_that_reports_them() -> None:
    tracked, shape = in_place(), Shape("a100", 1, 4)
    job = Job(7, "j", "u", 1000, "", JobState.RUNNING, "", 0.0, 0.0, None, 0, shape, shape, ("n1",))
    tracked.job = job
    assert not look_of(tracked).is_idle
    tracked.job = replace(job, idle_s=400.0)
    assert look_of(tracked).is_idle
    tracked.job = replace(tracked.job, restarts=1)
    assert not look_of(tracked).is_idle
