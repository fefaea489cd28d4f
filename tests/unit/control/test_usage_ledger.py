"""What jobs make of their GPUs, from look to look; and its sums."""

from __future__ import annotations

from dataclasses import replace

import pytest
from synergy_core.usage import (
    PastRun,
    Usage,
    clip_usage,
    reconcile_usage,
    relative_gain,
    totals,
    with_end_time,
    without_overlaps,
)

from synergyd.control.usage_ledger import WRITE_S, Holding, UsageLedger

DAY = 86400.0


def midnight(after_s: float) -> float:
    return (after_s // DAY + 1) * DAY


def holding(**changes: object) -> Holding:
    told: dict[str, object] = {
        "job_id": 7, "user": "mina", "account": "chem", "gpus": 8, "asked_gpus": 4, "start_s": 1000.0, "submit_s": 900.0,
    }  # fmt: skip
    return Holding(**(told | changes))  # type: ignore[arg-type]


def kept(ledger: UsageLedger) -> list[Usage]:
    parts = ledger.pending()
    ledger.mark_stored(parts)
    return sorted(parts, key=lambda p: p.from_s)


def test_a_run_is_held_from_slurms_start_to_slurms_end() -> None:
    ledger = UsageLedger(midnight)
    for now_s in (1005.0, 1065.0, 1125.0):
        ledger.look(now_s, [holding()])
    ledger.look(1185.0, [holding(ended_s=1130.0)])
    ledger.look(1245.0, [holding(ended_s=1130.0)])  # its processes take their time
    (part,) = [p for p in kept(ledger) if not p.is_open]
    assert (part.from_s, part.to_s, part.gpus) == (1000.0, 1130.0, 8)
    ledger.look(1305.0, [])
    assert kept(ledger) == []


def test_training_ends_with_the_run_when_slurm_says_an_end_before_the_last_look() -> None:
    """Slurm says whole seconds: a run that ended at 1120.9 did so at 1120."""
    ledger = UsageLedger(midnight)
    trains = {"gpus": 4, "training_s": 1060.0, "relative": 1.0}
    for now_s in (1060.0, 1120.5):
        ledger.look(now_s, [holding(**trains)])
    ledger.look(1121.5, [holding(**trains, ended_s=1120.0)])
    (part,) = [p for p in kept(ledger) if not p.is_open]
    assert (part.to_s, part.held_s) == (1120.0, 120.0)
    assert part.trained_s + part.restart_s + part.idle_s <= part.held_s
    assert part.trained_s == pytest.approx(60.0, abs=0.3)


def test_idle_time_is_no_training() -> None:
    """It is seen to be idle at 1660, and works again at 1900; it goes on training on the GPUs that it asked for."""
    ledger = UsageLedger(midnight)
    trains = {"gpus": 4, "training_s": 1060.0, "relative": 1.0}
    for now_s in (1060.0, 1360.0, 1600.0):
        ledger.look(now_s, [holding(**trains)])
    for now_s in (1660.0, 1900.0):
        ledger.look(now_s, [holding(**trains, is_idle=True)])
    ledger.look(1960.0, [holding(**trains, ended_s=1960.0)])
    (part,) = [p for p in kept(ledger) if not p.is_open]
    assert (part.trained_s, part.idle_s, part.held_s) == (540.0 + 60.0, 300.0, 960.0)
    assert part.useful_gpu_s == 4 * part.trained_s


def test_a_job_that_is_gone_was_idle_to_its_end() -> None:
    ledger = UsageLedger(midnight)
    trains = {"gpus": 4, "training_s": 1060.0, "relative": 1.0}
    ledger.look(1060.0, [holding(**trains)])
    ledger.look(1360.0, [holding(**trains, is_idle=True)])
    ledger.look(1420.0, [])
    (part,) = [p for p in kept(ledger) if not p.is_open]
    assert (part.to_s, part.trained_s, part.idle_s) == (1390.0, 0.0, 330.0)


def test_idle_time_of_a_job_that_never_trains_counts() -> None:
    ledger = UsageLedger(midnight)
    ledger.look(1060.0, [holding()])
    ledger.look(1360.0, [holding(is_idle=True)])
    ledger.look(1420.0, [holding(is_idle=True, ended_s=1400.0)])
    (part,) = [p for p in kept(ledger) if not p.is_open]
    assert (part.trained_s, part.idle_s) == (0.0, 340.0)


def test_a_run_whose_nodes_were_powered_up_is_held_from_its_later_start() -> None:
    """Slurm sets its start anew once they are there, in the accounts too."""
    ledger = UsageLedger(midnight)
    for now_s in range(1005, 1725, 60):  # for longer than the part waits to be stored
        ledger.look(float(now_s), [holding()])
    stored = kept(ledger)
    ledger.look(1725.0, [holding(start_s=1700.0)])
    ledger.look(1785.0, [holding(start_s=1700.0, ended_s=1760.0)])
    rows = {p.from_s: p for p in (*stored, *kept(ledger))}
    assert [(p.from_s, p.to_s, p.is_open) for p in rows.values()] == [(1000, 1000, False), (1700, 1760, False)]
    assert totals(rows.values()).held_gpu_h * 3600 == pytest.approx(8 * 60)


def test_training_counts_by_goodput_and_a_restart_by_what_it_took() -> None:
    ledger = UsageLedger(midnight)
    ledger.look(1100.0, [holding()])
    # it says that it has trained for 60 s; what that is worth is known an epoch later
    ledger.look(1160.0, [holding(training_s=1100.0)])
    ledger.look(1220.0, [holding(training_s=1101.0, relative=3.0, sigma=0.1)])
    ledger.look(1280.0, [holding(training_s=1102.0)])  # on its way elsewhere: it trains as before
    again = holding(
        gpus=4,
        start_s=1320.0,
        submit_s=1310.0,
        restarts=1,
        has_trained_before=True,
        is_synergys_restart=True,
        checkpoint_s=10.0,
    )
    ledger.look(1340.0, [again])
    ledger.look(1400.0, [holding(**{**vars(again), "training_s": 1360.0, "relative": 1.0})])
    ledger.look(1460.0, [])
    first, second = kept(ledger)
    assert (first.to_s, first.trained_s, first.restart_s) == (1310.0, 200.0, 10.0)
    assert first.useful_gpu_s == pytest.approx(200 * 3.0 * 4)
    assert first.sigma_gpu_s == pytest.approx(200 * 3.0 * 4 * 0.1)
    assert (second.from_s, second.to_s, second.restart_s, second.stopped_s) == (1320.0, 1430.0, 40.0, 10.0)
    assert second.trained_s == 70.0
    found = totals([first, second])
    assert found.saved_h * 3600 == pytest.approx(200 * 3.0 - 200 - 10 + 70 - 70 - 40 - 10)
    assert found.saved_sigma_h * 3600 == pytest.approx(200 * 3.0 * 0.1)
    assert found.restart_gpu_h * 3600 == pytest.approx(10 * 8 + 40 * 4)


def test_a_change_is_audited_by_what_was_reported_before_and_after_it() -> None:
    ledger = UsageLedger(midnight)
    first = holding(gpus=4, nodes="n1", training_s=1000.0, relative=1.0, goodput=10.0)
    ledger.look(1060.0, [first])
    ledger.look(1160.0, [replace(first, relative=None, decided_change=(8, 1.8))])
    stopped = replace(
        first,
        start_s=None,
        submit_s=1180.0,
        restarts=1,
        training_s=None,
        relative=None,
        goodput=None,
        has_trained_before=True,
    )
    ledger.look(1190.0, [stopped])
    again = replace(stopped, gpus=8, nodes="n1,n2", start_s=1200.0, is_synergys_restart=True, checkpoint_s=5.0)
    ledger.look(1210.0, [again])
    ledger.look(1260.0, [replace(again, training_s=1220.0, relative=1.8, goodput=16.0, is_synergys_restart=False)])
    ledger.look(1320.0, [replace(again, ended_s=1320.0, is_synergys_restart=False)])
    before, after = kept(ledger)
    assert (before.nodes, before.state, before.to_s, before.waited_s) == ("n1", "REQUEUED", 1180.0, 100.0)
    assert before.predicted_ratio is None and before.measured_ratio is None
    assert (after.nodes, after.waited_s, after.stopped_s, after.checkpoint_s) == ("n1,n2", 20.0, 20.0, 5.0)
    assert (after.predicted_ratio, after.measured_s) == (1.8, 100.0) and after.measured_ratio == pytest.approx(1.6)
    found = totals([before, after])
    assert (found.changes, found.audited) == (1, 1)
    assert found.predicted_h * 3600 == pytest.approx(0.8 * 100) and found.measured_h * 3600 == pytest.approx(0.6 * 100)
    assert found.change_h * 3600 == pytest.approx(20 + 20 + 5)
    assert found.prediction_error == pytest.approx(1.8 / 1.6 - 1, abs=0.02)


@pytest.mark.parametrize(
    "missing", [{"goodput": None}, {"decided_change": None}, {"relative": None}, {"decided_change": (2, 1.8)}], ids=str
)
def test_a_change_without_a_prediction_or_reports_is_left_out_and_counted(missing: dict[str, object]) -> None:
    """No report before it, none of the decision, no goodput that is known, and another size than was decided."""
    ledger = UsageLedger(midnight)
    told: dict[str, object] = {"training_s": 1000.0, "relative": 1.0, "goodput": 10.0, "decided_change": (8, 1.8)}
    ledger.look(1060.0, [holding(gpus=4, **(told | missing))])
    again = holding(
        gpus=8, start_s=1200.0, submit_s=1180.0, restarts=1, is_synergys_restart=True, has_trained_before=True
    )
    ledger.look(1210.0, [again])
    ledger.look(1320.0, [replace(again, training_s=1220.0, relative=1.8, goodput=16.0)])
    ledger.look(1380.0, [])
    found = totals(kept(ledger))
    assert (found.changes, found.audited, found.audited_h, found.prediction_error) == (1, 0, 0.0, None)


def test_a_restart_that_synergy_did_not_choose_is_no_change() -> None:
    ledger = UsageLedger(midnight)
    ledger.look(1060.0, [holding(training_s=1000.0, relative=1.0, goodput=10.0, decided_change=(8, 1.8))])
    ledger.look(1210.0, [holding(start_s=1200.0, submit_s=1180.0, restarts=1)])
    ledger.look(1380.0, [])
    assert totals(kept(ledger)).changes == 0


def test_a_daemon_that_comes_back_audits_on() -> None:
    first, second = UsageLedger(midnight), UsageLedger(midnight)
    run = holding(restarts=1, is_synergys_restart=True, training_s=1000.0, relative=1.8, goodput=16.0)
    first.look(1000.0 + WRITE_S, [run])
    (open_part,) = kept(first)
    second.restore([replace(open_part, predicted_ratio=1.8, before_goodput=10.0)])
    second.look(1800.0, [run])
    second.look(1860.0, [replace(run, ended_s=1850.0)])
    (told,) = kept(second)
    assert (told.measured_s, told.predicted_ratio) == (850.0, 1.8) and told.measured_ratio == pytest.approx(1.6)


def test_the_gain_is_the_hours_saved_over_the_hours_spent() -> None:
    found = totals([part(), part(job_id=8, asked_gpus=16)])
    assert found.gain == relative_gain(640 / 4 + 640 / 16, 2 * 95.0) == pytest.approx(200 / 190 - 1)
    assert found.gain == pytest.approx(found.saved_h / found.spent_h)
    assert found.gain_sigma == pytest.approx(found.saved_sigma_h / found.spent_h)
    assert totals([]).gain is None and relative_gain(0.0, 0.0) is None
    slower = totals([part(useful_gpu_s=320.0)])
    assert slower.gain is not None and slower.gain < 0 > slower.saved_h


def test_a_run_is_cut_at_each_midnight() -> None:
    ledger = UsageLedger(midnight)
    ledger.look(2 * DAY + 60.0, [holding(start_s=DAY - 100.0, training_s=DAY + 50.0, relative=2.0)])
    ledger.look(2 * DAY + 120.0, [holding(start_s=DAY - 100.0, ended_s=2 * DAY + 100.0)])
    parts = kept(ledger)
    assert [(p.from_s, p.to_s) for p in parts] == [(DAY - 100, DAY), (DAY, 2 * DAY), (2 * DAY, 2 * DAY + 100)]
    assert [p.trained_s for p in parts] == [0.0, DAY - 50.0, 100.0] and not any(p.is_open for p in parts)
    assert {p.start_s for p in parts} == {DAY - 100.0}


def test_a_daemon_that_comes_back_goes_on() -> None:
    first, second = UsageLedger(midnight), UsageLedger(midnight)
    first.look(1000.0 + WRITE_S, [holding(training_s=1100.0, relative=2.0)])
    second.restore(kept(first))
    second.look(2000.0, [holding(training_s=1100.0, relative=2.0)])
    second.look(2060.0, [holding(ended_s=2050.0)])
    (part,) = kept(second)
    assert (part.from_s, part.to_s, part.trained_s, part.is_open) == (1000.0, 2050.0, 950.0, False)


def test_one_that_was_gone_when_it_came_back_ends_soon_after_it_was_seen_last() -> None:
    first, second = UsageLedger(midnight), UsageLedger(midnight)
    first.look(1000.0 + WRITE_S, [holding()])
    second.restore(kept(first))
    second.look(5 * DAY, [])
    (part,) = kept(second)
    assert part.to_s == 1000.0 + 2 * WRITE_S and not part.is_open


def test_many_looks_store_a_part_now_and_then() -> None:
    ledger = UsageLedger(midnight)
    stored = 0
    for i in range(121):
        ledger.look(1000.0 + 60.0 * i, [holding()])
        stored += len(kept(ledger))
    assert stored == 121 * 60 // WRITE_S + 1


def test_a_start_that_can_not_be_is_left_out() -> None:
    ledger = UsageLedger(midnight)
    ledger.look(1e9, [holding(start_s=0.0), holding(job_id=8, start_s=1e9 + 500)])
    ledger.look(1e9 + 60, [])
    assert kept(ledger) == []


def part(**changes: object) -> Usage:
    told: dict[str, object] = {
        "job_id": 7, "user": "mina", "account": "chem", "start_s": 0.0, "from_s": 0.0, "to_s": 100.0, "gpus": 8,
        "asked_gpus": 4, "trained_s": 80.0, "restart_s": 10.0, "useful_gpu_s": 640.0, "sigma_gpu_s": 64.0, "stopped_s": 5.0,
    }  # fmt: skip
    return Usage(**(told | changes))  # type: ignore[arg-type]


def test_a_part_is_split_in_proportion() -> None:
    early, late = clip_usage(part(), -10.0, 25.0), clip_usage(part(), 25.0, 1000.0)
    assert early is not None and late is not None and clip_usage(part(), 100.0, 200.0) is None
    assert (early.trained_s, late.trained_s, early.stopped_s, late.stopped_s) == (20.0, 60.0, 5.0, 0.0)
    both, whole = totals([early, late]), totals([part()])
    assert both.saved_h == pytest.approx(whole.saved_h) and both.useful_gpu_h == pytest.approx(whole.useful_gpu_h)
    assert (both.jobs, both.held_gpu_h, both.asked_gpu_h) == pytest.approx((1, 800 / 3600, 400 / 3600))


def test_errors_of_one_job_add_up_and_of_different_jobs_do_not() -> None:
    one = totals([part(), part(from_s=100.0, to_s=200.0)]).saved_sigma_h
    two = totals([part(), part(job_id=8)]).saved_sigma_h
    assert one * 3600 == pytest.approx(32.0) and two * 3600 == pytest.approx(16.0 * 2**0.5)


def test_slurms_accounting_corrects_ends_and_adds_what_nobody_saw() -> None:
    run = PastRun(7, "mina", "chem", 0.0, 90.0, 8)
    (shorter,) = reconcile_usage({7: [part()]}, [run], 0.0)
    assert (shorter.to_s, shorter.trained_s) == (90.0, 72.0)
    assert reconcile_usage({7: [shorter]}, [run], 0.0) == []
    cut = [part(is_open=False, to_s=50.0), part(from_s=50.0, to_s=70.0, is_open=True)]
    (longer,) = reconcile_usage({7: cut}, [run], 0.0)
    assert (longer.from_s, longer.to_s, longer.trained_s, longer.is_open) == (50.0, 90.0, 80.0, False)
    unseen = PastRun(7, "mina", "chem", 120.0, 125.0, 2)
    (added,) = reconcile_usage({7: [part()]}, [unseen], 0.0)
    assert (added.from_s, added.to_s, added.gpus, added.asked_gpus, added.trained_s) == (120.0, 125.0, 2, 4, 0.0)
    assert reconcile_usage({7: [part()]}, [unseen], 121.0) == [], "before anything was recorded"
    assert reconcile_usage({7: [part()]}, [PastRun(7, "mina", "chem", 40.0, 100.0, 4)], 0.0) == [], (
        "it was made smaller"
    )
    assert with_end_time(part(), -5.0).held_s == 0.0 and with_end_time(part(), -5.0).trained_s == 0.0


def test_planned_ends_that_an_earlier_version_stored_count_no_further_than_the_next_begin() -> None:
    looks = [part(start_s=t, from_s=t, to_s=t + 3600.0) for t in (100.0, 102.0, 104.0)]
    apart = [part(), *looks, part(from_s=130.0, to_s=200.0), part(job_id=8, from_s=150.0, to_s=160.0)]
    cut = list(without_overlaps(apart))
    assert [(p.from_s, p.to_s) for p in cut] == [
        (0.0, 100.0), (100.0, 102.0), (102.0, 104.0), (104.0, 130.0), (130.0, 200.0), (150.0, 160.0)
    ]  # fmt: skip
    assert cut[0] is apart[0] and cut[1].trained_s == pytest.approx(80.0 * 2 / 3600)


def test_a_run_whose_gpus_change_is_cut_and_its_change_audited() -> None:
    """A live shrink: the processes restart on fewer nodes, then Slurm takes the others back."""
    ledger = UsageLedger(midnight)
    first = holding(
        nodes="n1,n2", training_s=1000.0, relative=2.0, goodput=20.0, order=0, training_gpus=8, asked_gpus=4
    )
    ledger.look(1100.0, [first])
    ledger.look(1200.0, [replace(first, relative=None, decided_change=(4, 1.0), in_transit=True)])
    # its first report with steps says that it has trained since 1240, after 25 s without training
    less = replace(first, relative=None, goodput=None, training_s=1240.0, order=1, training_gpus=4, lost_s=25.0)
    ledger.look(1250.0, [replace(less, in_transit=True)])
    smaller = replace(less, gpus=4, nodes="n1", relative=1.0, goodput=11.0)
    ledger.look(1260.0, [smaller])
    ledger.look(1300.0, [replace(smaller, goodput=11.0)])
    ledger.look(1360.0, [replace(smaller, ended_s=1355.0)])
    rows = {p.from_s: p for p in kept(ledger)}
    before, between, after = (rows[t] for t in sorted(rows))
    assert [(p.from_s, p.to_s, p.gpus, p.nodes, p.state) for p in (before, between, after)] == [
        (1000, 1240, 8, "n1,n2", ""), (1240, 1255, 8, "n1,n2", "RESIZING"), (1255, 1355, 4, "n1", "")
    ]  # fmt: skip
    assert (before.trained_s, before.restart_s, before.predicted_ratio) == (215.0, 25.0, None)
    assert (before.start_s, between.start_s, after.start_s) == (1000, 1000, 1255)
    assert {(p.changed_s, p.predicted_ratio, p.before_goodput) for p in (between, after)} == {(1240, 0.5, 20.0)}
    found = totals([before, between, after])
    assert found.held_gpu_h * 3600 == 8 * 255 + 4 * 100
    assert (found.changes, found.audited) == (1, 1) and found.change_h * 3600 == pytest.approx(25)
    assert found.predicted_h * 3600 == pytest.approx(-0.5 * 100) and after.measured_ratio == pytest.approx(0.55)
    assert found.spent_h * 3600 == pytest.approx(355), "trained or in the restart, all the time"


def test_a_change_of_plan_on_the_same_gpus_is_audited_too() -> None:
    ledger = UsageLedger(midnight)
    first = holding(training_s=1000.0, relative=1.0, goodput=10.0, order=2, decided_change=(8, 1.3), lost_s=40.0)
    ledger.look(1100.0, [first])
    other = replace(
        first, training_s=1130.0, relative=1.3, goodput=12.0, order=3, training_gpus=8, decided_change=None, lost_s=52.0
    )
    ledger.look(1160.0, [other])
    ledger.look(1200.0, [replace(other, ended_s=1200.0)])
    before, after = kept(ledger)
    assert (before.to_s, after.from_s, before.restart_s, after.checkpoint_s) == (1130, 1130, 12.0, 12.0)
    assert (after.predicted_ratio, after.start_s) == (1.3, 1000) and after.measured_ratio == pytest.approx(1.2)


def test_the_restart_that_began_an_incarnation_is_no_part_of_a_later_change() -> None:
    ledger = UsageLedger(midnight)
    run = holding(restarts=1, submit_s=990.0, is_synergys_restart=True, in_transit=True, has_trained_before=True)
    ledger.look(1005.0, [run])
    trains = replace(run, training_s=1030.0, relative=1.0, goodput=9.0, order=0, in_transit=False, lost_s=45.0)
    ledger.look(1100.0, [trains])
    ledger.look(1200.0, [replace(trains, training_s=1150.0, order=1, lost_s=52.0)])
    ledger.look(1210.0, [])
    before, after = kept(ledger)
    assert (before.restart_s, after.checkpoint_s) == (30.0 + 7.0, 7.0)


def test_a_daemon_that_comes_back_goes_on_with_a_run_that_was_made_smaller() -> None:
    first, second = UsageLedger(midnight), UsageLedger(midnight)
    first.look(1100.0, [holding()])
    first.look(1200.0, [holding(gpus=4)])
    second.restore(p for p in kept(first) if p.is_open)
    second.look(1300.0, [holding(gpus=4)])
    second.look(1400.0, [holding(gpus=4, ended_s=1390.0)])
    (part,) = kept(second)
    assert (part.start_s, part.from_s, part.to_s, part.gpus) == (1150, 1150, 1390, 4)


def test_what_slurm_says_of_a_job_whose_nodes_leave_it_is_no_change_of_size() -> None:
    ledger = UsageLedger(midnight)
    ledger.look(1100.0, [holding()])
    ledger.look(1200.0, [holding(gpus=4, ended_s=1190.0)])
    (part,) = [p for p in kept(ledger) if not p.is_open]
    assert (part.to_s, part.gpus) == (1190, 8)


def test_a_run_that_goes_on_without_a_lost_node_is_no_more_what_was_predicted() -> None:
    ledger = UsageLedger(midnight)
    first = holding(training_s=1000.0, relative=1.0, goodput=10.0, order=0, training_gpus=4, decided_change=(8, 1.8))
    ledger.look(1100.0, [first])
    wide = replace(first, training_s=1110.0, relative=1.8, goodput=18.0, order=1, training_gpus=8, decided_change=None)
    ledger.look(1200.0, [wide])
    alone = replace(wide, training_s=1210.0, relative=1.0, goodput=10.0, training_gpus=4)
    ledger.look(1300.0, [alone])
    ledger.look(1400.0, [replace(alone, ended_s=1400.0)])
    found = kept(ledger)
    assert [(p.from_s, p.to_s, p.predicted_ratio) for p in found] == [
        (1000, 1110, None), (1110, 1210, 1.8), (1210, 1400, None)
    ]  # fmt: skip
    assert found[1].measured_ratio == pytest.approx(1.8) and totals(found).changes == 1


def test_a_change_that_is_reported_after_the_gpus_have_gone_takes_its_seconds_from_both_parts() -> None:
    ledger = UsageLedger(midnight)
    first = holding(training_s=1000.0, relative=2.0, goodput=20.0, order=0, training_gpus=8, decided_change=(4, 1.0))
    ledger.look(1100.0, [first])
    less = replace(first, gpus=4, relative=None, goodput=None, in_transit=True)
    ledger.look(1102.0, [less])
    ledger.look(1104.0, [replace(less, training_s=1102.5, order=1, training_gpus=4, lost_s=7.0)])
    ledger.look(
        1200.0, [replace(less, training_s=1102.5, order=1, training_gpus=4, lost_s=7.0, relative=1.0, ended_s=1200.0)]
    )
    parts = {p.from_s: p for p in kept(ledger)}
    assert [(t, p.gpus, p.trained_s, p.restart_s) for t, p in sorted(parts.items())] == [
        (1000, 8, 95.5, 5.5), (1101, 4, 0.0, 1.5), (1102.5, 4, 97.5, 0.0)
    ]  # fmt: skip
    assert parts[1102.5].checkpoint_s == 7.0 and parts[1102.5].predicted_ratio == 0.5


def test_what_a_change_takes_counts_once() -> None:
    """The end of the part before it is no part of the change before."""
    audit: dict[str, object] = {
        "predicted_ratio": 1.0,
        "before_goodput": 1.0,
        "measured_s": 80.0,
        "measured_work": 80.0,
    }
    first = part(checkpoint_s=4.0, stopped_s=0.0, restart_s=5.0, changed_s=0.0, **audit)
    second = part(from_s=100.0, to_s=200.0, checkpoint_s=5.0, stopped_s=0.0, restart_s=0.0, changed_s=100.0, **audit)
    assert totals([first, second]).change_h * 3600 == pytest.approx(4 + 5)
    pieces = [clip_usage(first, 0.0, 70.0), clip_usage(first, 70.0, 100.0), second]
    assert totals(p for p in pieces if p is not None).change_h * 3600 == pytest.approx(4 + 5)


def test_a_change_that_is_seen_before_its_cost_is_charged_once_that_is_known() -> None:
    ledger = UsageLedger(midnight)
    first = holding(training_s=1000.0, relative=1.0, goodput=10.0, order=0, training_gpus=8, decided_change=(8, 1.3))
    ledger.look(1100.0, [first])
    other = replace(first, training_s=1130.0, goodput=12.0, order=1, decided_change=None, in_transit=True)
    ledger.look(1131.0, [other])
    ledger.look(1135.0, [replace(other, in_transit=False, lost_s=9.0)])
    ledger.look(1200.0, [replace(other, in_transit=False, lost_s=9.0, ended_s=1200.0)])
    before, after = kept(ledger)
    assert (before.restart_s, before.trained_s, after.checkpoint_s) == (9.0, 121.0, 9.0)
    assert totals([before, after]).change_h * 3600 == pytest.approx(9)
