"""The check of a node: what its child measures, and what becomes of one that hangs, crashes or lies."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from synergy_core.wire.node_check import MAX_CHECKS, harmless_checks, read_check
from synergy_core.wire.report import from_json, status_to_report, to_json
from synergy_launch.node_check.adapters import read_network_rate
from synergy_launch.node_check.check import check_node, parse_output

LONG_S = 60.0  # what a busy machine may need


def child(text: str) -> tuple[str, ...]:
    return sys.executable, "-c", text


def test_a_machine_without_gpus_is_measured_by_its_cpus() -> None:
    check = check_node("n1", os.environ, ready_s=LONG_S, measuring_s=LONG_S)
    assert check is not None
    assert (check.node, check.gpus, check.device, check.hung_at) == ("n1", 0, "", "")
    assert check.cpus == len(os.sched_getaffinity(0))
    measured = check.figures()
    assert (
        {"gemm_flops", "host_bytes_per_s"}
        <= measured.keys()
        <= {"gemm_flops", "host_bytes_per_s", "network_bits_per_s"}
    )
    assert 1e8 < measured["gemm_flops"] < 1e15 and 1e7 < measured["host_bytes_per_s"] < 1e13


def test_a_child_that_hangs_in_a_measurement_is_killed_and_what_it_measured_stays(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    text = (
        f"import json, os, pathlib, time\npathlib.Path({str(pid)!r}).write_text(str(os.getpid()))\n"
        "for said in ({'ready': True, 'gpus': 8}, {'begins': 'nvlinks'}, {'nvlinks': 18}, {'begins': 'gemm_flops'}):\n"
        "    print(json.dumps(said), flush=True)\n"
        "time.sleep(3600)"
    )
    check = check_node("n1", os.environ, command=child(text), ready_s=LONG_S, measuring_s=0.3)
    assert check is not None and (check.hung_at, check.nvlinks, check.gpus) == ("gemm_flops", 18.0, 8)
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid.read_text()), 0)


def test_imports_that_take_too_long_say_nothing_of_the_node() -> None:
    assert check_node("n1", os.environ, command=child("import time; time.sleep(3600)"), ready_s=0.3) is None


@pytest.mark.parametrize(
    "text", ["raise SystemExit(1)", "print('nonsense')", "import os; os.abort()", "print('{' * 100_000)"]
)
def test_a_child_that_crashes_or_says_nonsense_measures_nothing(text: str) -> None:
    assert check_node("n1", os.environ, command=child(text), ready_s=LONG_S) is None


def test_a_python_that_is_not_there_measures_nothing() -> None:
    assert check_node("n1", os.environ, command=("/no/such/python",)) is None


def test_a_job_that_is_to_end_gives_the_check_up() -> None:
    polls: list[float] = []
    waits = child("import time; time.sleep(3600)")
    check = check_node(
        "n1", os.environ, command=waits, is_ending=lambda: len(polls) > 2, poll=lambda: polls.append(time.monotonic())
    )
    assert check is None and len(polls) == 3


def test_a_child_whose_launcher_is_gone_ends_by_itself() -> None:
    text = "import synergy_launch.node_check.__main__ as m\nm.LIFE_S = 1\nm._measure = lambda *_: m.time.sleep(3600)\nm.main()"
    done = subprocess.run(child(text), capture_output=True, timeout=2 * LONG_S, check=False)
    assert done.returncode == -14  # SIGALRM


def test_output_out_of_bounds_or_of_wrong_types_is_no_check() -> None:
    for said in (
        b'{"gemm_flops": -1}',
        b'{"gemm_flops": "1e12"}',
        b'{"gemm_flops": NaN}',
        b'{"nvlinks": 1e30}',
        b"[1]",
        b"{}",
    ):
        assert parse_output(said + b"\n", "n1", 1.0) is None
    assert parse_output(b'{"gemm_flops": 1e12}\n{"host_byt', "n1", 1.0) is not None


def test_adapters_that_are_up_count_infinibands_first(tmp_path: Path) -> None:
    assert read_network_rate(tmp_path) is None

    def adapter(name: str, speed: str, state: str = "up", device: bool = True) -> None:
        folder = tmp_path / "net" / name
        (folder / "device" if device else folder).mkdir(parents=True)
        (folder / "speed").write_text(f"{speed}\n")
        (folder / "operstate").write_text(f"{state}\n")

    adapter("eth0", "25000")
    adapter("eth1", "-1", "down")
    adapter("docker0", "10000", device=False)
    (tmp_path / "net" / "lo").mkdir()
    assert read_network_rate(tmp_path) == 25e9
    for name, state, rate in (
        ("mlx5_0", "4: ACTIVE", "400 Gb/sec (4X NDR)"),
        ("mlx5_1", "1: DOWN", "400 Gb/sec (4X NDR)"),
    ):
        port = tmp_path / "infiniband" / name / "ports" / "1"
        port.mkdir(parents=True)
        (port / "state").write_text(f"{state}\n")
        (port / "rate").write_text(f"{rate}\n")
    assert read_network_rate(tmp_path) == 400e9


def test_a_report_carries_a_bounded_number_of_checks_and_drops_those_that_make_no_sense() -> None:
    good = read_check({"node": "n1", "taken_s": 1.0, "gemm_flops": 1e12, "device": "H100\x1b[2J"})
    assert good is not None and "\x1b" not in good.device
    report = from_json(to_json(status_to_report({}, 1, 0, node_checks=(good,))))
    assert report.node_checks == (good,)
    for wrong in (
        {"node": "n 1"},
        {"node": "n1", "cpus": 0},
        {"node": "n1", "hung_at": "x"},
        {"node": "n1", "gemm_flops": -1},
    ):
        assert read_check({"taken_s": 1.0, **wrong}) is None
    assert len(harmless_checks((good,) * 100)) == MAX_CHECKS
