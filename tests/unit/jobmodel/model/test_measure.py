"""Measured points to hardware figures and back, the file of figures, and `profiles measure` itself on tiny sizes."""

import json
import sys
import time
import tomllib
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from synergy_core.errors import UsageError

from synergyd.cli import measure as command
from synergyd.jobmodel.model import measure
from synergyd.jobmodel.model.figures_file import read_figures, write_figures
from synergyd.jobmodel.model.hardware import figures
from synergyd.jobmodel.model.measure import (
    AllReduceTimings,
    DeviceMeasurement,
    Timing,
    conf_line,
    derive_figures,
    line,
    time_call,
)
from synergyd.slurm.directives.conf import load_settings


def made(start: float, rate: float, amounts: tuple[float, ...] = (1e9, 1e10, 1e12)) -> tuple[Timing, ...]:
    return tuple(Timing(a, start + a / rate) for a in amounts)


def test_a_line_is_found_again() -> None:
    start, rate = line(made(2e-5, 7e14))
    assert (start, rate) == pytest.approx((2e-5, 7e14))
    # noise may put it below zero, where no time can start
    start, rate = line([Timing(1.0, 0.9), Timing(10.0, 10.0)])
    assert start == 0.0 and rate == pytest.approx(1.0, rel=0.1)


@pytest.mark.parametrize(
    ("points", "says"),
    [
        ([], "0 usable points"),
        ([Timing(1, 1)], "1 usable points"),
        ([Timing(1, 1), Timing(1, 2)], "different sizes"),
        ([Timing(1, 0), Timing(2, 1)], "usable points"),
    ],
)
def test_too_little_is_one_line(points: list[Timing], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        line(points)


def test_figures_of_a_known_type_are_efficiencies(tmp_path: Path) -> None:
    n, rate, latency = 8, 300e9, 1.5e-5
    ring = tuple(Timing(b, 2 * (b * (n - 1) / n / rate + latency * (1 + np.log2(n)) / 2)) for b in (1e4, 1e6, 1e9))
    found, remarks = derive_figures(
        DeviceMeasurement(
            device="NVIDIA H100 80GB HBM3",
            dtype="bf16",
            gemm=made(6e-6, 700e12),
            gemm_fp32=made(6e-6, 350e12),
            gemm_fp8=made(6e-6, 1120e12),
            attention=made(6e-6, 490e12),
            copy=made(3e-6, 2.9e12),
            memory_bytes=80 * 2**30,
            collectives=(AllReduceTimings(n, n, ring),),
        ),
        "h100",
    )
    assert found == {
        "gemm_efficiency": pytest.approx(700 / 989),
        "kernel_s": pytest.approx(6e-6),
        "fp32_speed": pytest.approx(0.5),
        "fp8_speedup": pytest.approx(1.6),
        "attention_efficiency": pytest.approx(0.7),
        "bandwidth_efficiency": pytest.approx(2900 / 3350),
        "memory_gib": 80,
        "intra_gbs": pytest.approx(300 / 0.75),
        "intra_latency_s": pytest.approx(latency),
    }
    assert remarks.keys() == found.keys()
    gpu = figures("h100", {"h100": found})
    assert gpu.peak_tflops * gpu.gemm_efficiency == pytest.approx(700)
    assert gpu.intra_gbs * gpu.link_efficiency == pytest.approx(300)
    # slurm.conf takes the five main figures only: the same rates with the built-in efficiencies
    (tmp_path / "slurm.conf").write_text(conf_line("h100", found) + "\n")
    loaded = load_settings(tmp_path / "slurm.conf")
    assert loaded.problems == ()
    main = loaded.settings.gpu_figures["h100"]
    assert main.keys() == {"peak_tflops", "memory_gib", "bandwidth_gbs", "intra_gbs"}
    plain = figures("h100", {"h100": main})
    assert plain.peak_tflops * plain.gemm_efficiency == pytest.approx(700, rel=1e-3)
    assert plain.bandwidth_gbs * plain.bandwidth_efficiency == pytest.approx(2900, rel=1e-3)


def test_figures_of_an_unknown_type_and_between_nodes() -> None:
    over = tuple(Timing(b, 2 * (b * 15 / 16 / 80e9 + 3e-5 * 5 / 2)) for b in (1e4, 1e6, 1e9))
    found, _ = derive_figures(
        DeviceMeasurement(
            device="x", dtype="bf16", gemm=made(1e-5, 80e12), collectives=(AllReduceTimings(16, 8, over),)
        ),
        "x1",
    )
    known = figures("x1", {"x1": found})
    assert known.peak_tflops * known.gemm_efficiency == pytest.approx(80)
    assert known.inter_gbs * 8**known.rail_use * known.inter_efficiency == pytest.approx(80)
    assert known.inter_latency_s == pytest.approx(3e-5)


def test_the_file_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "f.toml"
    path.write_text(
        write_figures('odd "type"', {"peak_tflops": 123456.0, "kernel_s": 2e-7}, {"kernel_s": "why"}, "a\n\nb")
    )
    assert read_figures(path) == {'odd "type"': {"peak_tflops": 123500.0, "kernel_s": 2e-7}}
    assert "# why\nkernel_s" in path.read_text()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[", "not TOML"),
        ("a = 1", "a is no table"),
        ("", "it names no GPU type"),
        ("#SYNERGY GpuType=a100 peak_tflops=312", "it names no GPU type"),
        ("[a]\nspeed = 1", "no figure is called 'speed'"),
        ("[a]\npeak_tflops = 'x'", "it must be a finite number"),
        ("[a]\npeak_tflops = nan", "it must be a finite number"),
        ("\xff", "not TOML"),
    ],
)
def test_a_bad_file_is_one_line(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "f.toml"
    path.write_text(text, encoding="latin-1")
    with pytest.raises(UsageError, match=says) as error:
        read_figures(path)
    assert str(path) in str(error.value) and "\n" not in str(error.value)
    with pytest.raises(UsageError, match="cannot be read"):
        read_figures(tmp_path / "none.toml")


def test_timing_counts_calls_of_a_clock_that_only_they_move() -> None:
    now = 0.0

    def call() -> None:
        nonlocal now
        now += 0.003

    assert time_call(call, lambda: None, lambda: now) == pytest.approx(0.003)


def test_small_measurements_on_this_machine() -> None:
    torch = pytest.importorskip("torch")
    points = measure.gemms(torch, "cpu", torch.float32, (16, 32), time.perf_counter)
    assert [p.amount for p in points] == [2 * 16**3, 2 * 32**3] and all(0 < p.seconds < 1 for p in points)
    copied = measure.copies(torch, "cpu", (1 << 12,), time.perf_counter)
    assert copied[0].amount == 1 << 13 and 0 < copied[0].seconds < 1


def small(torch: object, device: object, clock: object) -> DeviceMeasurement:
    return DeviceMeasurement(device="CPU", dtype="fp32", gemm=made(1e-6, 5e10), copy=made(1e-6, 8e9))


def test_the_command_writes_a_file_that_plan_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    monkeypatch.setattr(command, "one_device", small)
    out = tmp_path / "cpu.toml"
    result = CliRunner().invoke(command.measure, ["--device", "cpu", "--ranks", "1", "--out", str(out)])
    assert result.exit_code == 0, result.output
    assert tomllib.loads(out.read_text()) == read_figures(out)
    gpu = figures("cpu", read_figures(out))
    assert gpu.peak_tflops * gpu.gemm_efficiency == pytest.approx(0.05, rel=1e-3)
    assert "#SYNERGY GpuType=cpu peak_tflops=" in out.read_text()
    shown = CliRunner().invoke(command.measure, ["--device", "cpu", "--ranks", "1", "--json", "--gpu-type", "core"])
    assert json.loads(shown.output)["gpu_type"] == "core"
    # written at once: nothing else is left in the folder
    assert [path.name for path in tmp_path.iterdir()] == ["cpu.toml"]


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["--device", "cuda"], "torch sees no GPU"),
        (["--device", "cpu", "--ranks", "1", "--out", "/nowhere/x"], "can't be written"),
        (["--ranks", "0"], "--ranks"),
    ],
)
def test_bad_options_are_exit_two(argv: list[str], says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(command, "one_device", small)
    result = CliRunner().invoke(command.measure, argv)
    assert result.exit_code == 2 and says in result.output and "Traceback" not in result.output


def test_without_torch_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    result = CliRunner().invoke(command.measure, [])
    assert result.exit_code == 2 and "synergy-slurm[training]" in result.output
