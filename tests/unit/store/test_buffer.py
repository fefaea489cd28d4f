"""The queue in front of the database: room, back-off, threads, a file that is taken away."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from synergy_core.errors import UnavailableError, UsageError
from synergy_core.records import Profile

from synergyd.store.buffer import LAST_RETRY_S, BufferedStore
from synergyd.store.records import Changes, EpochRecord, StoredEvent
from synergyd.store.store import Store, open_store
from synergyd.store.write_queue import WriteQueue, size
from tests.unit.store.store_world import Clock, epoch, lifecycle


def away() -> Store:
    raise UnavailableError("database", "is away")


@pytest.fixture
def opener(tmp_path: Path) -> Callable[[], Store]:
    return lambda: open_store(f"sqlite:///{tmp_path / 'x.db'}", create=True)


def test_back_off_doubles_to_a_bound() -> None:
    clock, tries = Clock(), 0

    def counted() -> Store:
        nonlocal tries
        tries += 1
        return away()

    buffer = BufferedStore(counted, clock)
    waits = []
    for _ in range(9):
        assert not buffer.flush()
        waits.append(buffer.retry_in_s)
        clock.now += buffer.retry_in_s - 0.01
        assert not buffer.flush() and not buffer.refresh() and buffer.prune(1.0) == 0
        clock.now += 0.01
    assert waits == [1, 2, 4, 8, 16, 32, LAST_RETRY_S, LAST_RETRY_S, LAST_RETRY_S]
    assert tries == 9 and buffer.problem == "database: is away"


def test_room_epochs_go_before_events(opener: Callable[[], Store]) -> None:
    clock, is_away = Clock(), True
    buffer = BufferedStore(lambda: away() if is_away else opener(), clock, room=10)
    for n in range(6):
        buffer.append_events([StoredEvent(1, float(n), "RUNNING", str(n))])
        buffer.save_epoch(epoch(float(n), 1))  # two rows
    assert buffer.lag == 10 and buffer.drop_counts.epochs == 8 and buffer.drop_counts.events == 0
    for n in range(6, 13):
        buffer.append_events([StoredEvent(1, float(n), "RUNNING", str(n))])
    assert buffer.lag == 10 and buffer.drop_counts.epochs == 12 and buffer.drop_counts.events == 3
    is_away = False
    assert buffer.flush()
    with opener() as store:
        assert [e.event for e in store.story(1)] == [str(n) for n in range(3, 13)]
        assert store.latest_epoch() is None
    buffer.close()


def test_state_waits_once_a_job(opener: Callable[[], Store]) -> None:
    buffer = BufferedStore(opener, Clock(), room=1)
    for n in range(100):
        buffer.put_lifecycles([lifecycle(1, f"S{n}"), lifecycle(2)])
        buffer.put_profiles({"job:1": Profile(samples=n)}, 1.0)
    buffer.delete_lifecycles([2])
    assert buffer.lag == 3 and list(buffer.state.lifecycles) == [1]
    assert buffer.flush() and buffer.drop_counts.epochs == 0
    with opener() as store:
        assert {k: v.state for k, v in store.lifecycles().items()} == {1: "S99"}
        assert store.profiles()["job:1"].samples == 99
    buffer.close()


def test_a_long_queue_goes_in_several_transactions_state_last() -> None:
    waiting = WriteQueue(100_000)
    for n in range(30):
        waiting.add(tuple(StoredEvent(j, float(n), "RUNNING", "x") for j in range(400)))
    waiting.put(("lifecycle", 1), _lifecycle_change())
    seen: list[tuple[int, int]] = []
    while batch := waiting.take():
        seen.append((sum(size(k.item) for k in batch.history), len(batch.state)))
        waiting.remove_written(batch)
    assert seen == [(4800, 0), (4800, 0), (2400, 1)] and len(waiting) == 0


def test_a_state_put_anew_during_the_write_stays() -> None:
    waiting = WriteQueue(10)
    waiting.put(("lifecycle", 1), _lifecycle_change())
    batch = waiting.take()
    assert batch is not None
    newer = _lifecycle_change()
    waiting.put(("lifecycle", 1), newer)
    waiting.remove_written(batch)
    assert waiting.state() == [newer]


def test_an_epoch_larger_than_the_room_is_dropped_alone() -> None:
    waiting = WriteQueue(3)
    waiting.add((StoredEvent(1, 1.0, "RUNNING", "a"),))
    waiting.add(epoch(1.0, *range(10)))
    assert len(waiting) == 1 and waiting.drop_counts.epochs == 11


def test_a_wrong_set_up_is_raised_at_the_start_only(opener: Callable[[], Store]) -> None:
    def wrong() -> Store:
        raise UsageError("database URL", "can't be read as a URL")

    with pytest.raises(UsageError):
        BufferedStore(wrong, Clock()).refresh()
    openers = [opener, wrong, opener]
    clock = Clock()
    buffer = BufferedStore(lambda: openers.pop(0)(), clock)
    assert buffer.refresh()
    buffer._note_failure(UsageError("x", "schema taken away"))
    clock.now += 1.0
    buffer.append_events([StoredEvent(1, 1.0, "RUNNING", "a")])
    assert not buffer.flush() and "can't be read" in buffer.problem
    clock.now += 2.0
    assert buffer.flush() and buffer.problem == ""
    buffer.close()


def test_a_database_file_that_is_taken_away_is_made_anew(opener: Callable[[], Store], tmp_path: Path) -> None:
    clock = Clock()
    buffer = BufferedStore(opener, clock)
    assert buffer.refresh()
    (tmp_path / "x.db").unlink()
    buffer.append_events([StoredEvent(1, 1.0, "RUNNING", "a")])
    assert not buffer.flush() and "can't be opened" in buffer.problem
    clock.now += 1.0
    assert buffer.flush()
    with opener() as store:
        assert len(store.story(1)) == 1
    buffer.close()


def test_threads_report_while_the_daemon_writes(opener: Callable[[], Store]) -> None:
    buffer = BufferedStore(opener, Clock())
    buffer.put_lifecycles([lifecycle(j) for j in range(4)])
    assert buffer.refresh()

    def report(job_id: int) -> None:
        for n in range(200):
            buffer.append_events([StoredEvent(job_id, float(n), "RUNNING", str(n))])
            buffer.put_profiles({f"job:{job_id}": Profile(samples=n)}, 1.0)

    threads = [threading.Thread(target=report, args=(j,)) for j in range(4)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        assert buffer.refresh()
    for thread in threads:
        thread.join()
    assert buffer.flush()
    with opener() as store:
        for j in range(4):
            assert [e.event for e in store.story(j)] == [str(n) for n in range(200)]
            assert buffer.state.profiles[f"job:{j}"].samples == 199 == store.profiles()[f"job:{j}"].samples
    buffer.close()


def test_close_tries_once_more(opener: Callable[[], Store]) -> None:
    is_away = True
    buffer = BufferedStore(lambda: away() if is_away else opener(), Clock())
    assert buffer.close()  # nothing to write, nothing lost
    buffer.save_epoch(EpochRecord(1.0, 0.1, False))
    assert not buffer.flush() and not buffer.close()
    is_away = False
    assert buffer.close()
    with opener() as store:
        assert store.latest_epoch() == EpochRecord(1.0, 0.1, False)


def _lifecycle_change() -> Changes:
    return Changes(lifecycles=(lifecycle(1),))
