"""PyTorch Lightning's Trainer: `from synergy_launch.lightning import SynergyCallback`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from synergy_launch.lightning.callback import SynergyCallback as SynergyCallback

__all__ = ["SynergyCallback"]


def __getattr__(name: str) -> Any:
    """Import the name lazily: importing it imports Lightning; importing this folder's other modules does not."""
    if name == "SynergyCallback":
        from synergy_launch.lightning.callback import SynergyCallback

        return SynergyCallback
    raise AttributeError(f"module 'synergy_launch.lightning' has no attribute {name!r}")
