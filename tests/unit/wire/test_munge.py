"""A real munged on a socket of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from synergy_core.errors import UnavailableError
from synergy_core.job_report import Report
from synergy_core.records import Plan
from synergy_core.wire import munge
from synergy_core.wire.report import _MAX_ANSWER, ReportAnswer, answer_line, from_json, read_answer, to_json

from tests.throwaway.slurm import SlurmCluster, missing_programs

pytestmark = pytest.mark.slurm


@pytest.fixture(scope="module")
def socket() -> Iterator[str]:
    if "munged" in missing_programs():
        pytest.skip("munged is not installed")
    # a short path: a socket's name may have 107 bytes
    cluster = SlurmCluster(folder=Path(tempfile.mkdtemp(prefix="syn-munge-")))
    try:
        (cluster.folder / "log").mkdir()
        cluster.start_munged()
        yield str(cluster.munge_socket)
    finally:
        cluster.stop()


@pytest.mark.parametrize("payload", [b"", b"x", b"\0with\0nul\xff", b"p" * 60_000])
def test_round_trip(socket: str, payload: bytes) -> None:
    found = munge.decode(munge.encode(payload, socket), socket)
    assert (found.payload, found.uid, found.gid) == (payload, os.getuid(), os.getgid())


def test_a_report_in_a_credential_by_the_environment(socket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MUNGE_SOCKET", socket)
    report = Report(7, 1, 100, loss=2.5)
    assert from_json(munge.decode(munge.encode(to_json(report))).payload) == report


def test_sent_twice_is_refused(socket: str) -> None:
    credential = munge.encode(b"x", socket)
    munge.decode(credential, socket)
    with pytest.raises(UnavailableError, match=r"(?i)replay"):
        munge.decode(credential, socket)


@pytest.mark.parametrize("text", ["", "MUNGE:", "MUNGE:AAAA:", "hello", "ü", "MUNGE:" + "A" * 5000 + ":"])
def test_what_is_no_credential_is_one_clear_line(socket: str, text: str) -> None:
    with pytest.raises(UnavailableError) as error:
        munge.decode(text, socket)
    assert str(error.value).startswith("munge: ") and "\n" not in str(error.value)


def test_altered_is_refused(socket: str) -> None:
    credential = munge.encode(b"step=1", socket)
    middle = len(credential) // 2
    for place in (20, middle, len(credential) - 10):
        swapped = "A" if credential[place] != "A" else "B"
        with pytest.raises(UnavailableError):
            munge.decode(credential[:place] + swapped + credential[place + 1 :], socket)
    assert munge.decode(credential, socket).payload == b"step=1", "the untouched one is still good"


def test_of_another_key_is_refused(socket: str) -> None:
    cluster = SlurmCluster(folder=Path(tempfile.mkdtemp(prefix="syn-munge-")))
    try:
        (cluster.folder / "log").mkdir()
        cluster.start_munged()
        with pytest.raises(UnavailableError, match=r"(?i)credential"):
            munge.decode(munge.encode(b"x", str(cluster.munge_socket)), socket)
    finally:
        cluster.stop()


def test_no_munged_is_one_clear_line_at_once(tmp_path: Path) -> None:
    began = time.monotonic()
    for call in (
        lambda: munge.encode(b"x", str(tmp_path / "no")),
        lambda: munge.decode("MUNGE:A:", str(tmp_path / "no")),
    ):
        with pytest.raises(UnavailableError) as error:
            call()
        assert str(error.value) == "munge: Socket communication error; is munged running? (service munge start)"
    assert time.monotonic() - began < 20


def test_munge_s_own_programs_agree(socket: str) -> None:
    if shutil.which("unmunge") is None:
        pytest.skip("unmunge is not installed")
    credential = munge.encode(b"hello", socket)
    done = subprocess.run(
        ["unmunge", "-S", socket], input=credential, capture_output=True, text=True, timeout=10, check=True
    )
    assert "hello" in done.stdout


def test_an_answer_is_believed_from_the_daemons_user_only(socket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MUNGE_SOCKET", socket)
    plan, report = Plan(dp=2, global_batch=64), Report(7, 1, 100)
    line = answer_line(ReportAnswer(plan), 7, 1, socket)
    assert read_answer(line, report, os.getuid()) == ReportAnswer(plan)
    assert read_answer(line, report, os.getuid()) is None  # sent twice
    others = (
        answer_line(ReportAnswer(plan), 7, 1),
        answer_line(ReportAnswer(plan), 8, 1),
        answer_line(ReportAnswer(plan), 7, 2),
    )
    by = os.getuid() or 1  # root is always believed
    assert [read_answer(x, report, b) for x, b in zip(others[1:], (by, by), strict=True)] == [None, None]
    if os.getuid():
        assert read_answer(others[0], report, os.getuid() + 1) is None


def test_an_order_names_as_many_nodes_as_a_job_has(socket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MUNGE_SOCKET", socket)
    order = ReportAnswer(Plan(dp=8192, global_batch=8192), 3, nodes=tuple(f"gpu-node-{i:04d}.x" for i in range(1024)))
    line = answer_line(order, 7, 1, socket)
    assert len(line) < _MAX_ANSWER
    assert read_answer(line, Report(7, 1, 100), os.getuid()) == order
