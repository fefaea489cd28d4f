"""Reports of jobs that have no munge: signed with a key of one job, one incarnation and one user, and nobody else's."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from synergyd.daemon import job_keys
from synergyd.daemon.adoption import remove_plan
from synergyd.daemon.job_keys import JobKeys, key_path
from synergyd.daemon.report_inbox import ReportInbox
from synergyd.errors import UnavailableError, UsageError
from synergyd.job_report import Report
from synergyd.records import Plan
from synergyd.wire import job_key, munge
from synergyd.wire.job_key import key_of, opened
from synergyd.wire.report import Told, send, to_json
from tests.unit.slurm.fake_slurm import row

UID = os.getuid()


@pytest.fixture
def state_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A job's as well as the daemon's, on a host without munge."""
    (tmp_path / "plans").mkdir()
    monkeypatch.setenv("SYNERGY_STATE_DIR", str(tmp_path))
    monkeypatch.delenv("SYNERGY_PLAN", raising=False)

    def away(*_: object) -> None:
        raise UnavailableError("munge", "libmunge is not installed")

    monkeypatch.setattr(munge, "encode", away)
    monkeypatch.setattr(munge, "decode", away)
    return tmp_path


@pytest.fixture
def inbox(state_dir: Path) -> Iterator[ReportInbox]:
    made = ReportInbox("127.0.0.1", 0, secret=job_key.secret(state_dir))
    yield made
    made.close()


def test_a_job_without_munge_reports_and_is_told(state_dir: Path, inbox: ReportInbox) -> None:
    address = f"127.0.0.1:{inbox.port}"
    with pytest.raises(UnavailableError, match="libmunge"):
        send(Report(7, 2, 40), address)  # it was handed no key
    JobKeys(state_dir).keep([row(7, restarts=2, uid=UID)])
    assert send(Report(7, 2, 40), address) is None
    inbox.answers = {(7, 2): (UID, Told(Plan(dp=4, global_batch=8), 3))}
    assert send(Report(7, 2, 50), address) == Told(Plan(dp=4, global_batch=8), 3)
    assert [(r.uid, r.report.step) for r in inbox.take()] == [(UID, 40), (UID, 50)]
    # Slurm has started it again: its old key is another incarnation's
    with pytest.raises(UnavailableError, match="libmunge"):
        send(Report(7, 3, 60), address)
    assert not inbox.refused


def signed(
    state_dir: Path, report: Report, *, job: int = 7, restarts: int = 2, uid: int = UID, late_s: float = 0.0
) -> bytes:
    key = key_of(job_key.secret(state_dir), job, restarts, uid)
    return key.sign(to_json(report), time.time() - late_s).encode()


def test_a_strangers_key_says_nothing_of_the_job(state_dir: Path, inbox: ReportInbox) -> None:
    report = Report(7, 2, 40)
    right = signed(state_dir, report)
    others = key_of(b"x" * 32, 7, 2, UID).sign(to_json(report), time.time()).encode()
    wrong = {
        "another job's": signed(state_dir, report, job=8),
        "another incarnation's": signed(state_dir, report, restarts=1),
        "too old": signed(state_dir, report, late_s=job_key.TTL_S + 5),
        "from the future": signed(state_dir, report, late_s=-job_key.TTL_S - 5),
        "no key of ours": others,
        "another user's name on it": right.replace(f":{UID}:".encode(), f":{UID + 1}:".encode(), 1),
        "other words": right[:-8] + b"AAAAAAA=",
        "cut": right[:60],
        "numbers without end": b"KEY:" + b"9" * 5000,
    }
    for what, line in wrong.items():
        assert inbox._answer(line, "test") == b"", what
    assert inbox.take() == [] and sum(inbox.refused.values()) == len(wrong)
    assert inbox._answer(right, "test") == b"ok\n"
    assert inbox._answer(right, "test") == b""  # sent twice
    assert len(inbox.take()) == 1


def test_an_inbox_without_a_secret_takes_no_key(state_dir: Path) -> None:
    with pytest.raises(UsageError, match="no job's key"):
        opened(key_of(b"", 7, 2, UID).sign(b"{}", time.time()), b"", time.time())


def test_an_answer_that_is_not_signed_is_not_believed(state_dir: Path) -> None:
    mine, others = (key_of(job_key.secret(state_dir), job, 2, UID) for job in (7, 8))
    assert job_key.answered(mine.sign(b"words", 1.0), mine) == b"words"
    for line in (others.sign(b"words", 1.0), mine.sign(b"words", 1.0)[:-4] + "AAAA", "KEY:", ""):
        with pytest.raises(UsageError):
            job_key.answered(line, mine)


def test_files_are_their_owners_and_go_with_the_job(state_dir: Path) -> None:
    assert (state_dir / job_key.SECRET).exists() is False
    keys = JobKeys(state_dir)
    keys.keep([row(7, uid=UID), row(8, uid=UID)])
    assert (state_dir / job_key.SECRET).stat().st_mode & 0o777 == 0o600
    path = key_path(state_dir, 7)
    first, mode = path.read_text(), path.stat()
    assert mode.st_mode & 0o777 == 0o400 and mode.st_uid == UID
    keys.keep([row(7, uid=UID)])
    assert path.read_text() == first and not key_path(state_dir, 8).exists()
    keys.keep([row(7, uid=UID, restarts=1)])
    assert path.read_text() != first
    JobKeys(state_dir).keep([row(7, uid=UID, restarts=1)])  # a daemon after this one has the same secret
    assert job_key.find(7, 1, os.environ) == key_of(job_key.secret(state_dir), 7, 1, UID)
    remove_plan(state_dir, 7)
    assert not path.exists()


def test_a_full_disk_is_told_once(
    state_dir: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(path: Path, *_: object) -> None:
        raise OSError(28, "No space left on device", str(path))

    monkeypatch.setattr(job_keys, "write_for", full)
    keys = JobKeys(state_dir)
    for _ in range(3):
        keys.keep([row(7, uid=UID)])
    assert caplog.text.count("No space left on device") == 1
