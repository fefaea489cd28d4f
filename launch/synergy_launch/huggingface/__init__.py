"""Hugging Face's Trainer: `from synergy_launch.huggingface import SynergyCallback, apply_plan, resume_from`.

A loop of Accelerate's: `from synergy_launch.huggingface import AcceleratedTask`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from synergy_launch.huggingface.accelerated import AcceleratedTask as AcceleratedTask
    from synergy_launch.huggingface.trainer import SynergyCallback as SynergyCallback
    from synergy_launch.huggingface.trainer import apply_plan as apply_plan
    from synergy_launch.huggingface.trainer import resume_from as resume_from

__all__ = ["AcceleratedTask", "SynergyCallback", "apply_plan", "resume_from"]


def __getattr__(name: str) -> Any:
    """Import a name lazily.

    Importing the names imports torch, and transformers for Trainer's; importing this folder's other modules does not.
    """
    if name == "AcceleratedTask":
        from synergy_launch.huggingface.accelerated import AcceleratedTask

        return AcceleratedTask
    if name in __all__:
        from synergy_launch.huggingface import trainer

        return getattr(trainer, name)
    raise AttributeError(f"module 'synergy_launch.huggingface' has no attribute {name!r}")
