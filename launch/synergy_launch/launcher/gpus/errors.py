"""Errors of a job's NVIDIA GPUs while a run lasts: the driver's messages ("XID") and uncorrected ECC errors.

The messages come from the kernel's log, which often only root may read, and from NVML's events. Only numbers and PCI addresses are taken
from either. Which messages tell of a fault of the GPU, and which of these need a reset, is NVIDIA's catalogue of XIDs
(docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html, and as a table in NVIDIA/NVSentinel, xiderrorsmapping.csv): 13, 31, 43, 45
and others are faults of programs, or follow from the end of one.
"""

from __future__ import annotations

import contextlib
import os
import re
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

from synergy_launch.launcher.gpus.nvml import Nvml
from synergy_launch.launcher.gpus.reading import named_gpus

_Result = TypeVar("_Result")
LOG = Path("/dev/kmsg")
_NO_GPU = "NoDevFiles"  # Slurm's name for none
#: the catalogue's immediate action is RESET_GPU, RESTART_VM or RESTART_BM, or the workflow of a double-bit ECC error
_RESET = frozenset({46, 48, 62, 64, 79, 95, 109, 110, 119, 120, 136, 140, 143, 151, 155, 156, 158, 160, 162})
#: NVLink (its own workflows), and a contained ECC error, after which it is enough to start the program again
_FAULTS = _RESET | {74, 94, *range(144, 151)}
_XID = re.compile(
    rb"NVRM: Xid \(PCI:([0-9a-fA-F]{4,8}):([0-9a-fA-F]{2}):([0-9a-fA-F]{2})(?:\.[0-9a-fA-F])?\): (\d{1,3})\b"
)
_RECORD_BYTES = 8192  # the longest record of /dev/kmsg: a shorter read fails
_MOST_BYTES, _MOST_S = 1 << 22, 0.2  # of the log that are read after a failure
_NVML_S = 0.5  # for NVML's answer: with a broken GPU it may never come


@dataclass(frozen=True, kw_only=True)
class GpuError:
    """What is known of a GPU's failure. `pci_address`: `DOMAIN:BUS:DEVICE`, "" if not known; `xid` 0: no message."""

    pci_address: str
    xid: int = 0
    ecc_errors: int = 0


class GpuErrorSource(Protocol):
    """A library that knows of the errors of this job's GPUs, by PCI address."""

    @property
    def addresses(self) -> tuple[str, ...]:
        """Return the addresses of the GPUs."""
        ...

    def read_uncorrected_errors(self) -> dict[str, int]:
        """Return the uncorrected ECC errors of the GPUs that count them, since their driver was loaded."""
        ...

    def watch_xids(self) -> None:
        """Keep the driver's messages from now on."""
        ...

    def read_xids(self) -> list[tuple[str, int]]:
        """Return (address, XID) of the messages since the reading before."""
        ...

    def close(self) -> None:
        """Let the library go."""
        ...


def needs_reset(xid: int) -> bool:
    """Return whether a GPU with this message works again only after a reset; 0: there was none."""
    return xid in _RESET


class KernelLog:
    """The records of the kernel's log from now on. Where it may not be read there are none."""

    def __init__(self, path: Path = LOG) -> None:
        self._descriptor = -1
        with contextlib.suppress(OSError):
            self._descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            os.lseek(self._descriptor, 0, os.SEEK_END)

    def read_xids(self) -> list[tuple[str, int]]:
        """Return (PCI address, XID) of the driver's messages since the reading before: of so much of the log as is read in _MOST_S."""
        xids: list[tuple[str, int]] = []
        until, room = time.monotonic() + _MOST_S, _MOST_BYTES
        while self._descriptor >= 0 and room > 0 and time.monotonic() < until:
            try:
                record = os.read(self._descriptor, _RECORD_BYTES)
            except (
                BrokenPipeError
            ):  # the oldest records have made room for newer ones: the next read goes on with those
                continue
            except OSError:  # BlockingIOError: that is all
                break
            if not record:
                break
            room -= len(record)
            xids += [
                (f"{int(domain, 16):04x}:{bus.decode().lower()}:{device.decode().lower()}", int(xid))
                for domain, bus, device, xid in _XID.findall(record)
            ]
        return xids

    def close(self) -> None:
        """Close the log."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
        self._descriptor = -1


class GpuErrors:
    """The errors of this job's GPUs since this was made. Nothing here waits long, however broken a GPU is.

    `environ` names the GPUs, as in Nvml; without a name there is nothing to read.
    """

    def __init__(
        self,
        environ: Mapping[str, str],
        *,
        log: Path = LOG,
        open_source: Callable[[Mapping[str, str]], GpuErrorSource] = lambda environ: Nvml(environ),
    ) -> None:
        self._source: GpuErrorSource | None = None
        self._before: dict[str, int] = {}
        self._addresses: tuple[str, ...] = ()
        self._log: KernelLog | None = None
        self._opening: threading.Thread | None = None
        if set(named_gpus(environ, "CUDA_VISIBLE_DEVICES")) - {_NO_GPU}:
            self._log = KernelLog(log)
            self._opening = threading.Thread(
                target=self._open, args=(environ, open_source), name="gpu-errors", daemon=True
            )
            self._opening.start()

    def find(self) -> GpuError | None:
        """Return the error that tells most: one that needs a reset, else another fault of a GPU, else uncorrected ECC errors."""
        if self._log is None or self._opening is None:
            return None
        self._opening.join(_NVML_S)
        xids = self._log.read_xids()
        xids += _within(_NVML_S, self._read_events) or []
        faults = [
            (address, xid)
            for address, xid in xids
            if xid in _FAULTS and (address in self._addresses or not self._addresses)
        ]
        rises = _within(_NVML_S, self._count_ecc_errors) or {}
        for address, xid in sorted(faults, key=lambda fault: not needs_reset(fault[1])):
            return GpuError(pci_address=address, xid=xid, ecc_errors=rises.get(address, 0))
        for address, errors in rises.items():
            return GpuError(pci_address=address, ecc_errors=errors)
        return None

    def close(self) -> None:
        """Let log and library go; a library that does not answer is left."""
        if self._log is not None:
            self._log.close()
        source, self._source = self._source, None
        if source is not None:
            threading.Thread(target=source.close, name="gpu-errors", daemon=True).start()

    def _open(self, environ: Mapping[str, str], open_source: Callable[[Mapping[str, str]], GpuErrorSource]) -> None:
        with contextlib.suppress(OSError):
            source = open_source(environ)
            self._addresses = source.addresses
            self._before = source.read_uncorrected_errors()
            source.watch_xids()
            self._source = source

    def _read_events(self) -> list[tuple[str, int]]:
        return [] if self._source is None else self._source.read_xids()

    def _count_ecc_errors(self) -> dict[str, int]:
        """Return the uncorrected errors since the start, by address, of the GPUs that had any."""
        now = {} if self._source is None else self._source.read_uncorrected_errors()
        return {a: n - self._before[a] for a, n in now.items() if n > self._before.get(a, n)}


def _within(seconds: float, read: Callable[[], _Result]) -> _Result | None:
    """Return the result of `read`, or None if it takes longer than `seconds`."""
    results: list[_Result] = []
    thread = threading.Thread(target=lambda: results.append(read()), name="gpu-errors", daemon=True)
    thread.start()
    thread.join(seconds)
    return results[0] if results else None
