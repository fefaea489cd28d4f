"""The check of a node before a run, as a record: what its launcher measures and the daemon compares with other nodes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from types import MappingProxyType

#: what the figures of a check are called in a sentence, by field of NodeCheck
MEASURES: Mapping[str, str] = MappingProxyType(
    {
        "gemm_flops": "matrix products",
        "device_bytes_per_s": "GPU memory bandwidth",
        "sm_clock_hz": "GPU clock",
        "nvlinks": "active NVLinks",
        "host_bytes_per_s": "host memory bandwidth",
        "network_bits_per_s": "network links",
    }
)
#: longest name of a GPU in a check
DEVICE_CHARACTERS = 64


@dataclass(frozen=True, kw_only=True)
class NodeCheck:
    """The figures of one node before a run. Those of GPUs are of the slowest of the job's; null: not measured."""

    #: the node's name in Slurm
    node: str
    #: when it was measured, by the node's clock; two checks of a node differ in it
    taken_s: float
    #: GPUs that were measured; 0: the figures are of CPUs
    gpus: int = 0
    #: CPUs that the job may use there
    cpus: int = 1
    #: the GPUs as their driver names them, "" without any
    device: str = ""
    #: matrix products, FLOP/s: bf16 on a GPU, fp32 on CPUs
    gemm_flops: float | None = None
    #: copies in GPU memory, bytes read and written a second
    device_bytes_per_s: float | None = None
    #: SM clock right after the matrix products, hertz
    sm_clock_hz: float | None = None
    #: active NVLinks
    nvlinks: float | None = None
    #: copies in host memory, bytes read and written a second
    host_bytes_per_s: float | None = None
    #: rates of the network adapters that are up, together
    network_bits_per_s: float | None = None
    #: a GPU's driver slowed it down for heat or for its power supply
    throttled: bool = False
    #: the measurement that did not end in time, a key of MEASURES; "": none
    hung_at: str = ""

    def figures(self) -> dict[str, float]:
        """Return what was measured, by measure."""
        values = {f.name: getattr(self, f.name) for f in fields(self) if f.name in MEASURES}
        return {name: value for name, value in values.items() if value is not None}
