"""Models that directives name: presets, and files of users who may not be trusted."""

from __future__ import annotations

import json
import os
import tempfile
import threading
import time
import traceback
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from synergy_core.errors import UsageError
from synergy_core.records import Cluster, Directive, Job, JobState, ModelSpec, Node, Profile, Shape

from synergyd.daemon import user_models
from synergyd.daemon.forecast import Forecast
from synergyd.settings import Settings
from tests.unit.daemon.daemon_world import SCRIPT, Site

CONFIG = {"model_type": "gpt2", "n_layer": 4, "n_embd": 64, "n_head": 4, "n_positions": 64, "vocab_size": 256}
ME = os.getuid()


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that everybody may look into, which pytest's own are not."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


@pytest.fixture
def config(open_folder: Path) -> Path:
    path = open_folder / "tiny" / "config.json"
    path.parent.mkdir(mode=0o755)
    path.write_text(json.dumps(CONFIG))
    path.chmod(0o644)
    return path


def test_presets_and_own_files(config: Path) -> None:
    assert user_models.load("gpt2", ME).layers == 12
    config.chmod(0o600)
    found = user_models.load(str(config), ME)
    assert (found.layers, found.hidden, found.name) == (4, 64, "tiny")


def test_anothers_file_must_be_readable_by_all(config: Path) -> None:
    config.chmod(0o640)
    with pytest.raises(UsageError, match="can't be read as the job's user"):
        user_models.load(str(config), ME + 1)
    config.chmod(0o644)
    assert user_models.load(str(config), ME + 1).layers == 4


TRAPS = ["link", "pipe", "folder", "large", "missing", "no json", "deep", "empty", "unread", "number", "zero", "file/x"]


@pytest.mark.parametrize("trap", TRAPS)
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
    elif trap == "empty":
        path.touch()
    elif trap == "unread":
        path = Path("/sys/class/net/lo/speed")  # a regular file of 4096 bytes whose read() fails
    elif trap == "number":
        path.write_text(json.dumps(CONFIG | {"n_layer": 10**400, "n_embd": 1e308}))
    elif trap == "zero":
        path = Path("/dev/zero")
    elif trap == "file/x":
        path = config / "x"
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


def message(name: str, uid: int) -> str:
    with pytest.raises(UsageError) as error:
        user_models.load(name, uid)
    return str(error.value).replace(name, "")


def test_what_is_not_there_and_what_is_hidden_read_the_same(config: Path) -> None:
    config.parent.chmod(0o700)
    other = ME + 1
    hidden, missing = message(str(config), other), message(str(config.with_name("missing.json")), other)
    assert hidden == missing
    config.write_text("no json")
    assert message(str(config), other) == missing
    assert message("/sys/class/net/lo/speed", ME) == missing
    assert user_models.load("gpt2", other).layers == 12


def test_links_among_the_folders_are_followed_and_checked(config: Path, tmp_path: Path) -> None:
    (tmp_path / "way").symlink_to(config.parent)
    (tmp_path / "near").symlink_to("way/../tiny")
    (tmp_path / "circle").symlink_to("circle")
    for way in ("way", "near"):
        assert user_models.load(str(tmp_path / way / "config.json"), ME).layers == 4
    assert "can't be read" in message(str(tmp_path / "circle" / "config.json"), ME)


def test_a_bare_name_is_never_a_file(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(config.parent)
    assert "is no preset" in message("config.json", ME)
    assert "can't be read" in message("./config.json", ME)


def test_the_group_decides_where_it_must(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config.chmod(0o640)
    members = {(ME + 1, config.stat().st_gid)}
    monkeypatch.setattr(user_models, "_in_group", lambda uid, gid: (uid, gid) in members)
    assert user_models.load(str(config), ME + 1).layers == 4
    assert "can't be read" in message(str(config), ME + 2)
    config.chmod(0o604)  # as the kernel has it: a member of the group is not one of the others
    assert "can't be read" in message(str(config), ME + 1)


def test_a_file_that_does_not_answer_is_waited_for_once(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    release, reads = threading.Event(), 0

    def read(_name: str, _uid: int, _known: object) -> tuple[bytes, user_models.Identity]:
        nonlocal reads
        reads += 1
        release.wait(30)
        return b"", (0, 0, 0, 0)

    monkeypatch.setattr(user_models, "_read", read)
    monkeypatch.setattr(user_models, "READ_S", 0.5)
    monkeypatch.setattr(user_models, "_slow_until_s", {})
    began = time.monotonic()
    for _ in range(50):
        assert "can't be read" in message(str(config), ME)
    assert reads == 1 and time.monotonic() - began < 15.0
    release.set()


def test_an_unreadable_model_costs_its_own_job_alone(tmp_path: Path) -> None:
    site = Site(tmp_path / "state")
    site.slurm.submit(1, SCRIPT.replace("gpt2", "/sys/class/net/lo/speed"), uid=ME)
    site.slurm.submit(2, SCRIPT, uid=ME)
    decisions = site.epoch()
    assert "can't be read" in decisions[1].why and decisions[2].cell is not None


class Parses:
    """Counts them; each takes `takes_s` of the clock that it is."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, takes_s: float = 0.0) -> None:
        self.names: list[str] = []
        self.now_s = 0.0
        real = user_models.parse_config

        def counted(name: str, data: bytes) -> ModelSpec:
            self.names.append(name)
            self.now_s += takes_s
            return real(name, data)

        monkeypatch.setattr(user_models, "parse_config", counted)

    def __call__(self) -> float:
        return self.now_s


def refusals(models: user_models.UserModels, names: Iterable[str], uid: int = ME) -> list[str]:
    said = []
    for name in names:
        try:
            models.load_cached(name, uid)
        except UsageError as error:
            said.append(error.what)
    return said


def test_what_is_no_config_is_parsed_once_until_it_changes(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parses = Parses(monkeypatch)
    models = user_models.UserModels(parses)
    config.write_text("[" * 1000)
    for _ in range(20):
        models.begin()
        assert refusals(models, [str(config)] * 300) == ["is not JSON"] * 300
    assert len(parses.names) == 1
    config.write_text("{}")
    models.begin()
    assert refusals(models, [str(config)]) != ["is not JSON"] and len(parses.names) == 2
    config.write_text(json.dumps(CONFIG))
    assert len(refusals(models, [str(config)])) == 1  # looked at once an epoch
    models.begin()
    assert models.load_cached(str(config), ME).layers == 4


def test_files_of_one_user_take_no_more_than_their_time_in_an_epoch(
    config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parses = Parses(monkeypatch, takes_s=user_models.BUDGET_S / 3.9)
    models = user_models.UserModels(parses)
    bad = [config.with_name(f"{n}.json") for n in range(12)]
    for path in bad:
        path.write_text("no")
        path.chmod(0o644)
    names = [str(path) for path in bad]
    for epoch in (1, 2, 3):
        models.begin()
        said = refusals(models, names)
        assert len(parses.names) == 4 * epoch and len(said) == len(names)
        assert models.load_cached(str(config), ME + epoch).layers == 4  # another user's time is not touched
        del parses.names[-1]
    assert said == ["is not JSON"] * len(names)
    models.begin()
    assert refusals(models, names) == said and len(parses.names) == 12


def test_a_queue_of_jobs_with_a_bad_file_costs_an_epoch_one_parse(
    config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parses = Parses(monkeypatch)
    config.write_text("[1, 2")
    shape = Shape("a100", 1, 4)
    cluster = Cluster((Node(name="n1", gpu_type="a100", gpus=4, up=True),))
    jobs = [
        Job(i, "train", "me", ME, "main", JobState.PENDING, "", 0.0, None, None, 0, shape, shape, directive=Directive(model=str(config)))
        for i in range(1, 301)
    ]  # fmt: skip
    forecast = Forecast(Settings())
    for _ in range(3):
        forecast.begin_epoch()
        assert {forecast.cells(job, Profile(), None, cluster).why_none for job in jobs} == {
            f"model {config}: is not JSON; give a Hugging Face config.json"
        }
    assert len(parses.names) == 1


def test_a_refusal_that_is_told_again_and_again_keeps_no_frames(config: Path) -> None:
    models = user_models.UserModels(lambda: 0.0)
    config.write_text("no")
    depths = []
    for _ in range(20):
        models.begin()
        for _ in range(2):
            try:
                models.load_cached(str(config), ME)
            except UsageError as error:
                depths.append(len(list(traceback.walk_tb(error.__traceback__))))
    assert max(depths) < 10
