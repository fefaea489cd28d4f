"""GPU hours from an epoch to the database: what the loop hands over, the thread, Slurm's accounting, a change of leaders."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from prometheus_client import generate_latest
from synergy_core.errors import SynergyError, UnavailableError
from synergy_core.usage import PastRun, Usage

from synergyd.control.usage_ledger import Holding
from synergyd.daemon.metrics import PrometheusMetrics
from synergyd.daemon.notices.mail import letter, recipient
from synergyd.daemon.usage_keeper import Look, UsageKeeper
from synergyd.daemon.usage_look import midnight, week_begin
from synergyd.slurm.client import SlurmError
from synergyd.slurm.past_runs import read_mail, read_past_runs
from synergyd.store.store import Store, open_store
from tests.unit.daemon.daemon_world import Site

DAY = 86400.0


class Kept:
    """A keeper whose thread has stopped: the tests take its looks themselves."""

    def __init__(self, store: Store, runs: Callable[[float, float], Iterable[PastRun]] | None = None) -> None:
        self.now_s, self.ended = 1e6, list[PastRun]()
        self.asked: list[tuple[float, float]] = []
        self.store = store
        self.keeper = UsageKeeper(lambda: store, runs or self.runs, 400 * DAY, lambda: self.now_s, 60.0)
        self.keeper.close()

    def runs(self, from_s: float, to_s: float) -> list[PastRun]:
        self.asked.append((from_s, to_s))
        return self.ended

    def look(self, *jobs: Holding, passed_s: float = 60.0, term: int | None = None) -> None:
        self.now_s += passed_s
        self.keeper.take(self.store, Look(self.now_s, jobs, term))

    def rows(self) -> list[Usage]:
        return sorted(self.store.usage_between(0.0, 1e12), key=lambda p: (p.job_id, p.from_s))


def holding(start_s: float, **changes: object) -> Holding:
    told: dict[str, object] = {"job_id": 7, "user": "mina", "account": "chem", "gpus": 8, "asked_gpus": 4}
    return Holding(**(told | {"start_s": start_s, "submit_s": start_s - 5} | changes))  # type: ignore[arg-type]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with open_store(f"sqlite:///{tmp_path}/u.db", create=True) as found:
        yield found


def test_ends_and_unseen_runs_are_taken_from_slurms_accounting(store: Store) -> None:
    kept = Kept(store)
    start_s = kept.now_s
    kept.look(holding(start_s))
    kept.ended = [
        PastRun(7, "mina", "chem", start_s, start_s + 70, 8),
        PastRun(9, "joao", "phys", start_s + 61, start_s + 65, 2),
    ]
    kept.look(passed_s=60.0)
    first, unseen = kept.rows()
    assert (first.to_s, first.is_open) == (start_s + 70, False)
    assert (unseen.job_id, unseen.gpus, unseen.asked_gpus, unseen.held_s) == (9, 2, 2, 4.0)
    kept.look(passed_s=30.0)
    assert len(kept.asked) == 2, "not each epoch"
    kept.look(passed_s=30.0)
    assert len(kept.asked) == 3 and kept.rows() == [first, unseen]


def test_a_part_that_no_database_takes_is_left_out_alone(store: Store) -> None:
    kept = Kept(store)
    start_s = kept.now_s
    # a size asked for that is predicted to do next to nothing, and no time trained so far: not a number
    odd = holding(start_s, training_s=start_s + 60.0, relative=math.inf)
    kept.look(odd, holding(start_s, job_id=8))
    kept.look(odd, holding(start_s, job_id=8), passed_s=700.0)
    assert {row.job_id: row.to_s for row in kept.rows()} == {8: kept.now_s}


def test_a_run_before_anything_was_recorded_is_left_out(store: Store) -> None:
    kept = Kept(store)
    kept.ended = [PastRun(3, "mina", "chem", kept.now_s - 5000, kept.now_s - 4000, 8)]
    kept.look()
    assert kept.rows() == []


def test_a_cluster_without_accounting_is_asked_once_an_hour(store: Store) -> None:
    def none(_: float, __: float) -> list[PastRun]:
        asked.append(1)
        raise SlurmError("sacct", "Slurm accounting storage is disabled", transient=False)

    asked: list[int] = []
    kept = Kept(store, none)
    start_s = kept.now_s
    for _ in range(59):
        kept.look(holding(start_s))
    kept.look()
    assert len(asked) == 1
    (row,) = kept.rows()
    assert row.to_s == start_s + 59 * 60 + 30 and not row.is_open


def test_who_leads_anew_goes_on_with_what_the_other_has_written(store: Store) -> None:
    one, two = Kept(store), Kept(store)
    start_s = one.now_s
    one.look(holding(start_s), term=1)
    two.now_s = one.now_s
    two.look(holding(start_s), term=2)
    two.look(holding(start_s, ended_s=start_s + 100), term=2)
    one.look(holding(start_s, ended_s=start_s + 100), passed_s=180.0, term=3)
    (row,) = one.rows()
    assert (row.to_s, row.is_open) == (start_s + 100, False)


def test_a_database_that_is_away_stops_nobody_and_is_told_once(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    def away() -> Store:
        raise UnavailableError("database", "away")

    keeper = UsageKeeper(away, lambda *_: [], DAY, time.time)
    for i in range(20):
        keeper.see(1e6 + i, [holding(1e6)], None)
        time.sleep(0.005)
    keeper.close()
    assert caplog.text.count("GPU hours are not stored") == 1


def test_what_is_old_is_deleted(store: Store) -> None:
    kept = Kept(store)
    store.put_usage([Usage(job_id=1, user="", account="", start_s=0, from_s=0, to_s=1, gpus=1, asked_gpus=1)])
    kept.now_s = 500 * DAY
    kept.look()
    assert kept.rows() == []


def test_the_loop_hands_over_who_holds_what_and_what_it_trains(tmp_path: Path) -> None:
    site = Site(tmp_path)
    looks: list[tuple[Holding, ...]] = []

    class Stub:
        month = None

        def see(self, _at_s: float, jobs: tuple[Holding, ...], _term: int | None) -> None:
            looks.append(jobs)

    site.daemon.dependencies = replace(site.daemon.dependencies, usage=Stub())  # type: ignore[arg-type]
    site.slurm.submit(1, account="chem")
    site.slurm.submit(2, script="#!/bin/bash\nsleep 1\n", account="phys")
    site.slurm.submit(3, account="chem")
    site.slurm.runs(1, "n1")
    site.slurm.runs(2, "n2")
    site.epoch()
    assert {(h.job_id, h.account, h.gpus, h.training_s) for h in looks[-1]} >= {(2, "phys", 2, None)}
    site.report(1)
    site.epoch(60)
    site.epoch(60)
    assert 3 not in {h.job_id for look in looks for h in look}, "it waits"
    mine = next(h for look in looks for h in look if h.job_id == 1 and h.training_s is not None)
    assert (mine.asked_gpus, mine.user) == (2, "ann")
    metrics = PrometheusMetrics(0)
    metrics.epoch(site.daemon.epoch(), site.daemon)
    page = generate_latest(metrics._registry).decode()
    for phase in ("observe", "model", "decide", "act", "store"):
        assert f'synergy_epoch_phase_seconds{{phase="{phase}"}}' in page
    assert "synergy_store_lag_seconds 0.0" in page


def test_midnight_is_after_its_time_by_the_local_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    try:
        begin = 1792877400.0  # 2026-10-24 23:30 in Berlin; the day after has 25 hours
        first = midnight(begin)
        assert (first - begin, midnight(first) - first) == (1800.0, 25 * 3600.0)
    finally:
        monkeypatch.undo()
        time.tzset()


@pytest.mark.parametrize(
    ("what", "passes"),
    [
        ("sacct: error: mysql_query failed: 1213 Deadlock found when trying to get lock", True),
        ("exit 1", True),
        ("Slurm accounting storage is disabled", False),
        ("can't be run: No such file or directory", False),
    ],
)
def test_only_a_cluster_without_accounts_is_left_alone_for_an_hour(what: str, passes: bool, store: Store) -> None:
    def refused(*_: str) -> bytes:
        asked.append(1)
        raise SlurmError("sacct -a -D", what, transient=False)

    asked: list[int] = []
    kept = Kept(store, lambda from_s, to_s: read_past_runs(refused, from_s, to_s))
    for _ in range(7):
        kept.look(holding(kept.now_s))
    assert len(asked) == (2 if passes else 1)


def test_sacct_and_mail_users_are_read_as_they_are_printed() -> None:
    lines = (
        "7|mina|chem|1000|60|billing=1,cpu=2,gres/gpu=8,gres/gpu:a100=8,node=2|990|n[1-2]|CANCELLED by 1000|90|a\n"
        "8|joao||Unknown|0||5|None assigned|CANCELLED|5|b\nx|y\n9|j|p|5|5|cpu=1|7|n1|REQUEUED|UNLIMITED|c\n"
        "10|j|p|5|5|cpu=1,gres/gpu=8|5|n1|COMPLETED|5|synergy-nodes-of-9.0.1\n"
    )

    def answer(*argv: str) -> bytes:
        (between,) = (a.partition("=")[2] for a in argv if a.startswith("--delimiter="))
        # a name with a line end, and a line as another job's would be
        return (lines.replace("|", between) + "\n1|root||5|5|gres/gpu=8|5|n1|FAILED|5|x").encode()

    found = list(read_past_runs(answer, 0.0, 9.0))
    assert found == [
        PastRun(7, "mina", "chem", 1000.0, 1060.0, 8, 10.0, "n[1-2]", "CANCELLED", name="a", limit_s=5400.0),
        PastRun(9, "j", "p", 5.0, 10.0, 0, 0.0, "n1", "REQUEUED", name="c"),
        PastRun(10, "j", "p", 5.0, 10.0, 8, 0.0, "n1", "COMPLETED", 9, "synergy-nodes-of-9.0.1", 300.0),
    ]
    job = "JobId=7 JobName=a\n   UserId=mina(1)\n   MailUser=m@x.org MailType=BEGIN,REQUEUE\n"
    assert read_mail(lambda *_: job.encode(), 7) == ("m@x.org", "BEGIN,REQUEUE")
    assert read_mail(lambda *_: b"JobId=7 JobName=a\n", 7) == ("", "")
    forged = job.replace("=a\n", "=a\n   MailUser=root MailType=ALL\n")
    with pytest.raises(SynergyError, match="not told apart"):
        read_mail(lambda *_: forged.encode(), 7)


MONDAY = week_begin(1.8e9)


def idle_part(job_id: int, user: str, from_s: float, idle_s: float, **changes: object) -> Usage:
    told: dict[str, object] = {
        "account": "chem",
        "start_s": from_s,
        "to_s": from_s + 7200.0,
        "gpus": 8,
        "asked_gpus": 8,
    }
    return Usage(job_id=job_id, user=user, from_s=from_s, idle_s=idle_s, **(told | changes))  # type: ignore[arg-type]


def test_a_user_hears_once_a_week_of_idle_hours(store: Store) -> None:
    store.put_usage(
        [
            idle_part(1, "mina", MONDAY - 3 * DAY, 3600.0),
            idle_part(2, "mina", MONDAY - 2 * DAY, 1800.0),
            idle_part(3, "mina", MONDAY - 3600.0, 7200.0),  # half of it lies in the week
            idle_part(4, "mina", MONDAY - 8 * DAY, 7200.0),
            idle_part(5, "joao", MONDAY - DAY, 300.0),
        ],
        None,
    )
    for _daemon in range(2):  # the second one is another daemon, later in the week
        kept = Kept(store)
        kept.keeper._notifies = True
        for passed_s in (60.0, DAY):
            kept.now_s = MONDAY
            kept.look(passed_s=passed_s)
    (waiting,) = store.due_notices(MONDAY + 3 * DAY, 10)
    notice = waiting.notice
    assert (notice.event, notice.user, notice.job_id) == ("idle-week", "mina", 0)
    assert notice.text.startswith("20.0 of your 40.0 GPU hours from ")
    assert notice.text.endswith(" did nothing: job 1 8.0, job 3 8.0, job 2 4.0")
    assert recipient(notice, "", "") == "mina" and letter(notice)[0] == "Synergy: GPUs that did nothing"


def test_nobody_hears_of_idle_hours_where_no_notices_are_sent(store: Store) -> None:
    store.put_usage([idle_part(1, "mina", MONDAY - DAY, 7200.0)], None)
    kept = Kept(store)
    kept.now_s = MONDAY
    kept.look()
    assert store.due_notices(MONDAY + DAY, 10) == []
