"""`synergyctl usage --would-have`, the headline of `status`, and what is wrong on their command lines."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from synergy_core.errors import UsageError
from synergy_core.usage import Usage
from synergy_core.would_have import WouldHave

from synergyd.cli.synergyctl import cli
from synergyd.store.records import EpochRecord
from synergyd.store.store import open_store
from tests.unit.cli.test_usage import BEGIN_S, EVIL

PLAIN = WouldHave(
    job_id=7, submit_s=BEGIN_S, name=EVIL, user="mina", account="chem", asked_gpus=8, has_line=False, from_s=BEGIN_S,
    to_s=BEGIN_S + 7200, wanted_gpus=16, ran_s=7200.0, useful_s=10800.0, sigma_s=1800.0, changes=1,
)  # fmt: skip
LINED = replace(
    PLAIN,
    job_id=8,
    user="joao",
    name="lined",
    has_line=True,
    useful_s=7200.0,
    sigma_s=0.0,
    waited_s=3600.0,
    sooner_s=1800.0,
)


@pytest.fixture
def url(tmp_path: Path) -> str:
    url = f"sqlite:///{tmp_path / 's.db'}"
    with open_store(url, create=True) as store:
        store.put_would_have([PLAIN, LINED, replace(PLAIN, job_id=9, from_s=1.0, to_s=2.0)])  # the last of long ago
        store.save_epoch(EpochRecord(BEGIN_S, 0.1, True, (), {"plain_jobs": 1, "plain_held_gpus": 8}))
    return url


def ctl(url: str, *words: str) -> Result:
    return CliRunner().invoke(cli, ["--database", url, *words], env={"COLUMNS": "160"})


def test_it_shows_each_job_with_its_uncertainty_and_the_sums(url: str) -> None:
    shown = ctl(url, "usage", "--would-have").output
    assert "\x1b[31m" not in shown and r"\x1b[31m\nrow" in shown
    lines = [" ".join(line.split()) for line in shown.splitlines()]
    assert any(
        line.startswith("7 ") and line.endswith("mina no 8 16 2.0 +1.0 ± 0.5 +50.0 % ± 25.0 0.0 1") for line in lines
    )
    assert "8 lined joao yes 8 16 2.0 +0.0 ± 0.0 +0.0 % ± 0.0 0.5 1" in lines
    assert "1 job with a line: gain +0.0 % ± 0.0, +0.0 ± 0.0 h saved" in lines
    assert not any(line.startswith("9 ") for line in lines)


def test_json_filters_and_the_headline(url: str) -> None:
    data = json.loads(ctl(url, "usage", "--would-have", "--user", "joao", "--json").output)
    assert [job["job_id"] for job in data["jobs"]] == [8] and data["total"]["gain"] == 0.0
    whole = json.loads(ctl(url, "usage", "--would-have", "--json").output)
    assert whole["total"]["gain"] == 0.25 and whole["plain"]["gain"] == 0.5
    status = " ".join(ctl(url, "status").output.split())
    assert "gain this month, had it acted: +25.0 % ± 12.5, +1.00 job hours saved" in status
    with open_store(url) as store:
        known = Usage(
            job_id=1, user="mina", account="chem", start_s=BEGIN_S, from_s=BEGIN_S, to_s=BEGIN_S + 3600, gpus=4, asked_gpus=2,
            trained_s=3600.0, useful_gpu_s=10800.0,
        )  # fmt: skip
        store.put_usage([known])
    # what was really gained is the headline, wherever that is known
    assert "gain this month: +50.0 % ± 0.0, +0.50 job hours saved" in " ".join(ctl(url, "status").output.split())
    assert "+50.0 % ± 0.0" in ctl(url, "usage").output


def test_without_a_dry_run_it_says_what_is_needed(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 's.db'}"
    open_store(url, create=True).close()
    assert "it needs DryRun=yes" in ctl(url, "usage", "--would-have").output


@pytest.mark.parametrize(
    ("words", "where"),
    [
        (("usage", "--would-have", "--csv"), "--csv"),
        (("usage", "--would-have", "7"), "--would-have"),
        (("status", "--sort", "colour"), "--sort"),
        (("status", "--me", "-u", "ann"), "--me"),
    ],
)
def test_what_contradicts_itself(url: str, words: tuple[str, ...], where: str) -> None:
    error = ctl(url, *words).exception
    assert isinstance(error, UsageError) and error.where == where
