"""What the journal and the metrics say of a daemon that is well."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from synergy_core.usage import Totals, Usage

from synergyd import __version__
from synergyd.daemon.journal import LINE_S, Journal, start_message
from synergyd.daemon.metrics import PrometheusMetrics
from synergyd.daemon.usage_keeper import UsageKeeper
from synergyd.settings import SETTINGS, Settings
from synergyd.store.store import open_store
from tests.unit.daemon.daemon_world import Site

PLAIN = "#!/bin/bash\nsrun python train.py\n"


def test_the_start_names_version_mode_and_what_differs_and_no_password() -> None:
    settings = Settings(
        dry_run=True, epoch_s=300.0, database="postgresql+psycopg://u:geheim@h/db", notice_url="https://h/token"
    )
    line = start_message(settings, "command line (no pyslurm)")
    assert line.startswith(
        f"synergyd {__version__}: dry run, no job is touched; reads through command line (no pyslurm); "
    )
    assert {"Epoch=300s", "DryRun=yes", "Database=(set)", "NoticeUrl=(set)"} <= set(
        line.replace("; ", ", ").split(", ")
    )
    assert "geheim" not in line and "token" not in line and f"{len(SETTINGS) - 4} settings at their defaults" in line
    assert "acts on jobs" in start_message(Settings(), "pyslurm")


def test_one_line_an_hour(tmp_path: Path) -> None:
    site = Site(tmp_path / "state", dry_run=True)
    site.slurm.submit(1)
    site.slurm.runs(1, "n1")
    site.slurm.submit(2, PLAIN, tres_per_node="gres:gpu:3")
    site.slurm.runs(2, "n2")
    journal, lines = Journal(0.0), []
    for minute in range(121):
        site.slurm.now_s += 60
        lines.append(journal.note_epoch(site.daemon.epoch(), site.daemon, 60.0 * minute))
        if minute == 30:
            journal.note_failure()
    said = [line for line in lines if line]
    assert len(said) == 2 and lines[int(LINE_S / 60)] == said[0]
    assert (
        said[0].startswith("in 60 min: 61 epochs (longest ") and ", 1 failed; " in said[0] and ", 0 failed; " in said[1]
    )
    assert said[0].endswith("decided (dry run); now 1 jobs with a #SYNERGY line hold 2 GPUs, 1 plain ones 3")


def shown(site: Site) -> str:
    metrics = PrometheusMetrics(0)
    metrics.epoch(site.daemon.epoch(), site.daemon)
    return metrics._page(b"GET / HTTP/1.1\r\n\r\n", "").decode()


def test_metrics_of_a_dry_run(tmp_path: Path) -> None:
    site = Site(tmp_path / "state", dry_run=True, restart_cost_s=1.0)
    site.slurm.submit(2, PLAIN, tres_per_node="gres:gpu:2")
    site.slurm.runs(2, "n2")
    site.slurm.now_s = 1.8e9  # this month's gain is asked for by the machine's clock
    for _ in range(12):
        site.epoch(60)
    with site.store() as store:
        (row,) = store.would_have(0.0)
        store.put_would_have([replace(row, to_s=4e9)])
    site.slurm.now_s += 700
    page = shown(site)
    assert f'synergy_info{{mode="dry-run",version="{__version__}"}} 1.0' in page
    assert "synergy_plain_jobs 1.0" in page and "synergy_plain_job_gpus 2.0" in page
    (gain,) = [line for line in page.splitlines() if line.startswith('synergy_gain_ratio{mode="dry-run"} ')]
    assert float(gain.split()[-1]) == pytest.approx(row.saved_s / row.ran_s)


def test_metrics_of_a_daemon_that_acts_have_the_headline_number(tmp_path: Path) -> None:
    site, month = (
        Site(tmp_path / "state"),
        Totals(jobs=1, gain=0.11, gain_sigma=0.02, predicted_h=3.0, measured_h=2.5, prediction_error=0.1),
    )
    keeper = UsageKeeper(lambda: open_store(site.url), lambda _from, _to: (), 1e9, lambda: 0.0)
    keeper.month = month
    try:
        site.daemon.dependencies = replace(site.daemon.dependencies, usage=keeper)
        page = shown(site)
    finally:
        keeper.close()
    assert 'synergy_gain_ratio{mode="acts"} 0.11' in page and 'synergy_gain_sigma_ratio{mode="acts"} 0.02' in page
    assert (
        'synergy_gain_seconds{basis="predicted"} 10800.0' in page
        and 'synergy_gain_seconds{basis="measured"} 9000.0' in page
    )


def test_the_keeper_sums_the_present_month(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("synergyd.daemon.usage_keeper.present_month", lambda: (1000.0, 9000.0))
    url = f"sqlite:///{tmp_path}/s.db"
    known = Usage(
        job_id=1, user="mina", account="chem", start_s=0.0, from_s=0.0, to_s=3000.0, gpus=4, asked_gpus=2, trained_s=3000.0,
        useful_gpu_s=9000.0,
    )  # fmt: skip
    with open_store(url, create=True) as store:
        store.put_usage([known, replace(known, job_id=2, from_s=-500.0, start_s=-500.0, to_s=900.0)])
    keeper = UsageKeeper(lambda: open_store(url), lambda _from, _to: (), 1e9, lambda: 9000.0)
    keeper.see(9000.0, (), None)
    keeper.close()
    assert keeper.month is not None and keeper.month.jobs == 1
    assert keeper.month.gain == pytest.approx(0.5) and keeper.month.held_gpu_h == pytest.approx(2000 * 4 / 3600)
