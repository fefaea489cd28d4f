"""The admin's settings, each written once: its Key in slurm.conf, type, default and text.

slurm.conf's `#SYNERGY Key=Value` lines fill them (synergyd/slurm/directives/conf.py). slurm_plugins/synergy.conf and the reference
page are printed from this table (synergyd/settings_text.py).
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from synergyd.setting import Setting, about
from synergyd.setting_types import figures
from synergyd.settings_allocation import AllocationSettings
from synergyd.settings_resizing import ResizingSettings
from synergyd.settings_service import ServiceSettings

#: what a GpuType line may say of a GPU type
FIGURES = ("peak_tflops", "memory_gib", "bandwidth_gbs", "intra_gbs", "inter_gbs")


@dataclass(frozen=True, kw_only=True)
class Settings(ResizingSettings, AllocationSettings, ServiceSettings):  # fields of the last come first
    """The values. A field is its Key in snake case, durations with `_s`: `RestartCost` is `restart_cost_s`."""

    gpu_figures: dict[str, dict[str, float]] = field(
        default_factory=dict,
        metadata=about(
            "GpuType",
            figures(f"the type's name, then some of {', '.join(FIGURES)}, each above 0 and at most 1000000"),
            "Figures of a GPU type, named as in Gres=gpu:TYPE, on a line of its own for each type. They come over the built-in "
            "figures and over those of Profile. peak_tflops: dense half-precision TFLOP/s. memory_gib: device memory, GiB. "
            "bandwidth_gbs: device memory, GB/s. intra_gbs: GB/s to another GPU of the node, one direction. inter_gbs: a GPU's "
            "share of the node's network, GB/s, one direction.",
            unset="the built-in figures",
            example="a100 peak_tflops=312 memory_gib=80 bandwidth_gbs=2000 intra_gbs=300 inter_gbs=25",
        ),
    )

    def rest_socket(self) -> Path:
        """The Unix socket of the REST service."""
        return self.state_dir / "rest.sock"

    def database_url(self) -> str:
        return self.database or f"sqlite:///{self.state_dir / 'synergy.db'}"


def _entry(settings_field: Any) -> Setting:
    entry: Setting = settings_field.metadata["setting"]
    return replace(entry, field=settings_field.name)


#: all Keys, in the order of the documentation
TABLE: tuple[Setting, ...] = tuple(_entry(each) for each in fields(Settings))
#: those of one value, and GpuType, whose line holds several
SETTINGS, GPU_TYPE = TABLE[:-1], TABLE[-1]
