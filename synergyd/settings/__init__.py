"""The admin's settings, each written once: its Key in slurm.conf, type, default and text.

slurm.conf's `#SYNERGY Key=Value` lines fill them (synergyd/slurm/directives/conf.py). slurm_plugins/synergy.conf and the reference
page are printed from this table (synergyd/settings/text.py).
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from synergyd.settings.allocation import AllocationSettings
from synergyd.settings.resizing import ResizingSettings
from synergyd.settings.service import ServiceSettings
from synergyd.settings.types import Setting, about, figures

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
            "Figures of a GPU type, named as in Gres=gpu:TYPE, on a line of its own for each type. They take precedence "
            "over the built-in figures and those of Profile. peak_tflops: dense half-precision TFLOP/s. memory_gib: device "
            "memory, GiB. bandwidth_gbs: device memory, GB/s. intra_gbs: GB/s to another GPU of the node, one direction. "
            "inter_gbs: a GPU's share of the node's network, GB/s, one direction.",
            unset="the built-in figures",
            example="a100 peak_tflops=312 memory_gib=80 bandwidth_gbs=2000 intra_gbs=300 inter_gbs=25",
        ),
    )

    def rest_socket(self) -> Path:
        """Return the Unix socket of the REST service."""
        return self.state_dir / "rest.sock"

    def database_url(self) -> str:
        return self.database or f"sqlite:///{self.state_dir / 'synergy.db'}"


def _entry(settings_field: Any) -> Setting:
    entry: Setting = settings_field.metadata["setting"]
    return replace(entry, field=settings_field.name)


#: all Keys, in the order of the documentation
TABLE: tuple[Setting, ...] = tuple(_entry(each) for each in fields(Settings) if "setting" in each.metadata)
#: those of one value, and GpuType, whose line holds several
SETTINGS = tuple(setting for setting in TABLE if setting.key != "GpuType")
(GPU_TYPE,) = set(TABLE) - set(SETTINGS)
#: Keys and values (* stands for any text) of 0.2.0 that have no effect any more -> what to do instead; they go from here with the
#: next release
REMOVED = {
    "AdaptBatch": "adapt=yes goes up to 4 times the script's own batch; global_batch=LO:HI names another range",
    "CommOptions": "a job exchanges less only where its own comm= allows it",
    "Deadlines": "DeadlineShare bounds what a deadline= gets first; at 1, the default, it takes no share of others",
    "EarlyEpochs": "epochs come early wherever a job waits for one",
    "FairShareWeight": "write PriorityWeight=fair-share",
    "GuaranteedPrice": "drop it: the next release does not know it",
    "GuaranteedShare": "drop it: the next release does not know it",
    "KeepUsage": "GPU hours are kept for 400 days",
    "LinkArbiterRule=*-reserve": "write the rule without what stands behind it, or look-ahead",
    "LinkArbiterRule=*-time": "write the rule without what stands behind it, or look-ahead",
    "LinkArbiterWait": "an all-reduce waits for its turn for at most 0.5 s",
    "MaxCheckpointGiBps": "write MaxResizes=N: it bounds how many jobs write checkpoints at once",
    "MaxGrowth": "a job grows where it gains more than a restart costs; RestartShare and FirstStart bound it",
    "MaxResizesPerDay": "RestartShare bounds what restarts take of a job's life",
    "NoticeEvents": "all events are posted; choose by the field event of each",
    "NoticeSecretFile": "put the key into notice.key in StateDir, readable by synergyd's user alone",
    "Objective": "write Fairness: -100 is max-min, 0 proportional fairness, 1 the sum",
    "OneMultiNodeJobPerNode": "write LinkAware=yes, or --exclusive in the jobs",
    "PartitionLimits": "Slurm's own limit holds: sacctmgr modify qos NAME set GrpTRES=gres/gpu=N for the partition's QOS",
    "Placement=dally": "write LinkAware=yes with LeafUplink: it places and sizes jobs by their links",
    "Placement=quiet": "write LinkAware=yes: it places and sizes jobs by their links",
    "QosSpareNodes": "write SpareNodes=qos/NAME:NODES",
    "QosWeights": "write PriorityWeight=yes: Slurm's priority has the QOS in it (PriorityWeightQOS)",
}
