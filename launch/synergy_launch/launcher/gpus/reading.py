"""What a driver says of one GPU at one moment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, kw_only=True)
class GpuReading:
    """One GPU as its driver shows it. Shares are 0 to 1; what the driver or the GPU does not have is None."""

    #: share of the last sampling period (up to 1 s) in which a kernel ran
    utilisation: float | None = None
    memory_bytes: int | None = None
    power_w: float | None = None
    #: shares of SMs and of tensor cores that were active since the reading before; NVIDIA, Hopper and later
    sm: float | None = None
    tensor: float | None = None


@dataclass(frozen=True, kw_only=True)
class GpuState:
    """One GPU's clock and links as its driver shows them; None: the driver or the GPU does not have it."""

    sm_clock_hz: float | None = None
    #: active NVLinks
    nvlinks: int | None = None
    #: slowed down for heat or for the power supply, not only by its own power limit
    throttled: bool = False


class GpuReader(Protocol):
    """A source of readings of this job's GPUs on this node."""

    def read(self) -> tuple[GpuReading, ...]:
        """Return what each GPU does now."""
        ...

    def close(self) -> None:
        """Let the driver go."""
        ...


def named_gpus(environ: Mapping[str, str], *variables: str) -> list[str]:
    """Return the GPUs that the first of `variables` with a value names, by numbers or UUIDs."""
    value = next((environ[name] for name in variables if environ.get(name)), "")
    return [name.strip() for name in value.split(",") if name.strip()]
