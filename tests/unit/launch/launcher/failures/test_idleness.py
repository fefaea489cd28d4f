"""A run that does nothing, seen from outside."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from synergy_launch.launcher.failures.idleness import GpuUse, Idleness, read_cpu_times


def test_idle_is_told_in_strides_that_double_until_something_moves() -> None:
    used = {7: 1.0}
    idle = Idleness(0.0, 100.0, cpu=lambda: dict(used), gpu=lambda: None)
    assert idle.check(None, 15.0) is None  # what it used before the first look counts as now
    assert [idle.check(None, t) for t in (100.0, 116.0, 200.0, 233.0, 300.0)] == [None, 101.0, 101.0, 218.0, 218.0]
    used[7] += 10.0
    assert idle.check(None, 320.0) is None
    assert idle.check(None, 425.0) == 105.0
    assert idle.check((1, "training"), 430.0) is None  # a step


def test_a_gpu_that_works_is_not_idle() -> None:
    busy = [90.0]
    idle = Idleness(0.0, 100.0, cpu=dict, gpu=lambda: busy[0])
    assert [idle.check(None, float(t)) for t in range(0, 400, 20)] == [None] * 20
    busy[0] = 0.0
    assert [idle.check(None, float(t)) for t in range(400, 480, 20)] == [None] * 4
    assert idle.check(None, 500.0) is not None


def test_cpu_time_of_all_that_runs_below() -> None:
    script = (
        "import subprocess, sys, time\nsubprocess.Popen([sys.executable, '-c', 'while True: pass'])\ntime.sleep(60)"
    )
    child = subprocess.Popen([sys.executable, "-c", script], start_new_session=True)
    try:
        end = time.monotonic() + 20
        while sum(read_cpu_times(child.pid).values()) < 0.2 and time.monotonic() < end:
            time.sleep(0.05)
        below = read_cpu_times(child.pid)
        assert len(below) == 1 and sum(below.values()) >= 0.2
        assert child.pid not in below and child.pid in read_cpu_times(os.getpid())
    finally:
        os.killpg(child.pid, 9)
        child.wait()


AMD = """echo '{"card0": {"GPU use (%)": "3"}, "card1": {"GPU use (%)": "41", "GFX Activity": "7"}}'"""


@pytest.mark.parametrize(
    ("name", "says", "most"),
    [
        ("nvidia-smi", "echo 0; echo 37", 37.0),
        ("nvidia-smi", "echo no", None),
        ("nvidia-smi", "exit 3", None),
        ("rocm-smi", AMD, 41.0),
        ("rocm-smi", "echo '{}'", None),
    ],
)
def test_gpus_are_asked_about_beside_the_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, says: str, most: float | None
) -> None:
    tool = tmp_path / name
    tool.write_text(f"#!/bin/sh\n{says}\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    use = GpuUse()
    use.ask()
    thread = use._thread
    assert thread is not None
    thread.join(20)
    assert use.ask() == most
