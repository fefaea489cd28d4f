"""What runs inside a job: launcher, agent, training adapters. Imports no server part of synergyd."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from synergy_launch.pytorch.mesh import data_mesh as data_mesh
    from synergy_launch.pytorch.mesh import plan_mesh as plan_mesh
    from synergy_launch.pytorch.training import SynergyTask as SynergyTask

__all__ = ["SynergyTask", "data_mesh", "plan_mesh"]


def __getattr__(name: str) -> Any:
    """`from synergy_launch import SynergyTask` imports torch; importing `synergy_launch` alone does not."""
    if name == "SynergyTask":
        from synergy_launch.pytorch.training import SynergyTask

        return SynergyTask
    if name in ("data_mesh", "plan_mesh"):
        from synergy_launch.pytorch import mesh

        return getattr(mesh, name)
    raise AttributeError(f"module 'synergy_launch' has no attribute {name!r}")
