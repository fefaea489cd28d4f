"""Reports of jobs that have no munge: signed with a key of one job, one incarnation and one user, and nobody else's."""

from __future__ import annotations

import errno
import os
import stat
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from synergy_core.errors import UnavailableError, UsageError
from synergy_core.job_report import Report
from synergy_core.records import Plan
from synergy_core.wire import job_key, munge
from synergy_core.wire.job_key import SecretFile, derive_job_key, open_line, sign_report
from synergy_core.wire.report import ReportAnswer, answer_line, read_answer, send, to_json

from synergyd.control.resize.lifecycle import ResizeState
from synergyd.daemon import job_keys
from synergyd.daemon.adoption import remove_plan
from synergyd.daemon.job_keys import JobKeys, key_path
from synergyd.daemon.ports.report_inbox import ReportInbox
from synergyd.slurm.owner_file import write_for_user
from tests.unit.daemon.daemon_world import Site
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
    made = ReportInbox("127.0.0.1", 0, secret=SecretFile(state_dir))
    yield made
    made.close()


def test_a_job_without_munge_reports_and_is_told(state_dir: Path, inbox: ReportInbox) -> None:
    address = f"127.0.0.1:{inbox.port}"
    with pytest.raises(UnavailableError, match="libmunge"):
        send(Report(7, 2, 40), address)  # it was handed no key
    keys_in(state_dir).keep([row(7, restarts=2, uid=UID)])
    assert send(Report(7, 2, 40), address) is None
    inbox.answers = {(7, 2): (UID, ReportAnswer(Plan(dp=4, global_batch=8), 3))}
    assert send(Report(7, 2, 50), address) == ReportAnswer(Plan(dp=4, global_batch=8), 3)
    assert [(r.uid, r.report.step) for r in inbox.take()] == [(UID, 40), (UID, 50)]
    # Slurm has started it again: its old key is another incarnation's
    with pytest.raises(UnavailableError, match="libmunge"):
        send(Report(7, 3, 60), address)
    assert not inbox.refusals


def keys_in(state_dir: Path) -> JobKeys:
    """A daemon's, started anew."""
    return JobKeys(state_dir, SecretFile(state_dir))


def secret_in(state_dir: Path) -> bytes:
    return SecretFile(state_dir).read_or_make()


def test_equal_reports_of_one_second_are_two(
    state_dir: Path, inbox: ReportInbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that waits asks twice a second, and has nothing new to say."""
    monkeypatch.setattr(time, "time", lambda: 1e9)
    keys_in(state_dir).keep([row(7, restarts=2, uid=UID)])
    for _ in range(2):
        assert send(Report(7, 2, 40), f"127.0.0.1:{inbox.port}") is None
    line = signed(state_dir, Report(7, 2, 40))
    assert inbox._answer(line, "test") == b"ok\n" and inbox._answer(line, "test") == b""  # a true replay
    assert len(inbox.take()) == 3


def signed(
    state_dir: Path, report: Report, *, job: int = 7, restarts: int = 2, uid: int = UID, late_s: float = 0.0
) -> bytes:
    key = derive_job_key(secret_in(state_dir), job, restarts, uid)
    return key.sign(to_json(report), time.time() - late_s).encode()


def test_a_strangers_key_says_nothing_of_the_job(state_dir: Path, inbox: ReportInbox) -> None:
    report = Report(7, 2, 40)
    right = signed(state_dir, report)
    others = derive_job_key(b"x" * 32, 7, 2, UID).sign(to_json(report), time.time()).encode()
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
    assert inbox.take() == [] and sum(inbox.refusals.values()) == len(wrong)
    assert inbox._answer(right, "test") == b"ok\n"
    assert inbox._answer(right, "test") == b""  # sent twice
    assert len(inbox.take()) == 1


def test_an_inbox_without_a_secret_takes_no_key(state_dir: Path) -> None:
    with pytest.raises(UsageError, match="no job's key"):
        open_line(derive_job_key(b"", 7, 2, UID).sign(b"{}", time.time()), b"", time.time())


def test_an_answer_that_is_not_signed_is_not_believed(state_dir: Path) -> None:
    mine, others = (derive_job_key(secret_in(state_dir), job, 2, UID) for job in (7, 8))
    _, asked = sign_report(mine, b"report", 1.0)
    _, elses = sign_report(others, b"report", 1.0)
    assert asked.verify_answer(asked.answer(b"words", 1.0)) == b"words"
    wrong = (
        elses.answer(b"words", 1.0),
        asked.answer(b"words", 1.0)[:-4] + "AAAA",
        mine.sign(b"words", 1.0),
        "KEY:",
        "",
    )
    for line in wrong:
        with pytest.raises(UsageError):
            asked.verify_answer(line)


def test_an_answer_is_believed_by_the_report_that_it_answers_alone(state_dir: Path) -> None:
    """An order that was recorded says nothing at the next report of the same incarnation."""
    key, report, told = (
        derive_job_key(secret_in(state_dir), 7, 2, UID),
        Report(7, 2, 40),
        ReportAnswer(Plan(dp=4, global_batch=8), 3),
    )
    line, first = sign_report(key, to_json(report), time.time())
    _, second = sign_report(key, to_json(report), time.time())
    seen, _ = open_line(line, secret_in(state_dir), time.time())
    answer = answer_line(told, 7, 2, signed=seen)
    assert read_answer(answer, report, None, first) == told
    assert read_answer(answer, report, None, second) is None
    with pytest.raises(UsageError, match="no job's key"):  # nor is it a report
        open_line(answer.decode().split()[1], secret_in(state_dir), time.time())


def test_files_are_their_owners_and_go_with_the_job(state_dir: Path) -> None:
    assert (state_dir / job_key.SECRET).exists() is False
    keys = keys_in(state_dir)
    keys.keep([])
    assert list(state_dir.iterdir()) == [state_dir / "plans"]
    keys.keep([row(7, uid=UID), row(8, uid=UID)])
    assert {p.name for p in state_dir.iterdir()} == {"plans", job_key.SECRET}
    assert (state_dir / job_key.SECRET).stat().st_mode & 0o777 == 0o600
    path = key_path(state_dir, 7)
    first, mode = path.read_text(), path.stat()
    assert mode.st_mode & 0o777 == 0o400 and mode.st_uid == UID
    keys.keep([row(7, uid=UID)])
    assert path.read_text() == first and not key_path(state_dir, 8).exists()
    keys.keep([row(7, uid=UID, restarts=1)])
    assert path.read_text() != first
    keys_in(state_dir).keep([row(7, uid=UID, restarts=1)])  # a daemon after this one has the same secret
    assert job_key.find_key(7, 1, os.environ) == derive_job_key(secret_in(state_dir), 7, 1, UID)
    remove_plan(state_dir, 7)
    assert not path.exists()


def test_a_full_disk_is_told_once(
    state_dir: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(path: Path, *_: object) -> None:
        raise OSError(28, "No space left on device", str(path))

    monkeypatch.setattr(job_keys, "write_for_user", full)
    keys = keys_in(state_dir)
    for epoch in range(3):
        keys.keep([row(7, uid=UID), row(8 + epoch, uid=UID)])
    assert caplog.text.count("No space left on device") == 1


def test_a_number_of_files_an_epoch_and_the_rest_in_the_next(state_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_keys, "WRITES_AN_EPOCH", 2)
    tried = list[int]()

    def write(path: Path, text: str, uid: int) -> None:
        tried.append(int(path.stem))
        if path.stem in ("1", "2"):
            raise OSError(errno.EPERM, "Operation not permitted", str(path))
        write_for_user(path, text, uid)

    monkeypatch.setattr(job_keys, "write_for_user", write)
    keys = keys_in(state_dir)
    for _ in range(4):
        keys.keep([row(i, uid=UID) for i in (1, 2, 3, 4, 5)])
    assert tried == [1, 2, 3, 4, 5, 1, 1, 2]  # those that were refused wait for the others
    assert {p.stem for p in (state_dir / "plans").glob("*.key")} == {"3", "4", "5"}


def test_without_acls_one_warning_and_no_more_writes(
    state_dir: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tried = []

    def no_acls(path: Path, *_: object) -> None:
        tried.append(path)
        raise OSError(errno.EOPNOTSUPP, "Operation not supported", str(path))

    monkeypatch.setattr(job_keys, "write_for_user", no_acls)
    keys = keys_in(state_dir)
    for epoch in range(3):
        keys.keep([row(7, uid=UID), row(8, uid=UID, restarts=epoch)])
    assert len(tried) == 1 and caplog.text.count("not supported") == 1 and "ACLs" in caplog.text


@pytest.mark.parametrize("content", [b"", b"x" * 31, b"x" * 33])
def test_a_secret_of_the_wrong_length_is_one_line_and_makes_no_key(
    state_dir: Path, inbox: ReportInbox, caplog: pytest.LogCaptureFixture, content: bytes
) -> None:
    path = state_dir / job_key.SECRET
    path.write_bytes(content)
    keys = keys_in(state_dir)
    for _ in range(2):
        keys.keep([row(7, uid=UID)])
    assert not key_path(state_dir, 7).exists() and path.read_bytes() == content
    (line,) = [r.getMessage() for r in caplog.records]
    assert f"{path}: holds {len(content)} bytes, not 32" in line
    forged = derive_job_key(content, 7, 2, UID).sign(to_json(Report(7, 2, 40)), time.time())
    assert inbox._answer(forged.encode(), "test") == b""
    path.unlink()  # as the line says: both go on without a restart
    keys.keep([row(7, uid=UID, restarts=2)])
    assert inbox._answer(signed(state_dir, Report(7, 2, 40)), "test") == b"ok\n"


def test_the_secret_is_on_the_disk_before_it_has_its_name(state_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced = []

    def fsync(descriptor: int) -> None:
        about = os.fstat(descriptor)
        synced.append((about.st_size, stat.S_IMODE(about.st_mode), about.st_nlink))

    monkeypatch.setattr(os, "fsync", fsync)
    secret_in(state_dir)
    assert synced == [(32, 0o600, 1)] and (state_dir / job_key.SECRET).stat().st_nlink == 1


def test_jobs_that_wait_have_no_key(tmp_path: Path) -> None:
    site = Site(tmp_path)
    site.running(1, "n1")
    for job_id in range(2, 40):
        site.slurm.submit(job_id)
    site.epoch(60)
    pending = {i for i, job in site.slurm.jobs.items() if job.state == "PENDING"}
    begun = {i for i in site.slurm.jobs if site.life(i).state is not ResizeState.QUEUED}
    assert {int(p.stem) for p in (tmp_path / "plans").glob("*.key")} == begun
    assert 1 in begun and begun & pending and pending - begun, "some run, some are about to, the others wait"
