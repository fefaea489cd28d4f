"""`status --json` and `explain --json`: records whose every field is documented, with the keys that scripts use since 0.1.0."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from synergy_core.achieved import Achieved
from synergy_core.job_report import GpuActivity, Report
from synergy_core.reasons import Reason, text_reason
from synergy_core.records import (
    Action,
    Alternative,
    Cell,
    Cluster,
    Decision,
    Job,
    JobState,
    Plan,
    Shape,
    Snapshot,
)
from synergy_core.shared_links import SharedLink, Sharing
from synergy_core.wire.codec import decode, encode

from synergyd.cli.synergyctl import cli
from synergyd.control.decision_log import job_statuses
from synergyd.control.resize.lifecycle import JobLifecycle
from synergyd.store.records import EpochRecord, StoredEvent, StoredLifecycle, StoredReport
from synergyd.store.store import open_store
from synergyd.views import status
from synergyd.views.json_records import ExplainJson, StatusJson, decision_json, json_reference

PLAN = Plan(tp=2, dp=2, micro_batch=1, global_batch=8)
CELL = Cell(Shape("a100", 1, 4), PLAN, 10.0, 0.9, 9.0, 0.8, 2**33)
DECISION = Decision(
    7, Action.RESIZE, CELL, ("n1",), text_reason("grows"), 1.5, (Alternative(CELL, Reason("text", {"text": "less"})),),
    (("goodput", 0.5),), 0.9, Sharing(1.25, "nic:n1", (SharedLink("nic:n1", (8,)),)),
)  # fmt: skip
# to the letter what a daemon of 0.1.0 left in the table of epochs
OF_0_1_0 = (
    '{"job_id": 7, "name": "run", "user": "ann", "state": "RUNNING", "lifecycle": "RUNNING", "gpus": 2, "asked_gpus": 2, '
    '"wanted_gpus": 4, "wanted_nodes": ["n1"], "action": "resize", "why": "grows", "relative_goodput": 1.5, "plan": {"tp": 1, '
    '"pp": 1, "dp": 2, "micro_batch": 1}, "global_batch": 8, "restarts": 1, "step": 3, "loss": 0.25, "paused": false, '
    '"held": false}'
)
EXPLAIN_KEYS = {
    "job_id", "decided_s", "dry_run", "decision", "lines", "links", "alternatives", "lifecycle", "report", "note", "warnings",
    "paused", "story", "end", "expected", "achieved", "diagnoses", "kernels",
}  # fmt: skip


@pytest.fixture
def url(tmp_path: Path) -> str:
    url = f"sqlite:///{tmp_path / 's.db'}"
    with open_store(url, create=True) as store:
        store.save_epoch(EpochRecord(1000.0, 0.1, False, (DECISION,), present=(json.loads(OF_0_1_0),)))
        store.append_events([StoredEvent(7, 1000.0, "RUNNING", "Observed", "started")])
        store.put_lifecycles([StoredLifecycle(7, 0.0, "RUNNING", {}, 1000.0)])
        store.put_reports([StoredReport(Report(7, 1, 44, loss=1.25, plan=PLAN, note="hello"), 1000.0)])
    return url


def answer(url: str, *words: str) -> dict[str, Any]:
    return dict(json.loads(CliRunner().invoke(cli, ["--database", url, *words, "--json"]).output))


def test_the_keys_of_0_1_0_are_there(url: str) -> None:
    told = answer(url, "status")
    assert set(told) >= {"format", "epoch_s", "dry_run", "jobs", "bad_nodes", "waiting"} and told["format"] == 1
    (job,) = told["jobs"]
    old = json.loads(OF_0_1_0)
    assert set(job) >= set(old) and set(job["plan"]) >= set(old["plan"])
    kept = set(old) - {"plan", "step", "loss"}
    assert {k: job[k] for k in kept} == {k: old[k] for k in kept}
    explained = answer(url, "explain", "7")
    assert set(explained) == {"format", *EXPLAIN_KEYS} and explained["format"] == 1
    assert set(explained["story"][0]) == {"at_s", "state", "event", "detail"}


def test_explain_shows_what_the_gpus_do_and_what_holds_the_steps_up(url: str) -> None:
    speed = Achieved(step_s=2.5, predicted_step_s=1.0, uncertainty=0.05, tokens_per_s=1e5, mfu=0.16)
    row = {**json.loads(OF_0_1_0), "job_id": 7, "achieved": encode(speed)}
    activity = GpuActivity(gpus=8, samples=30, utilisation=0.4, power_w=290.0, run_utilisation=0.5)
    with open_store(url) as store:
        store.save_epoch(EpochRecord(1010.0, 0.1, False, (DECISION,), present=(row,)))
        store.put_reports([StoredReport(Report(7, 1, 44, step_s=2.5, gpu_activity=activity), 1010.0)])
    said = CliRunner().invoke(cli, ["--database", url, "explain", "7"]).output
    assert "  on a node 8 GPUs busy 40 % of the time, 290 W each\n" in said
    assert "warning: It waits for its data loader" in said and "model is wrong" not in said
    (diagnosis,) = answer(url, "explain", "7")["diagnoses"]
    assert diagnosis["code"] == "waits-for-data" and diagnosis["fields"]["idle_s"] == pytest.approx(1.5)
    with open_store(url) as store:
        store.put_lifecycles([StoredLifecycle(7, 0.0, "GONE", {}, 1020.0)])
    ended = CliRunner().invoke(cli, ["--database", url, "explain", "7"]).output
    assert "  on a node 8 GPUs busy 50 % of the time\n" in ended and "data loader" not in ended


def test_what_is_printed_reads_back_as_the_records(url: str) -> None:
    assert decode(StatusJson, answer(url, "status")).jobs[0].plan == Plan(dp=2)
    assert decode(ExplainJson, answer(url, "explain", "7")).decision == decision_json(DECISION)


def test_what_the_daemon_stores_is_what_status_reads(tmp_path: Path) -> None:
    job = Job(
        7, "run", "ann", 1000, "gpu", JobState.RUNNING, "", 0.0, 1.0, None, 1, Shape("a100", 1, 2), Shape("a100", 1, 2)
    )
    snapshot, report = Snapshot(5.0, Cluster(()), (job,)), Report(7, 1, 44, loss=1.25, plan=PLAN)
    (row,) = job_statuses(snapshot, (DECISION,), {7: JobLifecycle(7, 0.0)}, {7: report})
    with open_store(f"sqlite:///{tmp_path / 's.db'}", create=True) as store:
        store.save_epoch(EpochRecord(5.0, 0.1, False, (), present=(row,)))
        assert status.collect(store).jobs == (replace(row, action="waits"),)
    assert (row.plan, row.global_batch, row.wanted_gpus, row.step) == (PLAN, 8, 4, 44)


def test_a_field_of_several_records_is_described_once() -> None:
    page = json_reference()
    assert page.count("- `job_id` (integer): Slurm's job id\n") == 1
    assert "- [common](#common): `format`, `job_id`, `paused`\n" in page


def test_every_field_is_documented() -> None:
    rows = [line for line in json_reference().splitlines() if line.startswith("- `")]
    assert len(rows) > 90 and [row for row in rows if row.endswith(": ")] == []


def test_the_reference_has_a_row_for_every_key(url: str) -> None:
    page = json_reference()

    def keys(data: object) -> set[str]:
        if isinstance(data, dict):
            return set(data) | {k for v in data.values() for k in keys(v)}
        return {k for v in data for k in keys(v)} if isinstance(data, list) else set()

    used = keys(answer(url, "status")) | keys(answer(url, "explain", "7"))
    assert {"relative_goodput", "slowdown", "checkpoint_step"} <= used
    assert [key for key in sorted(used) if not re.search(rf"^- .*`{key}`", page, re.MULTILINE)] == []
    assert "- `epoch_s` (number?): start of the last epoch; null before the first one" in page
    assert "`epoch_s`" in page.partition(" are points in time, in seconds since 1970")[0]
    assert "- `jobs` ([JobStatus](#jobstatus)[]): by job id" in page and page.count("\n## JobStatus\n") == 1
    assert "- `action` (`keep`, `start`, `resize`, `wait`):" in page and "[string, number][]" in page
    headings = [line[3:].lower() for line in page.splitlines() if line.startswith("## ")]
    assert len(headings) == len(set(headings))
    linked = {part.partition(")")[0] for part in page.split("](#")[1:]}
    assert linked == set(headings) - {
        "statusjson",
        "explainjson",
        "usagejson",
        "jobusagejson",
        "wouldhavejson",
        "notice",
    }


def test_the_format_number_is_in_both(url: str) -> None:
    assert encode(StatusJson(epoch_s=None, dry_run=False)) == {
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
