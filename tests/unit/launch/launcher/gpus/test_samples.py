"""What drivers say of a job's GPUs, from the library or sysfs to the report."""

from __future__ import annotations

import json
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from synergy_core.errors import UsageError
from synergy_core.job_report import GpuActivity, Report
from synergy_core.wire.report import from_json, status_to_report, to_json
from synergy_launch.launcher.gpus import samples
from synergy_launch.launcher.gpus.amdgpu import AmdGpus
from synergy_launch.launcher.gpus.nvml import Nvml
from synergy_launch.launcher.gpus.reading import GpuReading, GpuState
from synergy_launch.launcher.gpus.samples import GpuSampler, Means, open_driver

ACTIVITY = GpuActivity(
    gpus=8, samples=30, utilisation=0.912, memory_bytes=68_719_476_736, power_w=612.345, sm=0.834, tensor=0.412,
    run_s=86_400.0, run_utilisation=0.899, run_power_w=598.123,
)  # fmt: skip


def test_gpus_of_the_job_are_read(library: str) -> None:
    reader = Nvml({"CUDA_VISIBLE_DEVICES": "0,GPU-one"}, library)
    first, second = reader.read()
    assert first == GpuReading(utilisation=0.4, memory_bytes=2**33, power_w=300.5, sm=0.75, tensor=0.25)
    assert second == GpuReading(utilisation=0.1, memory_bytes=2**34), "what a GPU can't say is not said"
    assert reader.read()[0] == replace(first, utilisation=0.6), "the samples change places"
    reader.close()
    (alone,) = Nvml({"CUDA_VISIBLE_DEVICES": "GPU-one,7"}, library).read()
    assert alone.utilisation == 0.1


def test_clocks_and_links_of_the_job_s_gpus_are_read(library: str) -> None:
    reader = Nvml({"CUDA_VISIBLE_DEVICES": "0,1"}, library)
    first, second = reader.read_states()
    assert first == GpuState(sm_clock_hz=1980e6, nvlinks=11, throttled=False), "a GPU's own power limit is no fault"
    assert second == GpuState(throttled=True), "it is hot, and has no clock or links to tell"
    reader.close()


@pytest.fixture
def sysfs(tmp_path: Path) -> Path:
    """The files of a node with a CPU, two GPUs that the job may use, and one between them that its cgroup forbids."""
    nodes = tmp_path / "class/kfd/kfd/topology/nodes"
    for number, (simds, minor, unique) in enumerate(((0, 0, 0), (1216, 128, 0xABC), (1216, 129, 0), (1216, 130, 0))):
        (nodes / str(number)).mkdir(parents=True)
        said = f"cpu_cores_count 64\nsimd_count {simds}\ndrm_render_minor {minor}\nunique_id {unique}\n"
        if minor == 129:
            (nodes / str(number) / "properties").mkdir()  # reading it fails, for root as well
        else:
            (nodes / str(number) / "properties").write_text(said)
    for minor, busy, power in ((128, 40, "power1_average"), (129, 77, "power1_average"), (130, 120, "power1_input")):
        device = tmp_path / f"class/drm/renderD{minor}/device"
        (device / "hwmon/hwmon3").mkdir(parents=True)
        (device / "gpu_busy_percent").write_text(f"{busy}\n")
        (device / "hwmon/hwmon3" / power).write_text("300500000\n")
    (tmp_path / "class/drm/renderD128/device/mem_info_vram_used").write_text(f"{2**33}\n")
    return tmp_path


def test_amds_gpus_are_read_from_the_kernel(sysfs: Path) -> None:
    first, second = AmdGpus({"ROCR_VISIBLE_DEVICES": "0, 1"}, sysfs).read()
    assert first == GpuReading(utilisation=0.4, memory_bytes=2**33, power_w=300.5)
    assert second == GpuReading(utilisation=1.0, power_w=300.5), "the one that its cgroup forbids has no number"
    assert AmdGpus({"HIP_VISIBLE_DEVICES": "GPU-0000000000000abc"}, sysfs).read() == (first,)


@pytest.mark.parametrize(
    "environ", [{}, {"ROCR_VISIBLE_DEVICES": ""}, {"ROCR_VISIBLE_DEVICES": "2"}, {"HIP_VISIBLE_DEVICES": "../1"}]
)
def test_without_amds_gpus_there_is_nothing_to_read(sysfs: Path, environ: dict[str, str]) -> None:
    with pytest.raises(OSError, match="amdgpu"):
        AmdGpus(environ, sysfs)
    with pytest.raises(OSError, match="amdgpu"):
        open_driver(environ)


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
    for n in range(samples.RECENT):
        means.add((GpuReading(utilisation=0.0, power_w=100.0), GpuReading(utilisation=0.0)), 100.0 + 10 * n)
    for n in range(samples.RECENT):
        made = means.add((GpuReading(utilisation=1.0, power_w=300.0), GpuReading(utilisation=0.5)), 400.0 + 10 * n)
    assert (made.gpus, made.samples, made.utilisation, made.power_w) == (2, samples.RECENT, 0.75, 300.0)
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
