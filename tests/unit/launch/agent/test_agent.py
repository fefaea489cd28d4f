"""The agent's status, its notes, and what ends a run."""

from __future__ import annotations

import errno
import json
import math
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from synergy_core.errors import UsageError
from synergy_core.records import ModelSpec
from synergy_launch.agent import run_folder
from synergy_launch.agent.step_timer import StepTimer

from tests.unit.launch.agent.agent_rig import Rig

ROOT = Path(__file__).parents[4]


def test_status_says_what_is_going_on(rig: Rig, tmp_path: Path) -> None:
    assert rig.status["state"] == "starting"
    spec = ModelSpec("m", 2, 8, 2, 2, 32, 256, 16)
    rig.start(resharding=True, model=spec)
    for number in range(1, 6):
        assert rig.step(number, seconds=float(10 if number <= 2 else number), tokens=7 * number, noise_scale=3.5)
    status = rig.status
    assert status["state"] == "training"
    assert (status["step"], status["tokens"], status["noise_scale"]) == (5, 35, 3.5)
    assert status["step_s"] == 4.0  # of 3, 4, 5: the first two are dropped
    assert status["plan"]["tp"] == 1 and status["model"]["layers"] == 2 and status["resharding"] is True
    log = [json.loads(line) for line in (tmp_path / "steps.jsonl").read_text().splitlines()]
    assert [entry["step"] for entry in log] == [1, 2, 3, 4, 5]
    assert set(log[0]) == {"step", "loss", "restarts", "tp", "pp", "dp", "global_batch", "time"}


def test_status_is_written_at_most_twice_a_second(rig: Rig) -> None:
    rig.start()
    rig.step(1, seconds=0.3)
    assert rig.status["step"] == 0
    rig.step(2, seconds=0.3)
    assert rig.status["step"] == 2


@pytest.mark.parametrize("value", [math.nan, math.inf, None])
def test_what_json_cannot_hold_becomes_null(rig: Rig, value: float | None) -> None:
    rig.start()
    rig.step(1, loss=value, noise_scale=value)
    assert rig.status["loss"] is None and rig.status["noise_scale"] is None


def test_failure_is_left_in_the_status(rig: Rig, capsys: pytest.CaptureFixture[str]) -> None:
    rig.start()
    with pytest.raises(ZeroDivisionError), rig.agent.watching():
        _ = 1 / 0
    assert rig.status["state"] == "failed" and "division by zero" in rig.status["note"]
    with pytest.raises(SystemExit) as end, rig.agent.watching():
        raise UsageError("here", "wrong", "this is right")
    assert end.value.code == 2
    assert capsys.readouterr().err.splitlines() == ["synergy: here: wrong; this is right"]


def test_a_full_disk_is_told_with_its_free_space_and_to_the_launcher(rig: Rig) -> None:
    rig.start()
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/proc/log")
    with pytest.raises(OSError, match="space"), rig.agent.watching():
        raise full
    assert rig.status["note"].endswith("'/proc/log'; /proc has 0.0 GiB free")
    assert run_folder.read_full_disk(rig.run_dir) == Path("/proc")


def test_a_failure_to_write_whose_file_nobody_names_is_that_of_the_checkpoints(rig: Rig) -> None:
    rig.start()
    with pytest.raises(RuntimeError), rig.agent.watching():
        raise RuntimeError("PytorchStreamWriter failed writing file data/0: file write failed")
    assert run_folder.read_full_disk(rig.run_dir) == rig.settings.checkpoint_dir
    with pytest.raises(SystemExit), rig.agent.watching():
        raise UsageError("here", "wrong", "this is right")
    assert "free" not in rig.status["note"]


def test_a_checkpoint_that_does_not_fit_is_told_with_the_free_space(rig: Rig) -> None:
    rig.start(checkpoint_interval=1)
    rig.save.fails, rig.save.error = True, OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))
    assert rig.step(1)
    assert re.search(r"Disk quota exceeded; .*/checkpoints has [\d.]+ GiB free$", rig.status["note"])
    assert run_folder.read_full_disk(rig.run_dir) is None, "training goes on"


def test_lost_peers_while_stopping_are_no_traceback(rig: Rig) -> None:
    rig.start()
    rig.agent._on_term(15, None)
    with pytest.raises(SystemExit), rig.agent.watching():
        raise RuntimeError("Connection closed by peer")
    assert "stopped by SIGTERM" in rig.status["note"]


def test_step_timer_takes_the_median_of_the_recent() -> None:
    timer = StepTimer(window=3)
    assert timer.median_s is None
    for seconds in (50.0, 40.0, 9.0, 1.0, 2.0, 30.0):
        timer.add(seconds)
    assert timer.median_s == 2.0


def test_the_agent_needs_neither_torch_nor_the_server() -> None:
    code = "import sys, synergy_launch.agent.agent; print([m for m in sys.modules if m in ('torch', 'numpy', 'sqlalchemy')])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.strip() == "[]"


def test_a_library_that_saves_by_itself_is_told_to_in_between(rig: Rig) -> None:
    """`look` says that a checkpoint is wanted; it is acknowledged by `act` alone, and what it took is counted."""
    rig.start()
    boundary = rig.agent.look(1, loss=1.0)
    assert not boundary.save and rig.agent.act(boundary)
    rig.request(1)
    rig.clock.now += 1.0
    boundary = rig.agent.look(2, loss=1.0)
    assert boundary.save and rig.save.saved == 0 and rig.status["checkpoint_requests"] == 0
    rig.clock.now += 7.0
    assert rig.agent.act(boundary, 7.0)
    assert rig.save.saved == 1 and rig.status["checkpoint_requests"] == 1
    assert rig.agent.checkpointer.schedule.save_s == pytest.approx(7.0)
    rig.agent._stop = True
    boundary = rig.agent.look(3, loss=1.0)
    assert boundary.stop and boundary.save and not rig.agent.act(boundary)
    assert rig.status["checkpoint_step"] == 3


def test_a_library_is_not_told_to_save_where_the_grace_is_too_short(tmp_path: Path) -> None:
    rig = Rig(tmp_path, grace_s=5.0)
    rig.start()
    rig.agent.checkpointer.schedule.save_s = 4.5
    rig.agent._stop = True
    boundary = rig.agent.look(1, loss=1.0)
    assert boundary.stop and not boundary.save and not rig.agent.act(boundary)
    assert rig.save.saved == 0
