"""Leadership in a SQLite file: it ends with the process at once."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from synergy_core.errors import UsageError

from synergyd.store import connect, process
from synergyd.store.buffer import BufferedStore
from synergyd.store.leader import CLAIM_S, ORPHAN_S, TERM_S, Leader
from synergyd.store.records import StoredEvent
from synergyd.store.store import open_store
from tests.throwaway.sqlite_lock import locked_by_a_reader
from tests.unit.store.store_world import Clock

CHILD = """
import sys, time
from synergyd.store.leader import Leader
leader = Leader(sys.argv[1], clock=time.time)
print(leader.try_lead(), flush=True)
sys.stdin.read()
"""


@pytest.fixture
def url(tmp_path: Path) -> str:
    made = f"sqlite:///{tmp_path / 'x.db'}"
    open_store(made, create=True).close()
    return made


@pytest.mark.slow
def test_kill_9_frees_the_lock(url: str) -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, url], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None and child.stdin is not None
    try:
        assert child.stdout.readline() == "True\n"
        leader = Leader(url, clock=Clock())
        assert not leader.try_lead()
        os.kill(child.pid, signal.SIGKILL)
        child.wait()
        assert leader.try_lead() and leader.term == 2
        leader.release()
    finally:
        child.kill()
        child.wait()
        child.stdout.close()
        child.stdin.close()


def test_a_busy_database_does_not_end_leadership(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connect, "BUSY_S", 0.01)
    one, two = Leader(url, clock=Clock()), Leader(url, clock=Clock())
    assert one.try_lead()
    other = sqlite3.connect(tmp_path / "x.db", isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    assert one.try_lead() and one.is_database_away and "locked" in one.problem
    assert not two.try_lead() and two.is_database_away
    other.close()
    assert not two.try_lead() and not two.is_database_away and one.try_lead()
    one.release()
    assert two.try_lead()
    two.release()


@pytest.mark.parametrize("started", ["while it is locked", "before, behind a leader that is gone", "before, and led"])
def test_a_lock_that_never_ends_keeps_no_daemon_from_leading(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, started: str
) -> None:
    monkeypatch.setattr(connect, "BUSY_S", 0.01)
    now, clock = Clock(), Clock()
    waits = BufferedStore(lambda: open_store(url), now)
    daemon = Leader(url, clock=clock, elapsed=now)
    if "behind" in started:
        assert Leader(url, clock=clock, elapsed=now, pid=1).try_lead()  # on another host, for all that can be told
        assert not daemon.try_lead()
    elif "led" in started:
        assert daemon.try_lead()
        assert not Leader(url, clock=clock, elapsed=now).try_lead()  # one that stands by, and is killed
        assert daemon.try_lead() and daemon.is_followed
    with locked_by_a_reader(tmp_path / "x.db"):
        assert "locked" in (daemon.try_lead(), daemon.problem)[1]
        now.now += TERM_S
        waits.append_events([StoredEvent(1, 1.0, "RUNNING", "a")])
        assert waits.refresh() is False and waits.lag == 1 and "locked" in waits.problem
        assert not daemon.try_lead()
        now.now += ORPHAN_S
        assert not daemon.try_lead()  # it has claimed it
        now.now += CLAIM_S
        assert daemon.try_lead() and daemon.is_database_away
        now.now += 1000.0
        daemon.try_lead()
        assert daemon.is_leading
    now.now += 1000.0
    assert daemon.try_lead() and not daemon.is_database_away and daemon.term
    assert waits.refresh() and waits.lag == 0
    with open_store(url) as store:
        assert [e.event for e in store.story(1)] == ["a"]
    daemon.release()


def test_links_to_one_database_are_one_database(url: str, tmp_path: Path) -> None:
    (tmp_path / "link.db").symlink_to(tmp_path / "x.db")
    one, two = Leader(url, clock=Clock()), Leader(f"sqlite:///{tmp_path / 'link.db'}", clock=Clock())
    assert one.try_lead() and not two.try_lead()
    one.release()


def test_a_database_in_memory_has_no_leader() -> None:
    with pytest.raises(UsageError, match="in memory has no leader"):
        Leader("sqlite://", clock=Clock())


def test_a_process_is_gone_only_for_certain(monkeypatch: pytest.MonkeyPatch) -> None:
    me = process.this_process()
    boot, namespace, pid, started = me.split()
    assert not process.has_ended(me)
    assert process.has_ended(f"{boot} {namespace} {pid} {int(started) + 1}")  # its number was given to another
    for text in ("", "x", f"{boot} {namespace} {pid}", f"{boot} {namespace} {pid} x", f"other {namespace} {pid} 1"):
        assert not process.has_ended(text)
    assert not process.has_ended(f"{boot} pid:[1] {pid} 1")
    child = subprocess.Popen([sys.executable, "-c", "from synergyd.store import process; print(process.this_process())"],
                             stdout=subprocess.PIPE, text=True)  # fmt: skip
    assert child.stdout is not None
    told = child.stdout.readline()
    child.stdout.read()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert process.has_ended(told)  # ended, and not waited for
    child.wait()
    child.stdout.close()
    assert process.has_ended(told)
