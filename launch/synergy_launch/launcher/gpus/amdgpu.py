"""AMD's kernel driver, through sysfs: utilisation, memory and power of this job's own GPUs.

ROCm numbers the GPUs as the kernel's topology of compute nodes lists them (/sys/class/kfd), without those that the job's device
cgroup forbids: the kernel then refuses to show their properties. The figures are amdgpu's (docs.kernel.org/gpu/amdgpu, "Thermal and
power controls", "Memory info").
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from synergy_launch.launcher.gpus.reading import GpuReading, named_gpus

_NODES, _DEVICE = "class/kfd/kfd/topology/nodes", "class/drm/renderD{minor}/device"
_MOST_NODES = 4096
_NAMES = ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")


class AmdGpus:
    """The GPUs that ROCR_VISIBLE_DEVICES names, else HIP_VISIBLE_DEVICES. Raises OSError where there is no such GPU."""

    def __init__(self, environ: Mapping[str, str], sysfs: Path = Path("/sys")) -> None:
        names = named_gpus(environ, *_NAMES)
        gpus = list(_compute_gpus(sysfs)) if names else []
        by_name = {str(i): device for i, (_, device) in enumerate(gpus)} | {
            name: device for name, device in gpus if name
        }
        self._devices = [by_name[name] for name in names if name in by_name]
        if not self._devices:
            raise OSError(f"{' and '.join(_NAMES)} name no GPU of the amdgpu driver")

    def read(self) -> tuple[GpuReading, ...]:
        """Return what each GPU does now."""
        return tuple(_read(device) for device in self._devices)

    def close(self) -> None:
        """Do nothing: no file stays open."""


def _compute_gpus(sysfs: Path) -> Iterator[tuple[str, Path]]:
    """Yield (ROCm's UUID or "", device folder) of the GPUs that this process may use, in ROCm's order."""
    for number in range(_MOST_NODES):
        folder = sysfs / _NODES / str(number)
        if not folder.is_dir():
            return
        with suppress(OSError, ValueError):
            lines = (line.split() for line in (folder / "properties").read_text(encoding="ascii").splitlines())
            properties = {words[0]: int(words[1]) for words in lines if len(words) == 2}
            if properties.get("simd_count", 0) > 0:  # a CPU has none
                unique = properties.get("unique_id", 0)
                minor = properties.get("drm_render_minor", 0)
                yield f"GPU-{unique:016x}" if unique else "", sysfs / _DEVICE.format(minor=minor)


def _read(device: Path) -> GpuReading:
    busy, memory = _number(device / "gpu_busy_percent"), _number(device / "mem_info_vram_used")
    power = next(
        (
            microwatts
            for name in ("power1_average", "power1_input")  # MI300 has the second
            for path in sorted(device.glob(f"hwmon/hwmon*/{name}"))
            if (microwatts := _number(path)) is not None
        ),
        None,
    )
    return GpuReading(
        utilisation=None if busy is None else min(1.0, busy / 100.0),
        memory_bytes=memory,
        power_w=None if power is None else power / 1e6,
    )


def _number(path: Path) -> int | None:
    """Return the number in a file, or None where there is none."""
    try:
        return max(0, int(path.read_text(encoding="ascii")))
    except (OSError, ValueError):
        return None
