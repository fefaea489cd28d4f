"""Models that directives name: presets, and files of users who may not be trusted."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from synergyd.daemon import user_models
from synergyd.errors import UsageError
from tests.unit.daemon.daemon_world import SCRIPT, Site

CONFIG = {"model_type": "gpt2", "n_layer": 4, "n_embd": 64, "n_head": 4, "n_positions": 64, "vocab_size": 256}
ME = os.getuid()


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "tiny" / "config.json"
    path.parent.mkdir()
    path.write_text(json.dumps(CONFIG))
    return path


def test_presets_and_own_files(config: Path) -> None:
    assert user_models.load("gpt2", ME).layers == 12
    config.chmod(0o600)
    found = user_models.load(str(config), ME)
    assert (found.layers, found.hidden, found.name) == (4, 64, "tiny")


def test_anothers_file_must_be_readable_by_all(config: Path) -> None:
    config.chmod(0o640)
    with pytest.raises(UsageError, match="belongs to another user"):
        user_models.load(str(config), ME + 1)
    config.chmod(0o644)
    assert user_models.load(str(config), ME + 1).layers == 4


@pytest.mark.parametrize("trap", ["link", "pipe", "folder", "large", "missing", "no json", "deep"])
def test_traps_are_one_line_at_once(config: Path, trap: str) -> None:
    path = config.parent / "trap"
    if trap == "link":
        path.symlink_to(config)
    elif trap == "pipe":
        os.mkfifo(path)  # opening it would wait for a writer
    elif trap == "folder":
        path.mkdir()
    elif trap == "large":
        path.write_text(json.dumps(CONFIG) + " " * user_models.MAX_CONFIG_BYTES)
    elif trap == "no json":
        path.write_text("secret: {")
    elif trap == "deep":
        path.write_text("[" * 100_000)
    with pytest.raises(UsageError) as error:
        user_models.load(str(path), ME)
    assert str(path) in str(error.value) and "\n" not in str(error.value) and "secret:" not in str(error.value)


def test_a_file_that_its_user_corrects_is_read_at_the_next_epoch(tmp_path: Path) -> None:
    site = Site(tmp_path / "state")
    path = tmp_path / "config.json"
    site.slurm.submit(1, SCRIPT.replace("gpt2", str(path)), uid=ME)
    assert "can't be read" in site.epoch()[1].why
    path.write_text(json.dumps(CONFIG))
    assert site.epoch(60)[1].cell is not None
