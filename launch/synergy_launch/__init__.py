"""What runs inside a job: launcher, agent, training adapters. Imports no server part of synergyd."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from synergy_launch.pytorch.mesh import data_mesh as data_mesh
    from synergy_launch.pytorch.mesh import plan_mesh as plan_mesh
    from synergy_launch.pytorch.pipeline import Pipeline as Pipeline
    from synergy_launch.pytorch.pipeline import stage_blocks as stage_blocks
    from synergy_launch.pytorch.training import SynergyTask as SynergyTask

__all__ = ["Pipeline", "SynergyTask", "data_mesh", "plan_mesh", "stage_blocks"]


def __getattr__(name: str) -> Any:
    """Import torch for `from synergy_launch import SynergyTask`; importing `synergy_launch` alone does not."""
    if name == "SynergyTask":
        from synergy_launch.pytorch.training import SynergyTask

        return SynergyTask
    if name in ("data_mesh", "plan_mesh"):
        from synergy_launch.pytorch import mesh

        return getattr(mesh, name)
    if name in ("Pipeline", "stage_blocks"):
        from synergy_launch.pytorch import pipeline

        return getattr(pipeline, name)
    raise AttributeError(f"module 'synergy_launch' has no attribute {name!r}")
