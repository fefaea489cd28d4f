"""The policies by the name that the setting `Policy` takes, and where each is defined: none is imported before it is used."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

POLICIES: Mapping[str, str] = MappingProxyType(
    {
        "synergy": "synergyd.scheduler.synergy_policy:SynergyPolicy",
        "exact": "synergyd.scheduler.exact_policy:ExactPolicy",
        "fifo": "synergy_sim.policies.fifo:FifoPolicy",
        "first-fit": "synergy_sim.policies.first_fit:FirstFitPolicy",
        "backfill": "synergy_sim.policies.backfill:BackfillPolicy",
        "srtf": "synergy_sim.policies.srtf:SrtfPolicy",
        "srsf": "synergy_sim.policies.srtf:SrsfPolicy",
        "tiresias": "synergy_sim.policies.tiresias:TiresiasPolicy",
        "optimus": "synergy_sim.policies.optimus:OptimusPolicy",
        "pollux": "synergy_sim.policies.pollux:PolluxPolicy",
        "sia": "synergy_sim.policies.sia:SiaPolicy",
        "crius": "synergy_sim.policies.crius:CriusPolicy",
        "dally": "synergy_sim.policies.dally:DallyPolicy",
    }
)
