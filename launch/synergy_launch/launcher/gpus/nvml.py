"""NVIDIA's management library, through ctypes: utilisation, memory, power, SM activity and errors of this job's own GPUs.

Types and constants are those of nvml.h (API reference of NVML 12). A function or figure that the driver or the GPU does not have is None.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from ctypes import byref, c_char, c_char_p, c_double, c_uint, c_ulonglong, c_void_p

from synergy_launch.launcher.gpus.reading import GpuReading, GpuState, named_gpus

LIBRARY = "libnvidia-ml.so.1"
_GPM_VERSION = 1  # NVML_GPM_METRICS_GET_VERSION and NVML_GPM_SUPPORT_VERSION
_UNCORRECTED, _VOLATILE = 1, 0  # NVML_MEMORY_ERROR_TYPE_UNCORRECTED, NVML_VOLATILE_ECC
_XID_EVENT = 8  # nvmlEventTypeXidCriticalError
_MOST_EVENTS = 64  # that are read at a time
_SM_CLOCK = 1  # NVML_CLOCK_SM, in MHz
_MAX_LINKS = 18  # NVML_NVLINK_MAX_LINKS
# nvmlClocksEventReasonHwSlowdown, SwThermalSlowdown, HwThermalSlowdown and HwPowerBrakeSlowdown; a GPU's own power limit is none
_SLOWDOWNS = 0x08 | 0x20 | 0x40 | 0x80
_SM_UTIL, _ANY_TENSOR_UTIL = 2, 5  # NVML_GPM_METRIC_*, percent


class _Utilization(ctypes.Structure):
    _fields_ = (("gpu", c_uint), ("memory", c_uint))


class _Memory(ctypes.Structure):
    _fields_ = (("total", c_ulonglong), ("free", c_ulonglong), ("used", c_ulonglong))


class _PciInfo(ctypes.Structure):
    """That of nvmlDeviceGetPciInfo_v3."""

    _fields_ = (
        ("bus_id_legacy", c_char * 16), ("domain", c_uint), ("bus", c_uint), ("device", c_uint), ("pci_device_id", c_uint),
        ("pci_subsystem_id", c_uint), ("bus_id", c_char * 32),
    )  # fmt: skip


class _EventData(ctypes.Structure):
    _fields_ = (
        ("device", c_void_p), ("event_type", c_ulonglong), ("event_data", c_ulonglong), ("gpu_instance_id", c_uint),
        ("compute_instance_id", c_uint),
    )  # fmt: skip


class _GpmSupport(ctypes.Structure):
    _fields_ = (("version", c_uint), ("is_supported", c_uint))


class _GpmMetric(ctypes.Structure):
    _fields_ = (
        ("metric_id", c_uint), ("status", c_uint), ("value", c_double),
        ("short_name", c_char_p), ("long_name", c_char_p), ("unit", c_char_p),
    )  # fmt: skip


class _GpmMetricsGet(ctypes.Structure):
    """The library reads and writes the first `count` metrics; its own array is longer, and grows with each release."""

    _fields_ = (
        ("version", c_uint), ("count", c_uint), ("sample_1", c_void_p), ("sample_2", c_void_p), ("metrics", _GpmMetric * 2),
    )  # fmt: skip


class Nvml:
    """The GPUs that `CUDA_VISIBLE_DEVICES` names. Raises OSError where there is no library, no driver, or no such GPU."""

    def __init__(self, environ: Mapping[str, str], library: str = LIBRARY) -> None:
        names = named_gpus(environ, "CUDA_VISIBLE_DEVICES")
        if not names:
            raise OSError("CUDA_VISIBLE_DEVICES names no GPU")
        self._events: c_void_p | None = None
        self._library = ctypes.CDLL(library)
        if self._call("nvmlInit_v2") is None:
            raise OSError(f"{library}: nvmlInit_v2 failed")
        self._devices = [device for name in names if (device := self._device(name)) is not None]
        if not self._devices:
            self.close()
            raise OSError(f"{library}: none of the GPUs {', '.join(names)}")
        # two samples of each GPU that can be profiled; the first is the older one
        self._samples = {i: pair for i, device in enumerate(self._devices) if (pair := self._new_samples(device))}

    def read(self) -> tuple[GpuReading, ...]:
        """Return what each GPU does now."""
        return tuple(self._read(i, device) for i, device in enumerate(self._devices))

    def read_states(self) -> tuple[GpuState, ...]:
        """Return each GPU's clock and links now."""
        return tuple(map(self._read_state, self._devices))

    @property
    def addresses(self) -> tuple[str, ...]:
        """Return the GPUs' PCI addresses, `DOMAIN:BUS:DEVICE`, as the driver's messages name them; () if some are not known."""
        pci_addresses = tuple(filter(None, map(self._address, self._devices)))
        return pci_addresses if len(pci_addresses) == len(self._devices) else ()

    def read_uncorrected_errors(self) -> dict[str, int]:
        """Return the uncorrected ECC errors since the driver was loaded, by PCI address, of the GPUs that count them."""
        counts: dict[str, int] = {}
        for device in self._devices:
            count, address = c_ulonglong(), self._address(device)
            kind = c_uint(_UNCORRECTED), c_uint(_VOLATILE)
            if address and self._call("nvmlDeviceGetTotalEccErrors", device, *kind, byref(count)):
                counts[address] = int(count.value)
        return counts

    def watch_xids(self) -> None:
        """Keep the driver's error messages from now on, for `read_xids`."""
        events = c_void_p()
        if self._events is None and self._call("nvmlEventSetCreate", byref(events)):
            self._events = events
            for device in self._devices:
                self._call("nvmlDeviceRegisterEvents", device, c_ulonglong(_XID_EVENT), events)

    def read_xids(self) -> list[tuple[str, int]]:
        """Return (PCI address or "", XID) of the driver's error messages since the reading before, at most _MOST_EVENTS."""
        xids: list[tuple[str, int]] = []
        event = _EventData()
        while self._events is not None and len(xids) < _MOST_EVENTS:
            if not self._call("nvmlEventSetWait_v2", self._events, byref(event), c_uint(0)):
                break
            if event.event_type == _XID_EVENT:
                xids.append((self._address(c_void_p(event.device)), int(event.event_data)))
        return xids

    def close(self) -> None:
        """Let the library go."""
        if self._events is not None:
            self._call("nvmlEventSetFree", self._events)
            self._events = None
        self._call("nvmlShutdown")

    def _call(self, name: str, *arguments: object) -> bool | None:
        """Call a function of the library. Return None if it is not there or fails."""
        function = getattr(self._library, name, None)
        return True if function is not None and function(*arguments) == 0 else None

    def _device(self, name: str) -> c_void_p | None:
        """Return a GPU by its index, or by its UUID, of which the beginning may do."""
        device = c_void_p()
        if name.isdecimal():
            return device if self._call("nvmlDeviceGetHandleByIndex_v2", c_uint(int(name)), byref(device)) else None
        return device if self._call("nvmlDeviceGetHandleByUUID", name.encode(), byref(device)) else None

    def _address(self, device: c_void_p) -> str:
        """Return a GPU's PCI address, or "" if it is not known."""
        info = _PciInfo()
        has_info = self._call("nvmlDeviceGetPciInfo_v3", device, byref(info))
        return f"{info.domain:04x}:{info.bus:02x}:{info.device:02x}" if has_info else ""

    def _read(self, index: int, device: c_void_p) -> GpuReading:
        use, memory, milliwatts = _Utilization(), _Memory(), c_uint()
        has_utilisation = self._call("nvmlDeviceGetUtilizationRates", device, byref(use))
        has_memory = self._call("nvmlDeviceGetMemoryInfo", device, byref(memory))
        has_power = self._call("nvmlDeviceGetPowerUsage", device, byref(milliwatts))
        sm, tensor = self._activity(index, device)
        return GpuReading(
            utilisation=min(1.0, use.gpu / 100.0) if has_utilisation else None,
            memory_bytes=int(memory.used) if has_memory else None,
            power_w=milliwatts.value / 1000.0 if has_power else None,
            sm=sm,
            tensor=tensor,
        )

    def _read_state(self, device: c_void_p) -> GpuState:
        megahertz, slowdowns = c_uint(), c_ulonglong()
        has_clock = self._call("nvmlDeviceGetClockInfo", device, c_uint(_SM_CLOCK), byref(megahertz))
        # the second name is that of drivers before 535
        for name in ("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons"):
            if self._call(name, device, byref(slowdowns)):
                break
        links = []
        for number in range(_MAX_LINKS):
            active = c_uint()
            if self._call("nvmlDeviceGetNvLinkState", device, c_uint(number), byref(active)):
                links.append(active.value)
        return GpuState(
            sm_clock_hz=megahertz.value * 1e6 if has_clock else None,
            nvlinks=sum(map(bool, links)) if links else None,
            throttled=bool(slowdowns.value & _SLOWDOWNS),
        )

    def _new_samples(self, device: c_void_p) -> list[c_void_p] | None:
        support = _GpmSupport(_GPM_VERSION, 0)
        if not self._call("nvmlGpmQueryDeviceSupport", device, byref(support)) or not support.is_supported:
            return None
        pair = [c_void_p(), c_void_p()]
        if not all([self._call("nvmlGpmSampleAlloc", byref(sample)) for sample in pair]):
            return None
        return pair if self._call("nvmlGpmSampleGet", device, pair[0]) else None

    def _activity(self, index: int, device: c_void_p) -> tuple[float | None, float | None]:
        """Return the shares of SMs and tensor cores that were active since the sample before."""
        pair = self._samples.get(index)
        if pair is None or not self._call("nvmlGpmSampleGet", device, pair[1]):
            return None, None
        request = _GpmMetricsGet(_GPM_VERSION, 2, pair[0], pair[1])
        request.metrics[0].metric_id, request.metrics[1].metric_id = _SM_UTIL, _ANY_TENSOR_UTIL
        pair.reverse()
        if not self._call("nvmlGpmMetricsGet", byref(request)):
            return None, None
        sm, tensor = (
            min(1.0, max(0.0, m.value / 100.0)) if not m.status and m.value == m.value else None
            for m in request.metrics
        )
        return sm, tensor
