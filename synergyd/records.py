"""The name under which training scripts of 0.2 imported a model's description. For one release; now synergy_core.records."""

from synergy_core.records import ModelSpec, Plan

__all__ = ["ModelSpec", "Plan"]
