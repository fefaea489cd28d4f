"""Heartbeat, inbox, forecast, metrics, and the service around the loop."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import signal
import socket
import time
import urllib.request
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from synergy_core.errors import UnavailableError, UsageError
from synergy_core.job_report import EarlyFailure, Report
from synergy_core.records import Cell, Cluster, Directive, Job, JobState, Node, Plan, Profile, Shape
from synergy_core.wire import munge
from synergy_core.wire.report import ReportAnswer, to_json

from synergyd.control import cell_cache
from synergyd.control.failed_plans import FailedPlans
from synergyd.daemon import heartbeat, service
from synergyd.daemon.forecast import Forecast
from synergyd.daemon.loop import Daemon
from synergyd.daemon.metrics import PrometheusMetrics
from synergyd.daemon.ports.report_inbox import ReportInbox
from synergyd.jobmodel.model.hardware import figures
from synergyd.settings import Settings
from synergyd.slurm.client import SlurmError
from synergyd.store import leader
from tests.unit.daemon.daemon_world import Site

CLUSTER = Cluster((Node("n1", "a100", 4),))
JOB = Job(
    1, "train", "ann", os.getuid(), "main", JobState.PENDING, "", 0.0, None, None, 0, Shape("a100", 1, 2), Shape("a100", 1, 2),
    directive=Directive(model="gpt2", global_batch=(64, 64)),
)  # fmt: skip


def test_heartbeat_is_whole_readable_and_goes(tmp_path: Path) -> None:
    heartbeat.write(tmp_path, 1234.9, 0.2)
    path = tmp_path / "heartbeat"
    assert path.read_text() == "1234 1\n" and path.stat().st_mode & 0o777 == 0o644
    heartbeat.write(tmp_path, 1300.0, 30.0)
    assert path.read_text() == "1300 30\n" and [p.name for p in tmp_path.iterdir()] == ["heartbeat"]
    heartbeat.remove(tmp_path)
    heartbeat.remove(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_heartbeat_goes_on_while_slurm_s_turn_is_waited_for(tmp_path: Path) -> None:
    waited_s = 50.0
    beats = heartbeat.Heartbeat(tmp_path, 30.0, lambda: waited_s)
    beats.note_completed_epoch(1000.0)
    waited_s += 100.0
    beats.beat_if_due(1130.0)
    assert heartbeat.read(tmp_path) == "1130 30\n"
    beats.beat_if_due(1160.0)  # 60 s without a completed epoch, beside the wait
    assert heartbeat.read(tmp_path) == "1130 30\n"


# -- inbox -------------------------------------------------------------------------------------------------------------


def decode(line: str, _socket: str) -> munge.Credential:
    """`uid:hex of the payload` stands for a credential."""
    uid, _, payload = line.partition(":")
    if not uid.isdecimal():
        raise UnavailableError("munge", "Invalid credential format")
    return munge.Credential(bytes.fromhex(payload), int(uid), 0)


@pytest.fixture
def inbox(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr("synergyd.daemon.ports.report_inbox.munge.decode", decode)
    made = ReportInbox("127.0.0.1", 0)
    yield made
    made.close()


def send(port: int, line: bytes) -> bytes:
    with socket.create_connection(("127.0.0.1", port), timeout=5) as connection:
        connection.sendall(line)
        connection.shutdown(socket.SHUT_WR)
        return connection.recv(64)


def test_a_report_arrives_with_its_senders_uid(inbox: ReportInbox) -> None:
    report = Report(7, 1, 5, step_s=0.5, plan=Plan(dp=2, global_batch=2))
    assert send(inbox.port, b"1000:" + to_json(report).hex().encode() + b"\n") == b"ok\n"
    assert inbox.arrived.wait(5)
    (received,) = inbox.take()
    assert (received.report, received.uid) == (report, 1000)
    assert inbox.take() == [] and not inbox.arrived.is_set()


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"\n",
        b"nonsense\n",
        b"\xff\xfe\n",
        b"5:00\n",
        b"5:" + b"7b7d" + b"\n",
        b"x" * 200_000,
        b"5:" + b"5b" * 30_000,
    ],
)
def test_what_is_no_report_is_refused_and_the_next_one_taken(
    inbox: ReportInbox, line: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    with contextlib.suppress(OSError):  # it did not read all of it
        assert send(inbox.port, line) == b""
    assert send(inbox.port, b"5:" + to_json(Report(7, 0, 1)).hex().encode()) == b"ok\n"
    assert [r.uid for r in inbox.take()] == [5]
    end = time.monotonic() + 30
    while not (refused := [r.message for r in caplog.records if "refused" in r.message]):
        assert time.monotonic() < end
        time.sleep(0.01)
    assert "\n" not in refused[0]


def test_only_the_owners_report_is_answered_with_the_plan(inbox: ReportInbox, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = Plan(dp=2, global_batch=8)
    inbox.answers = {(7, 0): (1000, ReportAnswer(plan))}
    signed: list[bytes] = []

    def encode(payload: bytes, socket: str = "") -> str:
        if signed:
            raise UnavailableError("munge", "munged is away")
        signed.append(payload)
        return "MUNGE:x:"

    monkeypatch.setattr("synergyd.daemon.ports.report_inbox.munge.encode", encode)
    line = to_json(Report(7, 0, 1)).hex().encode() + b"\n"
    assert send(inbox.port, b"1001:" + line) == b"ok\n" and not signed
    assert send(inbox.port, b"1000:" + line) == b"ok MUNGE:x:\n"
    assert signed == [b"synergy-answer 7 0 tp:1,pp:1,dp:2,mb:1,gb:8,rc:none,sp:0,zs:1"]
    assert send(inbox.port, b"1000:" + line) == b"ok\n"  # the report was taken all the same
    assert len(inbox.take()) == 3


def test_no_more_connections_than_there_is_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("synergyd.daemon.ports.report_inbox.munge.decode", decode)
    monkeypatch.setattr("synergyd.daemon.ports.report_inbox.MAX_OPEN", 2)
    inbox = ReportInbox("127.0.0.1", 0)
    idle = [socket.create_connection(("127.0.0.1", inbox.port), timeout=5) for _ in range(6)]
    closed, end = set[int](), time.monotonic() + 3
    while len(closed) < 4 and time.monotonic() < end:  # before silent ones are given up too
        for number, connection in enumerate(idle):
            connection.settimeout(0.05)
            with contextlib.suppress(TimeoutError):
                with contextlib.suppress(ConnectionResetError):
                    assert connection.recv(1) == b""
                closed.add(number)
    for connection in idle:
        connection.close()
    assert len(closed) == 4
    answer, end = b"", time.monotonic() + 30
    while answer != b"ok\n":
        with contextlib.suppress(OSError):  # the room of the closed ones is not free yet
            answer = send(inbox.port, b"5:" + to_json(Report(7, 0, 1)).hex().encode())
        assert time.monotonic() < end
    inbox.close()


def test_a_port_in_use_is_one_line(inbox: ReportInbox) -> None:
    with pytest.raises(UsageError, match=f"ReportPort: can't listen on port {inbox.port}"):
        ReportInbox("127.0.0.1", inbox.port)


# -- forecast ----------------------------------------------------------------------------------------------------------


def test_cells_are_worked_out_anew_only_after_a_change(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Forecast(Settings())
    first = made.cells(JOB, Profile(), None, CLUSTER)
    assert first.cells and made.cells(replace(JOB, reason="Priority"), Profile(), None, CLUSTER) is first
    for other in (
        made.cells(JOB, Profile(speed=2.0, samples=9), None, CLUSTER),
        made.cells(JOB, Profile(), Plan(dp=2, global_batch=64), CLUSTER),
        made.cells(JOB, Profile(), None, Cluster((Node("n1", "a100", 8),))),
        made.cells(replace(JOB, directive=Directive(model="gpt2", tp=2)), Profile(), None, CLUSTER),
    ):
        assert other is not first and other.cells
    # a like job is given the same, one that asks for another size is not
    assert made.cells(replace(JOB, job_id=2, name="other"), Profile(), None, CLUSTER) is first
    assert made.cells(replace(JOB, job_id=3, asked=Shape("a100", 1, 1)), Profile(), None, CLUSTER) is not first
    monkeypatch.setattr(cell_cache, "_LIKE", 0)
    made.cells(replace(JOB, job_id=4, asked=Shape("a100", 1, 2)), Profile(), None, CLUSTER)
    for job_id in (1, 2, 3, 4):
        made.forget(job_id)
    for other_job in range(5, 12):
        made.cells(replace(JOB, job_id=other_job, asked=Shape("a100", 1, 2)), Profile(), None, CLUSTER)
    again = made.cells(JOB, Profile(), None, CLUSTER)
    assert again is not first and again == first


@pytest.mark.parametrize(
    ("model", "says"),
    [
        ("no-such-model", "no-such-model"),
        ("/nowhere/config.json", "can't be read"),
        ("./config.json", "config.json"),
        ("/dev/zero", "can't be read as"),
    ],
)
def test_a_model_that_can_not_be_had_is_told(model: str, says: str) -> None:
    found = Forecast(Settings()).cells(replace(JOB, directive=Directive(model=model)), Profile(), None, CLUSTER)
    assert found.cells == () and says in found.why_none and "\n" not in found.why_none


def test_a_users_path_opens_no_file_of_others(tmp_path: Path) -> None:
    secret, link, folder = tmp_path / "secret.json", tmp_path / "config.json", tmp_path / "link"
    secret.write_text('{"root": "hunter2"}')
    secret.chmod(0o600)
    link.symlink_to(secret)
    folder.symlink_to(tmp_path)
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for path in (link, pipe, tmp_path):
        found = Forecast(Settings()).cells(replace(JOB, directive=Directive(model=str(path))), Profile(), None, CLUSTER)
        assert found.cells == () and "hunter2" not in found.why_none and f"model {path}: " in found.why_none
    for path in (secret, folder / "secret.json"):
        other = replace(JOB, uid=os.getuid() + 1, directive=Directive(model=str(path)))
        assert "can't be read as the job's user" in Forecast(Settings()).cells(other, Profile(), None, CLUSTER).why_none


def test_prediction_of_a_report() -> None:
    made = Forecast(Settings())
    made.cells(JOB, Profile(), None, CLUSTER)
    step_s, peak = made.predict(Report(1, 0, 1, plan=Plan(dp=2, global_batch=64)), JOB, Profile()) or (0.0, 0)
    assert step_s > 0 and peak > 0
    assert made.predict(Report(1, 0, 1), JOB, Profile()) is None
    assert made.predict(Report(1, 0, 1, plan=Plan()), None, Profile()) is None


def test_what_failed_is_not_offered_again() -> None:
    job = replace(JOB, directive=Directive(model="llama2-7b", global_batch=(64, 64)))
    made, failed_plans = Forecast(Settings()), FailedPlans()

    def offered() -> dict[Plan, Cell]:
        return {c.plan: c for c in made.cells(job, Profile(), None, CLUSTER, failed_plans.bans_for(job)).cells}

    plain = offered()
    worst = max(plain.values(), key=lambda c: c.memory_bytes)
    failed_plans.add(job, "a100", EarlyFailure(kind="exit", code=1, number=1, plan=worst.plan), None)
    assert offered().keys() == plain.keys() - {worst.plan}
    # out of memory: none that is predicted to need as much is left, and the search finds leaner ones
    least_plan = min(plain.values(), key=lambda c: c.memory_bytes)
    failure = EarlyFailure(kind="memory", code=1, number=1, plan=least_plan.plan)
    known = Report(1, 0, 0, failure=failure), replace(job, shape=least_plan.shape), Profile()
    least = made.least_memory(*known)
    assert (
        least is not None
        and least == pytest.approx(figures("a100").usable_bytes / least_plan.memory_bytes, rel=1e-6)
        and least > 1
    )
    failed_plans.add(job, "a100", failure, least)
    assert all(c.memory_bytes / least < least_plan.memory_bytes * 1.001 for c in offered().values())
    assert offered().keys().isdisjoint(plain) and offered(), "more is split or recomputed"
    assert made.least_memory(replace(known[0], failure=None), *known[1:]) is None
    assert made.least_memory(known[0], None, Profile()) is None


def test_a_job_all_of_whose_plans_have_failed_is_told_so() -> None:
    made, failed_plans = Forecast(Settings()), FailedPlans()
    while left := made.cells(JOB, Profile(), None, CLUSTER, failed_plans.bans_for(JOB)).cells:
        for cell in left:
            failure = EarlyFailure(kind="killed", code=137, number=1, plan=cell.plan)
            failed_plans.add(JOB, cell.shape.gpu_type, failure, None)
    told = made.cells(JOB, Profile(), None, CLUSTER, failed_plans.bans_for(JOB))
    assert told.all_failed and "have failed" in told.why_none


# -- metrics -----------------------------------------------------------------------------------------------------------


def test_metrics_are_served(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    made, site = PrometheusMetrics(port), Site(tmp_path)
    made.tell_leading(lambda: site.leads)
    site.slurm.submit(1)
    made.epoch(site.daemon.epoch(), site.daemon)
    made.count_failure()
    text = urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5).read().decode()
    for line in ('synergy_jobs{state="RELEASED"} 1.0', 'synergy_decisions_total{action="start"} 1.0', "synergy_epoch_failures_total 1.0",
                 "synergy_store_healthy 1.0", "synergy_leads 1.0"):  # fmt: skip
        assert line in text
    with pytest.raises(UsageError, match=f"MetricsPort {port}"):
        PrometheusMetrics(port)


# -- service -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    """`service.run` works on this cluster."""
    with socket.socket() as free:
        free.bind(("", 0))
        made = Site(tmp_path / "state", report_port=free.getsockname()[1])
    reader = made.daemon.dependencies.reader
    monkeypatch.setattr(service, "CommandLine", lambda **_: made.slurm)
    monkeypatch.setattr(service, "open_reader", lambda _, line: (reader, "in memory"))
    return made


def test_one_epoch_and_no_heartbeat_left(site: Site) -> None:
    site.slurm.submit(1)
    site.slurm.submit(2, "#!/bin/sh\n")
    seen: list[bool] = []

    def on_epoch(daemon: Daemon) -> None:
        seen.append((site.folder / "heartbeat").exists())
        site.slurm.pass_time(1)

    assert service.run(site.settings, once=True, on_epoch=on_epoch) == 0
    assert seen == [True] and not (site.folder / "heartbeat").exists()
    assert site.slurm.jobs[1].state == "RUNNING" and site.slurm.written_to() == {1}


@pytest.mark.parametrize("dry_run", [True, False])
def test_another_cluster_s_database_is_refused_at_start(site: Site, dry_run: bool) -> None:
    assert service.run(site.settings, once=True, cluster="alpha") == 0
    site.slurm.submit(1)
    with pytest.raises(UsageError, match="jobs of the cluster alpha, and this is beta"):
        service.run(replace(site.settings, dry_run=dry_run), once=True, cluster="beta")
    assert site.slurm.written_to() == set()


def test_a_dry_run_neither_leads_nor_acts(site: Site) -> None:
    site.slurm.submit(1)
    held: list[bool] = []

    def on_epoch(_: Daemon) -> None:
        from synergyd.store.leader import Leader

        other = Leader(site.url, clock=time.time)
        held.append(other.try_lead())
        other.release()

    assert service.run(replace(site.settings, dry_run=True), once=True, on_epoch=on_epoch) == 0
    assert held == [True] and site.slurm.calls == []


def test_a_dry_run_writes_nothing_into_another_cluster_s_database(site: Site) -> None:
    assert service.run(site.settings, once=True, cluster="alpha") == 0
    with pytest.raises(UsageError, match="jobs of the cluster alpha, and this is beta"):
        service.run(replace(site.settings, dry_run=True), once=True, cluster="beta")


@pytest.mark.skipif(not importlib.util.find_spec("psycopg"), reason="psycopg is not installed")
def test_started_while_the_database_is_away_it_leads_on_what_slurm_says(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leader, "ORPHAN_S", 0.5)
    monkeypatch.setattr(leader, "CLAIM_S", 0.5)
    site.slurm.submit(1)
    acted: list[bool] = []

    def on_epoch(daemon: Daemon) -> None:
        acted.append(daemon.is_acting)
        if daemon.is_acting:
            signal.raise_signal(signal.SIGTERM)

    nowhere = replace(site.settings, database="postgresql+psycopg://synergy@127.0.0.1:1/x")
    assert service.run(nowhere, on_epoch=on_epoch) == 0
    assert acted == [False, True] and site.slurm.written_to() == {1}


def test_once_with_slurm_away_is_exit_code_one(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    site.slurm.away = True
    assert service.run(site.settings, once=True) == 1
    assert "Unable to contact slurm controller" in caplog.text


def test_an_outage_of_any_length_does_not_end_the_daemon(monkeypatch: pytest.MonkeyPatch) -> None:
    class Stop:
        turns = 0
        now_s = 0.0

        def is_set(self) -> bool:
            self.turns += 1
            return self.turns > 1200

        def wait(self, seconds: float) -> None:
            assert 0 < seconds <= 2.0
            Stop.now_s += 301

    def away() -> None:
        raise SlurmError("squeue", "Unable to contact", transient=True)

    dependencies = SimpleNamespace(store=SimpleNamespace(refresh=lambda: True), leads=lambda: True, inbox=None)
    daemon = SimpleNamespace(settings=Settings(), dependencies=dependencies, is_resizing=False, epoch=away, tick=away)
    keeper = SimpleNamespace(start=lambda: None, turn=lambda: True, problem="")
    monkeypatch.setattr(time, "monotonic", lambda: Stop.now_s)
    monkeypatch.setattr(service.log, "disabled", True)
    stop = Stop()
    assert service._loop(daemon, keeper, PrometheusMetrics(0), stop, False, None) == 0  # type: ignore[arg-type]
    assert stop.turns == 1201


def test_jobs_can_read_their_plans_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        service.prepare_state_dir(Settings(state_dir=tmp_path / "a"))
    finally:
        os.umask(before)
    for folder in (tmp_path / "a", tmp_path / "a" / "plans"):
        assert folder.stat().st_mode & 0o777 == 0o711


def test_a_state_folder_that_can_not_be_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match=r"StateDir .*file"):
        service.prepare_state_dir(Settings(state_dir=tmp_path / "file"))
