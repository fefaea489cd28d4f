"""What NVML says of a job's GPUs, from the library to the report."""

from __future__ import annotations

import json
import shutil
import subprocess
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from synergy_core.errors import UsageError
from synergy_core.job_report import GpuActivity, Report
from synergy_core.wire.report import from_json, status_to_report, to_json
from synergy_launch.launcher import gpu_samples
from synergy_launch.launcher.gpu_samples import GpuSampler, Means
from synergy_launch.launcher.nvml import GpuReading, Nvml

ACTIVITY = GpuActivity(
    gpus=8, samples=30, utilisation=0.912, memory_bytes=68_719_476_736, power_w=612.345, sm=0.834, tensor=0.412,
    run_s=86_400.0, run_utilisation=0.899, run_power_w=598.123,
)  # fmt: skip


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> str:
    if shutil.which("cc") is None:
        pytest.skip("no C compiler")
    path = tmp_path_factory.mktemp("nvml") / "libnvidia-ml.so.1"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", path, Path(__file__).with_name("fake_nvml.c")], check=True)
    return str(path)


def test_gpus_of_the_job_are_read(library: str) -> None:
    reader = Nvml({"CUDA_VISIBLE_DEVICES": "0,GPU-one"}, library)
    first, second = reader.read()
    assert first == GpuReading(utilisation=0.4, memory_bytes=2**33, power_w=300.5, sm=0.75, tensor=0.25)
    assert second == GpuReading(utilisation=0.1, memory_bytes=2**34), "what a GPU can't say is not said"
    assert reader.read()[0] == replace(first, utilisation=0.6), "the samples change places"
    reader.close()
    (alone,) = Nvml({"CUDA_VISIBLE_DEVICES": "GPU-one,7"}, library).read()
    assert alone.utilisation == 0.1


@pytest.mark.parametrize(("devices", "name"), [("", "fake"), ("0", "none"), ("NoDevFiles", "fake"), ("9", "fake")])
def test_nothing_to_read_is_no_fault(library: str, devices: str, name: str, capfd: pytest.CaptureFixture[str]) -> None:
    made = GpuSampler(
        lambda: Nvml({"CUDA_VISIBLE_DEVICES": devices}, library if name == "fake" else "libnone.so.9"), 0.001
    )
    made._thread.join(20)
    assert not made._thread.is_alive() and made.latest is None and made.busiest() is None
    assert capfd.readouterr() == ("", "")


def test_means_are_of_the_last_samples_and_of_the_run() -> None:
    means = Means()
    for n in range(gpu_samples.RECENT):
        means.add((GpuReading(utilisation=0.0, power_w=100.0), GpuReading(utilisation=0.0)), 100.0 + 10 * n)
    for n in range(gpu_samples.RECENT):
        made = means.add((GpuReading(utilisation=1.0, power_w=300.0), GpuReading(utilisation=0.5)), 400.0 + 10 * n)
    assert (made.gpus, made.samples, made.utilisation, made.power_w) == (2, gpu_samples.RECENT, 0.75, 300.0)
    assert (made.run_utilisation, made.run_power_w, made.run_s) == (0.375, 200.0, 590.0)
    assert (made.sm, made.tensor, made.memory_bytes) == (None, None, None)


class Reader:
    """A reader that computes for as long as a reading of eight GPUs may take."""

    def __init__(self) -> None:
        self.read_twice, self.closed, self._number = threading.Event(), threading.Event(), 0

    def read(self) -> tuple[GpuReading, ...]:
        self._number += 1
        if self._number == 2:
            self.read_twice.set()
        return (GpuReading(utilisation=0.3), GpuReading(utilisation=0.8))

    def close(self) -> None:
        self.closed.set()


def test_a_sampler_reads_until_it_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    reader = Reader()
    made = GpuSampler(lambda: reader, 0.01)
    assert reader.read_twice.wait(30)
    assert made.latest is not None and made.latest.gpus == 2 and made.latest.utilisation == 0.55
    made.close()
    assert reader.closed.wait(30)


def test_activity_travels_in_a_report() -> None:
    made = status_to_report({"step": 3, "gpu_activity": "no"}, 7, 1, gpu_activity=ACTIVITY)
    assert made.gpu_activity == ACTIVITY and from_json(to_json(made)) == made
    assert "gpu_activity" not in json.loads(to_json(Report(7, 1, 3))), "as launchers without it write it"
    added = len(to_json(made)) - len(to_json(replace(made, gpu_activity=None)))
    print(f"a report grows by {added} bytes")
    assert added <= 256


@pytest.mark.parametrize("wrong", [{"utilisation": 1.5}, {"gpus": 0}, {"power_w": float("nan")}, {"memory_bytes": -1}])
def test_activity_out_of_bounds_is_refused(wrong: dict[str, float]) -> None:
    said = json.loads(to_json(Report(7, 1, 3, gpu_activity=ACTIVITY)))
    with pytest.raises(UsageError, match=next(iter(wrong))):
        from_json(json.dumps({**said, "gpu_activity": {**said["gpu_activity"], **wrong}}).encode())
