"""The daemon's own entry: what it tells of its settings before it runs."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from click.testing import CliRunner

from synergyd.cli.synergyd import cli
from synergyd.daemon import service
from synergyd.settings import Settings


def test_a_removed_setting_is_one_line_of_the_log_and_the_daemon_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    started: list[Settings] = []

    def run(settings: Settings, **options: object) -> int:
        started.append(settings)
        return 0

    monkeypatch.setattr(service, "run", run)
    conf = tmp_path / "slurm.conf"
    conf.write_text("ClusterName=here\n#SYNERGY Epoch=7 MaxGrowth=2 Placement=dally\n")
    with caplog.at_level(logging.WARNING, "synergyd"):
        done = CliRunner().invoke(cli, ["--conf", str(conf), "--once"])
    assert (done.exit_code, [one.epoch_s for one in started]) == (0, [7.0])
    told = [record.getMessage().partition(": ")[2].partition(";")[0] for record in caplog.records]
    assert told == ["MaxGrowth has no effect any more", "Placement=dally has no effect any more"]
