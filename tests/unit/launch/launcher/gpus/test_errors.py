"""The driver's messages and ECC errors of a job's GPUs, from made-up logs and libraries."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace

import pytest
from synergy_launch.launcher.gpus import errors
from synergy_launch.launcher.gpus.errors import GpuError, GpuErrors, KernelLog, needs_reset
from synergy_launch.launcher.gpus.nvml import Nvml

NAMED = {"CUDA_VISIBLE_DEVICES": "0,1"}
OWN, OTHER = "0000:3b:00", "0000:af:00"


def line(xid: int | str, address: str = OWN) -> str:
    return f"4,9,77,-;NVRM: Xid (PCI:{address}): {xid}, pid=4711, name=$(reboot), Ch 00000008\n SUBSYSTEM=pci\n"


def append(log: Path, *records: str) -> None:
    with log.open("a") as stream:
        stream.writelines(records)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    (tmp_path / "kmsg").write_text(line(48))
    return tmp_path / "kmsg"


class Library:
    """Two GPUs, of which the first counts one uncorrected ECC error with each reading where `errs`."""

    addresses: tuple[str, ...] = (OWN, OTHER)

    def __init__(self, *, errs: bool = False, xids: tuple[tuple[str, int], ...] = (), blocks: bool = False) -> None:
        self._errs, self._count, self._xids, self._blocks = errs, 7, list(xids), blocks
        self.released = threading.Event()

    def read_uncorrected_errors(self) -> dict[str, int]:
        if self._blocks:
            self.released.wait(60)
        self._count += self._errs
        return {OWN: self._count, OTHER: 2}

    def watch_xids(self) -> None:
        pass

    def read_xids(self) -> list[tuple[str, int]]:
        return self._xids

    def close(self) -> None:
        self.released.set()


def no_library(_environ: Mapping[str, str]) -> Library:
    raise OSError("no library")


def test_messages_since_the_run_began(log: Path) -> None:
    seen = KernelLog(log)
    assert seen.read_xids() == [], "the run before"
    append(log, line(79, "0000:3B:00"), "6,10,78,-;usb 1-1: new device\n", line(31, "0000:3b:00.0"))
    assert seen.read_xids() == [(OWN, 79), (OWN, 31)]
    assert seen.read_xids() == []
    seen.close()


def test_a_log_that_has_no_more_is_not_waited_for_and_lost_records_are_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the kernel answers EAGAIN, and EPIPE where records were lost."""
    path = tmp_path / "pipe"
    os.mkfifo(path)
    lost = [BrokenPipeError()]

    def read(descriptor: int, size: int) -> bytes:
        if lost:
            raise lost.pop()
        return os.read(descriptor, size)

    monkeypatch.setattr(errors, "os", SimpleNamespace(**{**vars(os), "read": read}))
    seen = KernelLog(path)
    with path.open("w") as writer:
        writer.write(line(79))
        writer.flush()
        assert seen.read_xids() == [(OWN, 79)] and not lost
    seen.close()


def test_only_so_much_of_a_log_is_read(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(errors, "_MOST_BYTES", 8192)
    seen = KernelLog(log)
    append(log, *["x" * 99 + "\n"] * 200, line(79))
    assert seen.read_xids() == []


def test_a_log_that_may_not_be_read_says_nothing(tmp_path: Path) -> None:
    seen = KernelLog(tmp_path / "none")
    assert seen.read_xids() == []
    seen.close()


@pytest.mark.parametrize(
    ("record", "found"),
    [
        (line(79), GpuError(pci_address=OWN, xid=79)),
        (line(74) + line(95), GpuError(pci_address=OWN, xid=95)),  # what needs a reset says more
        (line(31) + line(13) + line(43) + line(45), None),  # faults of programs, and what follows from their end
        (line(79, "0000:d8:00"), None),  # another job's
        (line("79999") + line("x") + "NVRM: Xid (PCI:$(reboot)): 79, ", None),
        ("", None),
    ],
)
def test_what_a_log_says_of_the_jobs_own_gpus(log: Path, record: str, found: GpuError | None) -> None:
    seen = GpuErrors(NAMED, log=log, open_source=lambda _: Library())
    append(log, record)
    assert seen.find() == found
    seen.close()


def test_without_a_library_every_gpu_of_the_log_may_be_the_jobs(log: Path) -> None:
    seen = GpuErrors(NAMED, log=log, open_source=no_library)
    append(log, line(79, "0000:d8:00"))
    assert seen.find() == GpuError(pci_address="0000:d8:00", xid=79)
    for environ in ({}, {"CUDA_VISIBLE_DEVICES": "NoDevFiles"}):
        cpu_job = GpuErrors(environ, log=log, open_source=no_library)
        append(log, line(79))
        assert cpu_job.find() is None


def test_what_the_library_counts_and_keeps(tmp_path: Path) -> None:
    counted = GpuErrors(NAMED, log=tmp_path / "none", open_source=lambda _: Library(errs=True))
    assert counted.find() == GpuError(pci_address=OWN, ecc_errors=1)
    library = Library(errs=True, xids=((OWN, 43), (OWN, 94)))
    kept = GpuErrors(NAMED, log=tmp_path / "none", open_source=lambda _: library)
    assert kept.find() == GpuError(pci_address=OWN, xid=94, ecc_errors=1)
    kept.close()
    assert library.released.wait(60), "closed"


@pytest.fixture
def stuck(monkeypatch: pytest.MonkeyPatch) -> Iterator[Library]:
    monkeypatch.setattr(errors, "_NVML_S", 0.05)
    library = Library(blocks=True)
    yield library
    library.close()


def test_a_library_that_never_answers_is_not_waited_for(log: Path, stuck: Library) -> None:
    seen = GpuErrors(NAMED, log=log, open_source=lambda _: stuck)
    append(log, line(79))
    assert seen.find() == GpuError(pci_address=OWN, xid=79)
    seen.close()


def test_which_messages_need_a_reset() -> None:
    assert [xid for xid in (0, 13, 31, 48, 74, 79, 94, 95, 140) if needs_reset(xid)] == [48, 79, 95, 140]


def test_errors_from_nvml(library: str) -> None:
    nvml = Nvml({"CUDA_VISIBLE_DEVICES": "0,GPU-one"}, library)
    assert nvml.addresses == (OWN, OTHER)
    assert nvml.read_uncorrected_errors() == {OWN: 5} and nvml.read_uncorrected_errors() == {OWN: 6}
    assert nvml.read_xids() == [], "nobody watches"
    nvml.watch_xids()
    assert nvml.read_xids() == [(OWN, 43), (OWN, 94)] and nvml.read_xids() == []
    nvml.close()
