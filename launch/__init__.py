"""What runs inside a job: launcher, agent, training adapters. Imports no server part of synergyd."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from launch.pytorch import SynergyTask as SynergyTask

__all__ = ["SynergyTask"]


def __getattr__(name: str) -> Any:
    """`from launch import SynergyTask` imports torch; importing `launch` alone does not."""
    if name == "SynergyTask":
        from launch.pytorch import SynergyTask

        return SynergyTask
    raise AttributeError(f"module 'launch' has no attribute {name!r}")
