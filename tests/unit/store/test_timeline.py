"""Charts folded from stored epochs: a day's window, daemons that restart, epochs that can't be read."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import pytest
from synergy_core.errors import UnavailableError
from synergy_core.records import Cluster, Job, JobState, Node, Shape, Snapshot

from synergyd.control.queue_history import QueueHistory
from synergyd.store.records import EpochRecord
from synergyd.store.store import Store, open_store
from synergyd.views import timeline
from synergyd.views.timeline import MOST_TOTALS, WINDOW_S, Timeline

NOW_S = time.time()
TWO, FOUR = Shape("a100", 1, 2), Shape("a100", 1, 4)
JOB = Job(1, "j", "ann", 1, "p", JobState.RUNNING, "", 0.0, 0.0, None, 0, TWO, TWO, ("n1",), account="a")
OTHER = replace(JOB, job_id=2, node_names=("n2",))
CLUSTER = Cluster((Node("n1", "a100", 4, 2), Node("n2", "a100", 4, 2)))


@pytest.fixture(autouse=True)
def always_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timeline, "READ_S", 0.0)


def save(store: Store, history: QueueHistory, back_s: float, *jobs: Job) -> None:
    at_s = NOW_S - back_s
    summary = history.epoch(Snapshot(at_s, CLUSTER, jobs), (), {}, at_s)
    store.save_epoch(EpochRecord(at_s, 0.1, False, (), {"gpus": 8, **summary}))


def held(line: Timeline, job_id: int) -> list[tuple[float, float, int]]:
    bars = {bar.job_id: bar for bar in line.history(lambda *_: True).jobs}
    return (
        [(round(NOW_S - h.from_s), round(NOW_S - h.to_s), h.gpus) for h in bars[job_id].held] if job_id in bars else []
    )


def test_sizes_restarts_and_ends_become_a_bar(tmp_path: Path) -> None:
    with open_store(f"sqlite:///{tmp_path}/s.db", create=True) as store:
        line, history = Timeline(store), QueueHistory()
        save(store, history, 400, replace(JOB, state=JobState.PENDING, node_names=()), OTHER)
        save(store, history, 300, JOB, OTHER)
        assert held(line, 1) == [(400, 300, 0), (300, 300, 2)]
        save(store, history, 200, replace(JOB, shape=FOUR, restarts=1))
        save(store, history, 100, replace(JOB, shape=FOUR, restarts=1))
        assert held(line, 1) == [(400, 300, 0), (300, 200, 2), (200, 100, 4)]  # read on from where it stood
        assert held(line, 2) == [(400, 200, 2)]
        assert [n.other_gpus for n in line.cluster(lambda *_: True, True).nodes] == [0, 2]


def test_a_job_that_went_while_no_daemon_looked_ends_with_the_next_one(tmp_path: Path) -> None:
    with open_store(f"sqlite:///{tmp_path}/s.db", create=True) as store:
        save(store, QueueHistory(), 400, JOB, OTHER)
        save(store, QueueHistory(), 100, JOB)  # a new daemon writes all of it
        line = Timeline(store)
        assert held(line, 1) == [(400, 100, 2)] and held(line, 2) == [(400, 100, 2)]
        told = line.cluster(lambda *_: True, True)
        assert [[h.job_id for h in n.jobs] for n in told.nodes] == [[1], []]


def test_a_copy_put_in_the_databases_place_is_read_from_its_begin(tmp_path: Path) -> None:
    file = tmp_path / "s.db"
    with open_store(f"sqlite:///{file}", create=True) as store:
        history, line = QueueHistory(), Timeline(store)
        save(store, history, 400, JOB)
        copy = file.read_bytes()
        for n in range(3):
            save(store, history, 300 - n, JOB, OTHER)
        assert held(line, 1) == [(400, 298, 2)] and held(line, 2) == [(300, 298, 2)]
        for left in tmp_path.iterdir():
            left.unlink()
        file.write_bytes(copy)
        assert held(line, 1) == [(400, 400, 2)] and held(line, 2) == []
        save(store, QueueHistory(), 100, JOB)
        assert held(line, 1) == [(400, 100, 2)]


@pytest.mark.slow
def test_a_day_is_kept_and_no_more(tmp_path: Path) -> None:
    with open_store(f"sqlite:///{tmp_path}/s.db", create=True) as store:
        history = QueueHistory()
        save(store, history, WINDOW_S + 9000, OTHER)
        save(store, history, WINDOW_S + 3000, JOB, OTHER)
        save(store, history, WINDOW_S + 2000, JOB)
        for n in range(1000):
            save(store, history, 1000 - n, JOB)
        line = Timeline(store)
        assert held(line, 2) == [] and held(line, 1)[0][1:] == (1, 2)
        day = line.history(lambda *_: True)
        assert len(day.totals) <= MOST_TOTALS and day.to_s - day.from_s == WINDOW_S
        assert line.job(99).held == ()


def test_an_epoch_of_another_version_tells_nothing(tmp_path: Path) -> None:
    with open_store(f"sqlite:///{tmp_path}/s.db", create=True) as store:
        for summary in ({}, {"gpus": 8}, {"goodput_gpus": 1, "plain_gpus": "x", "gpus": 8}, {"goodput_gpus": None}):
            store.save_epoch(EpochRecord(NOW_S - 60, 0.1, False, (), summary))
        wrong: tuple[list[object], ...] = ([{}], [[1]], [{"job": 1}])
        for rows in wrong:
            told = {"goodput_gpus": 1.0, "plain_gpus": 1.0, "gpus": 8, "job_changes": rows}
            store.save_epoch(EpochRecord(NOW_S - 50, 0.1, False, (), told))
        line = Timeline(store)
        assert line.cluster(lambda *_: True, True).nodes == () and line.history(lambda *_: True).jobs == ()
        save(store, QueueHistory(), 10, JOB)
        assert len(line.cluster(lambda *_: True, True).nodes) == 2 and held(line, 1) == [(10, 10, 2)]


def test_a_database_that_is_away_leaves_what_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def away(*_: object) -> None:
        raise UnavailableError("database", "is away")

    with open_store(f"sqlite:///{tmp_path}/s.db", create=True) as store:
        save(store, QueueHistory(), 100, JOB)
        line, never = Timeline(store), Timeline(store)
        assert held(line, 1)
        monkeypatch.setattr(store, "epochs_since", away)
        assert held(line, 1) == [(100, 100, 2)]
        with pytest.raises(UnavailableError):
            never.history(lambda *_: True)
