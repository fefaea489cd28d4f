"""The page's data over a real socket: who sees which jobs in it, what-if runs and their bounds, the page's own files."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from synergy_core.errors import UsageError
from synergy_core.job_report import Report
from synergy_core.records import Cluster, Job, JobState, Node, Shape, Snapshot
from synergy_core.usage import Usage
from synergy_sim.runs import policies

from synergyd.cli.synergyctl import cli
from synergyd.control.queue_history import QueueHistory
from synergyd.rest import what_if
from synergyd.rest.caller import SlurmRights
from synergyd.rest.page import read_files
from synergyd.rest.slurm_rights import parse_rights
from synergyd.rest.what_if import BusyError, WhatIfs, read_request
from synergyd.settings import Settings
from synergyd.store.months import present_month
from synergyd.store.records import EpochRecord
from synergyd.store.store import Store, open_store
from synergyd.views.what_if import KEYS
from tests.unit.rest.test_service import OPEN, PRIVATE, Service
from tests.unit.store.store_world import decision

MOST_BYTES = 150 * 1024  # of the page as a whole, not compressed
ONE = Shape("a100", 1, 2)
ANN = Job(1, "secret-a", "ann", 1, "p", JobState.RUNNING, "", 0.0, 0.0, None, 0, ONE, ONE, ("n1",), account="chem")
BOB = Job(2, "secret-b", "bob", 2, "p", JobState.RUNNING, "", 0.0, 0.0, None, 1, ONE, ONE, ("n1",), account="physics")
NODE = Node("n1", "a100", 8, 5, up=True, reason="job 2 hung here")


def fill(store: Store) -> None:
    """Two epochs of ann's and bob's jobs on one node, of whose GPUs one is a plain job's."""
    history, now_s = QueueHistory(), time.time()
    for n in (0, 1):
        at_s = now_s - 60 + 60 * n
        reports = {i: Report(i, 0, 10 + n, loss=2.0 - n) for i in (1, 2)}
        summary = history.epoch(Snapshot(at_s, Cluster((NODE,)), (ANN, BOB)), (), reports, at_s)
        decisions = (decision(1), decision(2))
        present = tuple(
            {"job_id": j.job_id, "name": j.name, "user": j.user, "account": j.account, "state": "RUNNING", "lifecycle": "RUNNING",
             "gpus": 2, "asked_gpus": 2}
            for j in (ANN, BOB)
        )  # fmt: skip
        store.save_epoch(EpochRecord(at_s, 0.1, False, decisions, {"gpus": 8, **summary}, present=present))


def served(folder: Path, rights: SlurmRights) -> Iterator[Service]:
    with open_store(f"sqlite:///{folder / 's.db'}", create=True) as store:
        fill(store)
        made = Service(store, rights)
        try:
            yield made
        finally:
            made.stop()


@pytest.fixture
def shared(tmp_path: Path) -> Iterator[Service]:
    yield from served(tmp_path, OPEN)


@pytest.fixture
def private(tmp_path: Path) -> Iterator[Service]:
    yield from served(tmp_path, PRIVATE)


def test_everybody_sees_who_holds_what_and_the_last_day(shared: Service) -> None:
    (node,) = shared.ask("eve", "/v1/cluster")[2]["nodes"]
    assert node["jobs"] == [{"job_id": 1, "gpus": 2}, {"job_id": 2, "gpus": 2}]
    assert node["other_gpus"] == 1 and node["reason"] == "job 2 hung here"
    day = shared.ask("eve", "/v1/history")[2]
    assert [(j["job_id"], j["user"], [h["gpus"] for h in j["held"]]) for j in day["jobs"]] == [
        (1, "ann", [2]),
        (2, "bob", [2]),
    ]
    assert [(t["goodput_gpus"], t["plain_gpus"], t["gpus"]) for t in day["totals"]] == [(0, 4, 8)] * 2
    points = shared.ask("eve", "/v1/jobs/1/history")[2]["points"]
    assert [(p["step"], p["loss"]) for p in points] == [(10, 2.0), (11, 1.0)]
    assert shared.ask("", "/v1/cluster")[0] == shared.ask("", "/v1/history")[0] == 401


def test_the_page_and_the_command_show_one_gain(shared: Service, tmp_path: Path) -> None:
    """Restarts cost more than the sizes gained; each epoch's own prediction, without restarts, says the opposite."""
    begin_s = present_month()[0]
    run = Usage(
        job_id=1, user="ann", account="chem", start_s=begin_s, from_s=begin_s, to_s=begin_s + 7200.0, gpus=4, asked_gpus=2,
        trained_s=3600.0, restart_s=3000.0, useful_gpu_s=2 * 1.5 * 3600.0, sigma_gpu_s=360.0, stopped_s=600.0,
        predicted_ratio=1.5, before_goodput=10.0, measured_s=3600.0, measured_work=14.0 * 3600.0,
    )  # fmt: skip
    shared.store.put_usage([run])
    command = CliRunner().invoke(cli, ["--database", f"sqlite:///{tmp_path}/s.db", "usage", "--json"])
    shown = json.loads(command.output)
    asked = pages_request("gain.js")
    assert asked == "usage", "the page's one source, without a span of its own"
    answer = shared.ask("ann", f"/v1/{asked}")[2]
    assert answer["total"] == shown["total"] and (answer["from_s"], answer["to_s"]) == (shown["from_s"], shown["to_s"])
    total = answer["total"]
    assert total["gain"] == pytest.approx(-0.25) and total["saved_h"] == pytest.approx(-0.5)
    assert (total["audited"], total["predicted_h"], total["measured_h"]) == (1, pytest.approx(0.5), pytest.approx(0.4))
    # nobody divides what epochs predicted, which is all that the page's other requests tell
    for name, file in read_files().items():
        text = file.plain.decode()
        assert not re.search(r"goodput_gpus[^\n]*/[^\n]*plain_gpus", text), name
        assert not re.search(r'fact\("Gain', text) or name == "gain.js", name
    text = read_files()["gain.js"].plain.decode()
    assert "total.gain" in text and "total.saved_h" in text


def pages_request(name: str) -> str:
    """What a script of the page asks the service for."""
    (path,) = re.findall(r'ask\("GET", "([\w/-]+)"', read_files()[name].plain.decode())
    return str(path)


def test_private_jobs_are_in_no_chart_of_others(private: Service) -> None:
    (node,) = private.ask("ann", "/v1/cluster")[2]["nodes"]
    assert node["jobs"] == [{"job_id": 1, "gpus": 2}]
    assert node["other_gpus"] == 3 and node["reason"] == ""  # bob's GPUs are as any other's
    seen = {user: private.ask(user, "/v1/history")[2]["jobs"] for user in ("ann", "bob", "eve", "op")}
    assert {user: [j["job_id"] for j in jobs] for user, jobs in seen.items()} == {
        "ann": [1],
        "bob": [2],
        "eve": [],
        "op": [1, 2],
    }
    for target in ("/v1/cluster", "/v1/history", "/v1/me"):
        assert "secret-b" not in json.dumps(private.ask("ann", target)[2]) and "bob" not in str(
            private.ask("ann", target)[2]
        )
    hidden, unknown = private.ask("ann", "/v1/jobs/2/history"), private.ask("ann", "/v1/jobs/99/history")
    assert hidden[0] == unknown[0] == 404 and hidden[2]["title"] == unknown[2]["title"]
    assert private.ask("ann", "/v1/what-if", "POST", {"policy": "fifo"})[0] == 403
    assert private.ask("ann", "/v1/what-if")[0] == 403
    assert private.ask("op", "/v1/what-if")[2]["state"] == "none"


def test_private_nodes_are_for_those_who_command_all(tmp_path: Path) -> None:
    rights = parse_rights({"PrivateData": "nodes", "SlurmUser": "slurm(64030)"}, "op|Operator|\n")
    for made in served(tmp_path, rights):
        assert made.ask("ann", "/v1/cluster")[0] == 403 and made.ask("op", "/v1/cluster")[0] == 200
        assert made.ask("ann", "/v1/status")[0] == 200
        _, _, told = made.ask("ann", "/v1/recording")
        assert told["summary"] == {"gpus": 8} and "hung here" not in json.dumps(told)


def test_what_the_caller_may_is_told(private: Service) -> None:
    assert private.ask("ann", "/v1/me")[2] == {
        "user": "ann",
        "commands_all": False,
        "sees_all": False,
        "coordinates": [],
    }
    assert private.ask("op", "/v1/me")[2]["commands_all"] is True


def test_an_unchanged_chart_is_not_sent_again(shared: Service) -> None:
    for target in ("/v1/cluster", "/v1/history"):
        _, headers, _ = shared.ask("ann", target)
        assert shared.ask("ann", target, If_None_Match=headers["etag"])[0] == 304


def get(service: Service, target: str, **headers: str) -> http.client.HTTPResponse:
    connection = http.client.HTTPConnection("localhost", service.port, timeout=20)
    try:
        connection.request("GET", target, headers=headers)
        answer = connection.getresponse()
        answer.read()
        return answer
    finally:
        connection.close()


def test_the_page_is_served_to_anybody_under_a_strict_policy(shared: Service) -> None:
    assert get(shared, "/").getheader("location") == "page/"
    for name in ("", *read_files()):
        answer = get(shared, f"/page/{name}")
        assert answer.status == 200
        policy = answer.getheader("content-security-policy") or ""
        assert "default-src 'none'" in policy and "unsafe" not in policy and "frame-ancestors 'none'" in policy
        assert answer.getheader("x-content-type-options") == "nosniff"
        etag = answer.getheader("etag") or ""
        assert get(shared, f"/page/{name}", **{"If-None-Match": etag}).status == 304
    for wrong in ("nothing.js", "..%2fpage.py", "%2e%2e/app.py", "__init__.py"):
        assert get(shared, f"/page/{wrong}").status == 404


def test_the_pages_files_are_light_and_load_nothing_from_elsewhere() -> None:
    files = {name: file.plain.decode() for name, file in read_files().items()}
    assert sum(len(text.encode()) for text in files.values()) < MOST_BYTES
    for name, text in files.items():
        assert text.count("\n") < 450, name
        assert not re.search(r"(?:src|href|from|import|url)\W*['\"(]\s*(?:https?:)?//", text), name
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function", text), (
            name
        )
    page = files["index.html"]
    assert not re.search(r"\son\w+=|style=|<script(?![^>]*src=)", page)
    named = set(re.findall(r'(?:src|href)="([\w.]+)"', page))
    modules = {name for name in files if name.endswith(".js")}
    assert modules <= named  # each is loaded at once, not one after the other
    imported = {i for text in files.values() for i in re.findall(r'from "\./([\w.]+)"', text)}
    assert imported <= modules and named <= set(files)


def test_the_page_offers_the_policies_and_settings_that_there_are() -> None:
    text = read_files()["whatif.js"].plain.decode()
    listed = set(re.findall(r'"([\w-]+)"', re.search(r"POLICIES = \[(.*?)\]", text, re.S)[1]))  # type: ignore[index]
    assert listed == {p for p in policies() if not p.startswith("tiresias-")}


def test_what_can_be_tried_comes_with_its_present_value() -> None:
    now = WhatIfs(Settings(policy="fifo", epoch_s=120.0, preemption=False)).present()
    assert [one.key for one in now] == ["Policy", *KEYS]
    values = {one.key: one.value for one in now}
    assert (values["Policy"], values["Epoch"], values["Preemption"], values["Fairness"]) == ("fifo", "120s", "no", "0")
    assert all(one.text and one.takes and "docs/" not in one.text for one in now)


@pytest.mark.parametrize(
    "body",
    [
        None, [], {}, {"policy": 1}, {"policy": "x y"}, {"policy": "-" * 41}, {"settings": []}, {"other": 1},
        {"settings": {"Database": "sqlite:////etc/passwd"}}, {"settings": {"Fairness": 1}}, {"settings": {"Fairness": ""}},
        {"settings": {"Fairness": "1 StateDir=/"}}, {"settings": {"Fairness": "1\n"}}, {"settings": {"Fairness": "9" * 99}},
    ],
)  # fmt: skip
def test_a_wrong_what_if_is_refused(body: object) -> None:
    with pytest.raises(UsageError):
        read_request(body)


def test_a_wrong_what_if_is_one_problem(shared: Service) -> None:
    for body in (b"", b"[" * 9000, b"{}", b'{"policy": "a/b"}'):
        code, headers, told = shared.ask("ann", "/v1/what-if", "POST", body)
        assert code == 400 and headers["content-type"] == "application/problem+json" and told["title"]


def child(monkeypatch: pytest.MonkeyPatch, folder: Path, text: str) -> None:
    """Another program in the place of the simulation."""
    (folder / "stand_in.py").write_text(f"import json, sys, time, os\nasked = json.loads(sys.stdin.readline())\n{text}")
    monkeypatch.setenv("PYTHONPATH", str(folder))
    monkeypatch.setattr(what_if, "CHILD", "stand_in")


async def until(runs: WhatIfs, user: str, *states: str) -> Any:
    for _ in range(600):
        if runs.last_run(user).state in states:
            return runs.last_run(user)
        await asyncio.sleep(0.05)
    raise AssertionError(runs.last_run(user))


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(database=f"sqlite:///{tmp_path}/none.db")


def test_one_run_a_user_and_few_in_all(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, settings: Settings) -> None:
    child(monkeypatch, tmp_path, 'print(json.dumps({"share": 0.25}), flush=True)\ntime.sleep(600)\n')

    async def scene() -> None:
        runs = WhatIfs(settings)
        asked = read_request({"policy": "fifo"})
        await runs.start("ann", asked)
        await runs.start("bob", asked)
        with pytest.raises(BusyError):
            await runs.start("ann", asked)
        while runs.last_run("ann").share != 0.25:
            await asyncio.sleep(0.05)
        assert (await runs.stop("ann")).state == "stopped"
        await runs.start("eve", asked)  # there is room again
        await until(runs, "eve", "running")
        await runs.close()
        assert {user: runs.last_run(user).state for user in ("ann", "bob", "eve")} == dict.fromkeys(
            ("ann", "bob", "eve"), "stopped"
        )

    asyncio.run(asyncio.wait_for(scene(), 60))


def test_two_accounts_do_not_hold_the_turns(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, settings: Settings
) -> None:
    """They ask again as soon as their run is over; who came between them comes first."""
    child(monkeypatch, tmp_path, 'print(json.dumps({"share": 0.25}), flush=True)\ntime.sleep(600)\n')
    monkeypatch.setattr(what_if, "MOST_S", 3.0)
    monkeypatch.setattr(what_if, "WAITING", 2)

    async def again(runs: WhatIfs, user: str) -> None:
        while True:
            with contextlib.suppress(BusyError):
                await runs.start(user, read_request({"policy": "fifo"}))
            await asyncio.sleep(0.01)

    async def scene() -> None:
        runs = WhatIfs(settings)
        greedy = [asyncio.create_task(again(runs, user)) for user in ("ann", "bob")]
        for user in ("ann", "bob"):
            await until(runs, user, "running")
        for user in ("eve", "joe"):
            assert (await runs.start(user, read_request({"policy": "fifo"}))).state == "waiting"
        with pytest.raises(BusyError):
            await runs.start("kim", read_request({"policy": "fifo"}))
        assert (await runs.stop("joe")).state == "stopped"
        await until(runs, "eve", "running")
        assert "longer than 3 s" in (await until(runs, "eve", "failed")).problem
        for task in greedy:
            task.cancel()
        await runs.close()

    asyncio.run(asyncio.wait_for(scene(), 120))


def test_a_run_that_is_stopped_before_it_begins_leaves_room_for_the_next(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, settings: Settings
) -> None:
    child(monkeypatch, tmp_path, 'print(json.dumps({"share": 0.25}), flush=True)\ntime.sleep(600)\n')

    async def scene() -> None:
        runs = WhatIfs(settings)
        for _ in range(2):
            await runs.start("ann", read_request({"policy": "fifo"}))
            assert (await runs.stop("ann")).state == "stopped"
        await runs.close()

    asyncio.run(asyncio.wait_for(scene(), 60))


def test_two_browsers_that_stop_one_run_leave_room_for_the_next(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, settings: Settings
) -> None:
    child(monkeypatch, tmp_path, 'print(json.dumps({"share": 0.25}), flush=True)\ntime.sleep(600)\n')

    async def scene() -> None:
        runs, asked = WhatIfs(settings), read_request({"policy": "fifo"})
        for _ in range(3):  # more often than runs may go on at once
            await runs.start("ann", asked)
            while runs.last_run("ann").share != 0.25:
                await asyncio.sleep(0.05)
            first = asyncio.create_task(runs.stop("ann"))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            ended = await asyncio.gather(first, runs.stop("ann"), runs.stop("ann"))
            assert [run.state for run in ended] == ["stopped"] * 3
        await runs.close()

    asyncio.run(asyncio.wait_for(scene(), 60))


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("sys.exit(3)", "ended with 3"),
        ("print('no json')", "Expecting value"),
        ('print(json.dumps({"problem": "none of its jobs can be replayed"}))', "can be replayed"),
        ("print('x' * 200000, flush=True)\ntime.sleep(600)", "limit"),
        ("time.sleep(600)", "longer than 2 s"),
    ],
)
def test_a_run_that_fails_says_why_and_ends(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, settings: Settings, text: str, problem: str
) -> None:
    child(monkeypatch, tmp_path, text)
    if "longer" in problem:
        monkeypatch.setattr(what_if, "MOST_S", 2.0)

    async def scene() -> None:
        runs = WhatIfs(settings)
        await runs.start("ann", read_request({"settings": {"Fairness": "-2"}}))
        assert problem in (await until(runs, "ann", "failed", "done", "stopped")).problem
        await runs.start("ann", read_request({"policy": "fifo"}))  # it is over: another may begin
        await runs.close()

    asyncio.run(asyncio.wait_for(scene(), 60))
