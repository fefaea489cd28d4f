"""`synergyctl usage`: a month by account and user, one job's incarnations, and what is wrong on its command line."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from synergy_core.errors import UsageError
from synergy_core.usage import Usage

from synergyd.cli.synergyctl import cli
from synergyd.store.records import EpochRecord, StoredEvent
from synergyd.store.store import open_store
from synergyd.views.usage import present_month

EVIL = "x\x1b[31m\nrow"
BEGIN_S = present_month()[0]


def part(from_s: float, to_s: float, **changes: Any) -> Usage:
    told: dict[str, Any] = {
        "job_id": 7,
        "user": "mina",
        "account": "chem",
        "start_s": BEGIN_S + from_s,
        "gpus": 2,
        "asked_gpus": 2,
    }
    return Usage(**(told | {"from_s": BEGIN_S + from_s, "to_s": BEGIN_S + to_s} | changes))


@pytest.fixture
def url(tmp_path: Path) -> str:
    """A job of three runs: the second over a midnight, the third not done yet."""
    url = f"sqlite:///{tmp_path / 's.db'}"
    second: dict[str, Any] = {
        "gpus": 4, "nodes": "n[1-2]", "state": "REQUEUED", "start_s": BEGIN_S + 1100, "predicted_ratio": 1.8, "before_goodput": 10.0
    }  # fmt: skip
    with open_store(url, create=True) as store:
        store.put_usage(
            [
                part(100, 1000, nodes="n1", state="REQUEUED", waited_s=100.0, trained_s=900.0, useful_gpu_s=1800.0),
                part(1100, 2000, **second, waited_s=100.0, stopped_s=100.0, restart_s=40.0),
                part(
                    2000, 2900, **second, trained_s=900.0, useful_gpu_s=3060.0, measured_s=900.0, measured_work=15300.0
                ),
                part(3000, 3010, nodes="n3", waited_s=100.0, predicted_ratio=0.0, is_open=True),
                part(100, 200, job_id=8, user=EVIL, account=EVIL),
            ]
        )
        store.save_epoch(EpochRecord(BEGIN_S + 3600, 0.1, False, ()))
        store.append_events([StoredEvent(7, BEGIN_S, "RUNNING", "Named", "Slurm calls it 5_2")])
    return url


def ctl(url: str, *words: str) -> Result:
    return CliRunner().invoke(cli, ["--database", url, *words])


def test_all_runs_of_a_job_are_shown(url: str) -> None:
    told = json.loads(ctl(url, "usage", "7", "--json").output)
    runs = told["incarnations"]
    assert [(r["gpus"], r["nodes"], r["state"]) for r in runs] == [
        (2, ["n1"], "REQUEUED"), (4, ["n1", "n2"], "REQUEUED"), (2, ["n3"], "RUNNING")
    ]  # fmt: skip
    assert [(r["start_s"] - BEGIN_S, r["run_s"], r["waited_s"]) for r in runs] == [
        (100, 900, 100), (1100, 1800, 100), (3000, 600, 100)
    ]  # fmt: skip
    assert runs[1]["end_s"] == BEGIN_S + 2900 and runs[2]["end_s"] is None
    assert [(r["predicted"], r["measured"]) for r in runs] == [(None, None), (1.8, pytest.approx(1.7)), (None, None)]
    assert (told["run_s"], told["waited_s"], told["restarts"], told["restart_s"]) == (3300, 300, 2, 140)
    assert told["total"]["held_gpu_h"] * 3600 == pytest.approx(2 * 900 + 4 * 1800 + 2 * 600)
    assert (told["total"]["changes"], told["total"]["audited"]) == (2, 1)
    shown = ctl(url, "usage", "7").output
    assert (
        "mina in chem, asked for 2 GPUs" in shown
        and "n1, n2" in shown
        and "MEASURED" in shown
        and "1.80x" in shown
        and "2 restarts: 140 s" in shown
    )


def test_a_job_is_named_as_in_other_commands(url: str) -> None:
    assert json.loads(ctl(url, "usage", "5_2", "--json").output)["job_id"] == 7
    assert ctl(url, "usage", "five").exit_code == 2


def test_a_months_table_has_the_gain_and_the_audit(url: str) -> None:
    total = json.loads(ctl(url, "usage", "--json").output)["total"]
    assert total["gain"] == pytest.approx((900 + 1530) / (1800 + 140) - 1)
    shown = ctl(url, "usage").output
    assert "GAIN" in shown and f"{100 * total['gain']:+.1f} %" in shown and "SAVED" in shown
    assert "AUDIT: of 2 changes by Synergy 1 left out" in shown and "h as measured" in shown
    row = next(r for r in csv.DictReader(io.StringIO(ctl(url, "usage", "--csv").output)) if r["user"] == "mina")
    assert (row["changes"], row["gain"]) == ("2", f"{total['gain']:.4f}")


def test_report_is_another_name_of_it(url: str) -> None:
    for words in (["--json"], ["--csv", "--account", "chem"]):
        assert ctl(url, "report", *words).output == ctl(url, "usage", *words).output != ""


def test_nothing_of_a_strangers_reaches_the_terminal_as_it_is(url: str) -> None:
    for words in (["usage"], ["usage", "8"]):
        shown = ctl(url, *words).output
        assert "\\x1b" in shown and all(c.isprintable() or c == "\n" for c in shown) and "\nrow" not in shown


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (["99"], "job 99: has held no GPUs"),
        (["7", "--month", "2026-11"], "--month: job 7 is named too"),
        (["7", "--user", "mina"], "--user: job 7 is named too"),
        (["7", "--csv"], "--csv: job 7 is named too"),
        (["--csv", "--json"], "--csv: --json is given too"),
        (["--month", "2026-13"], "--month: '2026-13' is no month"),
    ],
)
def test_what_is_wrong_is_one_line(url: str, words: list[str], what: str) -> None:
    error = ctl(url, "usage", *words).exception
    assert isinstance(error, UsageError) and str(error).startswith(what)


def test_a_run_has_a_row_for_each_size_that_it_had(tmp_path: Path) -> None:
    """Nodes have joined it, left it again, and one of its own has left."""
    url = f"sqlite:///{tmp_path / 's.db'}"
    change: dict[str, Any] = {"changed_s": BEGIN_S + 340, "predicted_ratio": 1.9, "before_goodput": 10.0}
    trained: dict[str, Any] = {"trained_s": 260.0, "measured_s": 260.0, "measured_work": 260.0 * 18}
    with open_store(url, create=True) as store:
        store.put_usage(
            [
                part(100, 340, nodes="n[1-2]", waited_s=5.0, trained_s=240.0),
                part(340, 600, start_s=BEGIN_S + 100, nodes="n[1-2]", checkpoint_s=7.0, **change, **trained),
                part(600, 700, start_s=BEGIN_S + 100, nodes="n[1-2]", state="RESIZING", **change),
                part(700, 800, gpus=1, nodes="n1", state="COMPLETED", **change),
                part(300, 600, job_id=9, of_job=7, nodes="n3", gpus=2, state="CANCELLED"),
            ]
        )
        store.put_usage([part(50, 50)])  # one that takes no time is none
    usage = json.loads(ctl(url, "usage", "7", "--json").output)
    assert [(r["gpus"], r["nodes"], r["state"], r["run_s"]) for r in usage["incarnations"]] == [
        (2, ["n1", "n2"], "RESIZING", 200), (4, ["n1", "n2", "n3"], "RESIZING", 300),
        (2, ["n1", "n2"], "RESIZING", 100), (1, ["n1"], "COMPLETED", 100),
    ]  # fmt: skip
    assert [(r["predicted"], r["measured"]) for r in usage["incarnations"]][:2] == [
        (None, None),
        (1.9, pytest.approx(1.8)),
    ]
    assert (usage["restarts"], usage["waited_s"], usage["total"]["changes"], usage["total"]["audited"]) == (0, 5, 1, 1)
    assert usage["total"]["held_gpu_h"] * 3600 == pytest.approx(2 * 600 + 100 + 2 * 300)
    assert usage["total"]["change_h"] * 3600 == pytest.approx(7.0)
    assert json.loads(ctl(url, "usage", "--json").output)["total"] == usage["total"]
    error = ctl(url, "usage", "9").exception
    assert isinstance(error, UsageError) and str(error).startswith("job 9: has nodes of job 7")
