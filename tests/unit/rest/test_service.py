"""The service over a real socket on a real database; only who the caller is, is said by a header."""

from __future__ import annotations

import gzip
import http.client
import json
import socket
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from synergy_core.errors import UnavailableError, UsageError
from synergy_core.expected import ExpectedJob
from synergy_core.job_report import Report
from synergy_core.reasons import Reason
from synergy_core.records import Cell, Plan, Profile, Shape
from synergy_core.steering import Steering
from synergy_core.usage import Totals, Usage
from synergy_core.wire.codec import decode, encode
from synergy_core.would_have import WouldHave

from synergyd.control.decision_log import JobStatus
from synergyd.control.state.node_health import NodeRecord
from synergyd.rest import app, server
from synergyd.rest.app import MAX_BODY_BYTES, application
from synergyd.rest.caller import SlurmRights
from synergyd.rest.identity import Identity, UnknownCallerError
from synergyd.rest.openapi import openapi
from synergyd.rest.slurm_rights import RightsReader, parse_rights
from synergyd.settings import Settings
from synergyd.store.months import last_midnights
from synergyd.store.records import EpochRecord, StoredEvent, StoredLifecycle, StoredNode, StoredReport
from synergyd.store.store import Store, open_store
from synergyd.views.json_records import JobUsageJson, UsageJson
from synergyd.views.recording import RecordingJson, from_json
from tests.unit.store.store_world import decision

OPEN, PRIVATE = SlurmRights(), SlurmRights(private_jobs=True, operators=frozenset({"op"}))
ANN = JobStatus(
    job_id=1, name="a", user="ann", state="RUNNING", lifecycle="RUNNING", gpus=2, asked_gpus=2, account="chem"
)
BOB = replace(ANN, job_id=2, name="b", user="bob", account="physics")


@dataclass(frozen=True)
class NamedIdentity(Identity):
    def caller(self, method: str, target: str, headers: Mapping[str, str], body: bytes, *, near: bool = True) -> str:
        if "x-test-user" not in headers:
            raise UnknownCallerError("request", "says not who sends it", "")
        return headers["x-test-user"]


class FixedRights(RightsReader):
    def __init__(self, rights: SlurmRights) -> None:
        self._fixed = rights

    def rights(self) -> SlurmRights:
        return self._fixed


class Service:
    def __init__(self, store: Store, rights: SlurmRights) -> None:
        self.store = store
        self.listener = server.tcp_socket(0)
        self.port = self.listener.getsockname()[1]
        config = server.uvicorn_config(application(store, NamedIdentity(), FixedRights(rights)))
        self.server = uvicorn.Server(config)
        self.thread = threading.Thread(target=self.server.run, kwargs={"sockets": [self.listener]})
        self.thread.start()

    def stop(self) -> None:
        self.server.should_exit = True
        self.thread.join(10)
        self.listener.close()

    def ask(
        self, user: str, target: str, method: str = "GET", body: object = None, **headers: str
    ) -> tuple[int, Mapping[str, str], Any]:
        connection = http.client.HTTPConnection("localhost", self.port, timeout=120)
        named = {k.replace("_", "-"): v for k, v in headers.items()} | ({"X-Test-User": user} if user else {})
        raw = body if isinstance(body, bytes) else None if body is None else json.dumps(body).encode()
        try:
            connection.request(method, target, raw, named)
            answer = connection.getresponse()
            read = answer.read()
            if answer.getheader("Content-Encoding") == "gzip":
                read = gzip.decompress(read)
            return answer.status, dict(answer.getheaders()), json.loads(read) if read else None
        finally:
            connection.close()


def save(store: Store, *jobs: JobStatus, at_s: float = 1000.0) -> None:
    store.save_epoch(EpochRecord(at_s, 0.1, False, tuple(decision(j.job_id) for j in jobs), present=jobs))


@contextmanager
def service(folder: Path, rights: SlurmRights) -> Iterator[Service]:
    with open_store(f"sqlite:///{folder / 's.db'}", create=True) as store:
        save(store, ANN, BOB)
        store.put_lifecycles([StoredLifecycle(1, 0.0, "RUNNING", {}, 1000.0)])
        made = Service(store, rights)
        try:
            yield made
        finally:
            made.stop()


@pytest.fixture
def shared(tmp_path: Path) -> Iterator[Service]:
    with service(tmp_path, OPEN) as made:
        yield made


@pytest.fixture
def private(tmp_path: Path) -> Iterator[Service]:
    with service(tmp_path, PRIVATE) as made:
        yield made


def jobs(told: Any) -> list[int]:
    return [job["job_id"] for job in told["jobs"]]


def test_everybody_sees_all_jobs_and_changes_the_own_ones(shared: Service) -> None:
    status, _, told = shared.ask("eve", "/v1/status")
    assert status == 200 and jobs(told) == [1, 2] and told["format"] == 1 and told["epoch_s"] == 1000.0
    assert shared.ask("ann", "/v1/jobs/1/pause", "POST")[0] == 200 and shared.store.paused_jobs() == {1}
    code, _, said = shared.ask("eve", "/v1/jobs/1/resume", "POST")
    assert code == 403 and "is not eve's" in said["title"] and shared.store.paused_jobs() == {1}
    assert shared.ask("ann", "/v1/jobs/1/resume", "POST")[0] == 200 and not shared.store.paused_jobs()
    assert [e.detail for e in shared.store.story(1)] == ["ann paused it", "ann resumed it"]
    assert shared.ask("", "/v1/status")[0] == 401


def test_private_jobs_are_not_there_for_others(private: Service) -> None:
    assert [jobs(private.ask(u, "/v1/status")[2]) for u in ("ann", "bob", "eve", "op")] == [[1], [2], [], [1, 2]]
    for target in ("/v1/jobs/2/explain", "/v1/status?job=2", "/v1/jobs/2/steering"):
        hidden, unknown = private.ask("ann", target), private.ask("ann", target.replace("2", "99"))
        assert hidden[0] == unknown[0] == 404
        assert hidden[2]["title"] == unknown[2]["title"]  # nothing tells one from the other
    assert private.ask("ann", "/v1/jobs/2/pause", "POST")[0] == 404 and not private.store.paused_jobs()
    assert private.ask("bob", "/v1/jobs/2/explain")[2]["decision"]["job_id"] == 2
    # an answer that is kept for one caller is not given to another
    assert jobs(private.ask("eve", "/v1/status")[2]) == []


@pytest.mark.parametrize("hidden", ["jobs", "nodes"])
def test_what_befell_a_node_is_for_those_who_see_all_jobs_and_nodes(tmp_path: Path, hidden: str) -> None:
    rights = parse_rights({"PrivateData": hidden}, "op|Operator|\n")
    with service(tmp_path, rights) as made:
        made.store.put_nodes([StoredNode("n1", encode(NodeRecord(name="n1", drained=True)), 1000.0)])
        told = {user: made.ask(user, "/v1/status")[2] for user in ("op", "ann", "op")}
        names = {user: [n["name"] for n in one["bad_nodes"]] for user, one in told.items()}
        assert names == {"ann": [], "op": ["n1"]}
        assert jobs(told["ann"]) == ([1] if hidden == "jobs" else [1, 2]) and jobs(told["op"]) == [1, 2]


def test_data_are_called_stale_while_the_database_is_gone(shared: Service, tmp_path: Path) -> None:
    _, headers, first = shared.ask("ann", "/v1/status")
    assert first["stale_since_s"] is None
    before_s, file = time.time(), tmp_path / "s.db"
    file.rename(tmp_path / "away.db")
    _, headers, stale = shared.ask("ann", "/v1/status?wait=20", If_None_Match=headers["etag"])
    assert jobs(stale) == [1, 2] and before_s - 5 < stale["stale_since_s"] <= time.time()
    for target in ("/v1/jobs/1/explain", "/v1/jobs/1/usage", "/v1/usage"):
        code, _, refused = shared.ask("ann", target)
        assert code == 503 and refused["detail"] == str(UnavailableError(*app.DATABASE_AWAY))
    (tmp_path / "away.db").rename(file)
    _, _, back = shared.ask("ann", "/v1/status?wait=20", If_None_Match=headers["etag"])
    assert back["stale_since_s"] is None and back["jobs"] == first["jobs"]


def test_a_dry_runs_account_is_for_those_who_may_know_of_the_jobs(private: Service) -> None:
    row = WouldHave(
        job_id=1, submit_s=0.0, name="a", user="ann", account="chem", asked_gpus=2, has_line=False, from_s=0.0, to_s=time.time(),
        ran_s=3600.0, useful_s=5400.0, sigma_s=360.0,
    )  # fmt: skip
    private.store.put_would_have([row, replace(row, job_id=2, user="bob")])
    seen = {user: private.ask(user, "/v1/would-have")[2] for user in ("ann", "eve", "op")}
    assert {user: [job["job_id"] for job in one["jobs"]] for user, one in seen.items()} == {
        "ann": [1],
        "eve": [],
        "op": [1, 2],
    }
    assert seen["op"]["total"]["gain"] == 0.5 and seen["eve"]["total"]["gain"] is None
    assert private.ask("ann", "/v1/would-have?from=5&to=4")[0] == 400


def test_jobs_that_wait_are_shown_as_squeue_shows_them(private: Service) -> None:
    """Of two plain jobs ann sees her own, and not whose end it waits for."""
    frees = Reason("wait-freed", {"jobs": [9], "freed": "4 GPUs", "in_s": 600.0})
    own = ExpectedJob(job_id=8, user="ann", state="PENDING", gpus=4, reasons=(frees,))
    other = ExpectedJob(job_id=9, user="bob", state="RUNNING", gpus=4)
    behind = ExpectedJob(job_id=10, user="bob", state="PENDING", gpus=4)
    private.store.put_expected(1000.0, [encode(job) for job in (own, behind, other)], {})
    told = {user: private.ask(user, "/v1/status")[2]["waiting"] for user in ("ann", "eve", "op")}
    assert {user: [job["job_id"] for job in jobs] for user, jobs in told.items()} == {
        "ann": [8],
        "eve": [],
        "op": [8, 10],
    }
    assert told["ann"][0]["why"] == "In about 10 min another job should have freed 4 GPUs."
    assert told["op"][0]["why"] == "In about 10 min job 9 should have freed 4 GPUs."
    explained = private.ask("ann", "/v1/jobs/8/explain")[2]["expected"]
    assert explained["why"] == told["ann"][0]["why"] and "9" not in json.dumps(explained)
    assert [private.ask("ann", f"/v1/jobs/{job}/explain")[0] for job in (9, 10)] == [404, 404]
    assert private.ask("ann", "/v1/status?job=8")[2]["waiting"] == told["ann"]
    assert private.ask("ann", "/v1/status?job=10")[0] == 404
    assert private.ask("ann", "/v1/jobs/8/history")[0] == 200  # for the page
    assert private.ask("ann", "/v1/jobs/8/pause", "POST")[0] == 404


def test_the_story_of_a_job_that_is_gone_is_its_owners(private: Service) -> None:
    save(private.store, BOB, at_s=2000.0)
    end_s = time.monotonic() + 30
    while jobs(private.ask("op", "/v1/status")[2]) != [2]:  # until the service has looked again
        assert time.monotonic() < end_s
        time.sleep(0.1)
    codes = [private.ask(user, "/v1/jobs/1/explain")[0] for user in ("ann", "op", "bob")]
    assert codes == [200, 200, 404]
    assert private.ask("ann", "/v1/jobs/1/pause", "POST")[0] == 404


@pytest.mark.parametrize("private", ["jobs", "usage", ""])
def test_a_report_is_of_what_the_caller_may_know_of(tmp_path: Path, private: str) -> None:
    rights = SlurmRights(
        private_jobs=private == "jobs",
        private_usage=private == "usage",
        operators=frozenset({"op"}),
        accounts_of={"coo": frozenset({"chem"})},
    )
    with service(tmp_path, rights) as found:
        parts = [
            Usage(job_id=i, user=u, account=a, start_s=0.0, from_s=0.0, to_s=7200.0, gpus=2, asked_gpus=2)
            for i, u, a in ((1, "ann", "chem"), (2, "bob", "phys"))
        ]
        found.store.put_usage(parts)

        def users(caller: str, query: str = "") -> list[str]:
            _, _, told = found.ask(caller, f"/v1/usage?from=3600&to=10800{query}")
            assert told["total"]["held_gpu_h"] == 2.0 * len(told["rows"])
            return [row["user"] for row in told["rows"]]

        everybody = ["ann", "bob"]
        assert users("op") == everybody and users("op", "&account=phys") == ["bob"]
        assert users("ann") == (["ann"] if private else everybody) == users("coo")
        assert users("eve") == ([] if private else everybody)
        assert users("ann", "&user=bob") == ([] if private else ["bob"])
        seen = {caller: found.ask(caller, "/v1/jobs/2/usage")[0] for caller in ("op", "bob", "ann", "coo", "eve")}
        hidden = 404 if private else 200
        assert seen == {"op": 200, "bob": 200, "ann": hidden, "coo": hidden, "eve": hidden}
        (run,) = decode(JobUsageJson, found.ask("bob", "/v1/jobs/2/usage")[2]).incarnations
        assert (run.gpus, run.run_s, run.end_s) == (2, 7200.0, 7200.0)
        missing, secret = (found.ask("ann", f"/v1/jobs/{job_id}/usage")[2] for job_id in (99, 2))
        assert not private or str(missing).replace("99", "2") == str(secret), "nothing tells one from the other"


def test_hours_by_day_add_up_to_those_of_the_days_together(tmp_path: Path) -> None:
    with service(tmp_path, SlurmRights(private_usage=True)) as found:
        before_s, midnight_s, after_s = last_midnights(2)
        over = Usage(
            job_id=1, user="ann", account="a", start_s=midnight_s - 3600, from_s=midnight_s - 3600, to_s=midnight_s + 1800,
            gpus=2, asked_gpus=2, trained_s=2700.0,
        )  # fmt: skip
        early = replace(over, job_id=2, start_s=before_s, from_s=before_s, to_s=before_s + 3600, trained_s=3600.0)
        other = replace(over, job_id=3, user="bob")
        found.store.put_usage(
            [over, early, other, replace(early, job_id=4, from_s=before_s - 9e4, to_s=before_s - 8e4)]
        )
        _, _, told = found.ask("ann", "/v1/usage?days=2")
        days = decode(UsageJson, told).days
        assert [(d.from_s, d.to_s) for d in days] == [(before_s, midnight_s), (midnight_s, after_s)]
        assert [(d.losses.held_gpu_h, d.losses.training_gpu_h) for d in days] == [(4.0, 3.0), (1.0, 0.5 * 1.0)]
        assert sum(d.losses.held_gpu_h for d in days) == told["total"]["held_gpu_h"] == 5.0
        assert len(found.ask("ann", "/v1/usage?days=31")[2]["days"]) == 31
        assert found.ask("ann", "/v1/usage")[2]["days"] == []


def test_a_recording_comes_back_as_it_was_for_those_who_see_all_jobs(private: Service) -> None:
    cell = Cell(Shape("a100", 1, 2), Plan(dp=2), 64.0, 1.0, 64.0, 0.5, 0)
    given = replace(decision(3), cell=cell)
    private.store.save_epoch(EpochRecord(2000.0, 0.1, False, (given,), {"nodes": 2, "gpus": 8}, present=(ANN,)))
    private.store.put_reports([StoredReport(Report(1, 0, 5, 0.5), 1000.0)])
    private.store.put_profiles({"job:1": Profile(samples=3)}, 1000.0)
    private.store.append_events([StoredEvent(1, 1000.0, "RUNNING", "Observed", "started")])
    assert [private.ask(u, "/v1/recording")[0] for u in ("ann", "eve", "op")] == [403, 403, 200]
    _, _, told = private.ask("op", "/v1/recording")
    found, kept = from_json(decode(RecordingJson, told)), private.store.recording()
    for name in ("events", "seen_s", "first_cells"):
        assert getattr(found, name) == getattr(kept, name) != ()
    for name in ("lifecycles", "profiles", "reports"):
        assert getattr(found.remembered, name) == getattr(kept.remembered, name) != {}
    assert found.latest is not None and kept.latest is not None
    assert (found.latest.summary, found.latest.present) == (kept.latest.summary, kept.latest.present)


def test_long_answers_leave_the_others_their_threads(shared: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    going_on, may_end = Counter[str](), threading.Event()

    def slow(*_: object) -> UsageJson:
        going_on["reports"] += 1
        may_end.wait(120)
        return UsageJson(from_s=0.0, to_s=1.0, total=Totals())

    monkeypatch.setattr(app, "usage", slow)
    with ThreadPoolExecutor(30) as callers:
        asked = [callers.submit(shared.ask, user, "/v1/usage?from=0&to=1") for user in ("ann", "bob", "eve") * 10]
        try:
            refused_ones, end_s = 30 - 3 * app.LONG_READS_A_USER, time.monotonic() + 100
            while sum(one.done() for one in asked) < refused_ones or going_on["reports"] < app.LONG_READS:
                assert time.monotonic() < end_s
                time.sleep(0.02)
            refused = [one.result() for one in asked if one.done()]
            assert {code for code, _, _ in refused} == {429} and going_on["reports"] == app.LONG_READS
            assert shared.ask("ann", "/v1/jobs/1/explain")[0] == 200  # from the database, meanwhile
        finally:
            may_end.set()
        assert sum(one.result()[0] == 200 for one in asked) == 3 * app.LONG_READS_A_USER
    assert shared.ask("ann", "/v1/usage?from=0&to=1")[0] == 200


def test_two_who_steer_one_job_do_not_overwrite_one_another(shared: Service) -> None:
    _, first, told = shared.ask("ann", "/v1/jobs/1/steering")
    assert told == {"min_gpus": None, "max_gpus": None, "weight": None}
    code, second, told = shared.ask("ann", "/v1/jobs/1/steering", "PUT", {"max_gpus": 8}, If_Match=first["etag"])
    assert code == 200 and told["max_gpus"] == 8
    assert shared.ask("ann", "/v1/jobs/1/steering", "PUT", {"max_gpus": 2}, If_Match=first["etag"])[0] == 412
    assert shared.ask("ann", "/v1/jobs/1/steering", "PUT", {"weight": 2}, If_Match=second["etag"])[0] == 200
    assert shared.store.steering(1) == Steering(max_gpus=8, weight=2)
    assert shared.ask("eve", "/v1/jobs/1/steering", "PUT", {"max_gpus": 1})[0] == 403


@pytest.mark.slow
@pytest.mark.parametrize(
    ("target", "method", "body", "code"),
    [
        ("/v1/jobs/1/steering", "PUT", {"gpus": 1}, 400),
        ("/v1/jobs/1/steering", "PUT", {"min_gpus": "1"}, 400),
        ("/v1/jobs/1/steering", "PUT", [], 400),
        ("/v1/jobs/1/steering", "PUT", b"[" * 10_000, 400),
        ("/v1/jobs/1/steering", "PUT", b"\xff", 400),
        ("/v1/jobs/1/steering", "PUT", b"", 400),
        ("/v1/jobs/1/steering", "PUT", b"x" * (MAX_BODY_BYTES + 1), 413),
        ("/v1/jobs/1/steering", "PUT", b"x" * 10_000_000, 413),
        ("/v1/jobs/1%20OR%201=1/explain", "GET", None, 400),
        ("/v1/jobs/99999999999999999999/explain", "GET", None, 400),
        ("/v1/jobs/0/explain", "GET", None, 400),
        ("/v1/status?job=-1", "GET", None, 400),
        ("/v1/status?wait=1e9", "GET", None, 400),
        ("/v1/report?from=5", "GET", None, 400),
        ("/v1/usage?from=5&to=5", "GET", None, 400),
        ("/v1/usage?from=0&to=999999999999", "GET", None, 400),
        ("/v1/usage?from=0&to=9e9", "GET", None, 400),
        ("/v1/usage?from=0&to=9&user=%0a", "GET", None, 400),
        ("/v1/usage?days=0", "GET", None, 400),
        ("/v1/usage?days=32", "GET", None, 400),
        ("/v1/usage?days=%2B7", "GET", None, 400),
        ("/v1/nothing", "GET", None, 404),
        ("/v1/status", "DELETE", None, 405),
    ],
)
def test_bad_input_is_one_problem(shared: Service, target: str, method: str, body: object, code: int) -> None:
    try:
        status, headers, told = shared.ask("ann", target, method, body)
    except (BrokenPipeError, ConnectionResetError):  # refused before all of a large body was read
        assert code == 413
    else:
        assert status == code and headers["content-type"] == "application/problem+json" and told["title"]
    assert shared.ask("ann", "/v1/status")[0] == 200


def test_a_watcher_hears_of_news_at_once_and_of_nothing_at_its_time(shared: Service) -> None:
    _, headers, _ = shared.ask("ann", "/v1/status")
    etag = headers["etag"]
    began_s = time.monotonic()
    assert shared.ask("ann", "/v1/status?wait=1", If_None_Match=etag)[0] == 304
    assert time.monotonic() - began_s >= 1.0
    later = threading.Timer(0.5, save, (shared.store, ANN), {"at_s": 2000.0})
    later.start()
    status, headers, told = shared.ask("ann", "/v1/status?wait=25", If_None_Match=etag, Accept_Encoding="gzip")
    later.join()
    assert status == 200 and headers["etag"] != etag and jobs(told) == [1] and headers["content-encoding"] == "gzip"


@pytest.mark.parametrize(
    ("said", "least_s"),
    [(b"GET /v1/status HT", 0.0), (b"", 0.0), (b"GET /v1/ping HTTP/1.1\r\nHost: x\r\n\r\nGET /", 2.0)],
)
def test_a_silent_and_a_long_connection_end(
    shared: Service, monkeypatch: pytest.MonkeyPatch, said: bytes, least_s: float
) -> None:
    monkeypatch.setattr(server, "FIRST_REQUEST_S", 1.5)
    monkeypatch.setattr(server, "CONNECTION_S", 3.0)
    began_s = time.monotonic()
    with socket.create_connection(("localhost", shared.port), timeout=20) as wire:
        wire.sendall(said)
        with suppress(ConnectionError):
            while wire.recv(65536):
                pass
    assert least_s <= time.monotonic() - began_s < 15


def test_an_epoch_that_never_was_is_empty(tmp_path: Path) -> None:
    with open_store(f"sqlite:///{tmp_path / 'e.db'}", create=True) as store:
        made = Service(store, OPEN)
        try:
            assert made.ask("ann", "/v1/status")[2] == {
                "format": 1,
                "epoch_s": None,
                "dry_run": False,
                "stale_since_s": None,
                "plain_jobs": None,
                "plain_held_gpus": None,
                "jobs": [],
                "bad_nodes": [],
                "waiting": [],
            }
        finally:
            made.stop()


@pytest.mark.parametrize("state", ["no file", "no schema", "older"])
def test_a_database_that_the_daemon_is_still_to_make_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state: str
) -> None:
    rights = FixedRights(OPEN)
    rights.config = {}
    monkeypatch.setattr(server, "RightsReader", lambda: rights)
    file = tmp_path / "s.db"
    if state != "no file":
        file.touch()
    if state == "older":
        open_store(f"sqlite:///{file}", create=True).close()
        with closing(sqlite3.connect(file)) as connection, connection:
            connection.execute("UPDATE alembic_version SET version_num = '0010'")
    with pytest.raises(UnavailableError):  # exit code 1, after which the unit starts it again
        server.run(Settings(state_dir=tmp_path, database=f"sqlite:///{file}"))
    with pytest.raises(UsageError):
        server.run(Settings(state_dir=tmp_path, database=f"sqlite:///{tmp_path}"))


def test_openapi_describes_every_route_and_every_answer(shared: Service) -> None:
    told = shared.ask("", "/v1/openapi.json")[2]
    assert told == json.loads(json.dumps(openapi()))
    app = application(shared.store, NamedIdentity(), FixedRights(OPEN))
    served = {(route.path, m) for route in app.routes for m in route.methods - {"HEAD"}}  # type: ignore[attr-defined]
    described = {(path, m.upper()) for path, methods in told["paths"].items() for m in methods}
    page = {(path, "GET") for path in ("/", "/page/", "/page/{name}")}
    assert served - page - {("/v1/ping", "GET"), ("/v1/openapi.json", "GET")} == described
    names = told["components"]["schemas"]
    assert set(names["StatusJson"]["properties"]) == set(shared.ask("ann", "/v1/status")[2])
    assert set(names["ExplainJson"]["properties"]) == set(shared.ask("ann", "/v1/jobs/1/explain")[2])
    assert json.dumps(told).count("#/components/schemas/") and all(names.values())
