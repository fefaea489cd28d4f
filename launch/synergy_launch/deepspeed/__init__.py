"""DeepSpeed's engine: `from synergy_launch.deepspeed import DeepSpeedTask, with_plan`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from synergy_launch.deepspeed.batch_config import with_plan as with_plan
    from synergy_launch.deepspeed.training import DeepSpeedTask as DeepSpeedTask

__all__ = ["DeepSpeedTask", "with_plan"]


def __getattr__(name: str) -> Any:
    """Import a name lazily: importing the names imports torch; importing this folder's other modules does not."""
    if name == "DeepSpeedTask":
        from synergy_launch.deepspeed.training import DeepSpeedTask

        return DeepSpeedTask
    if name == "with_plan":
        from synergy_launch.deepspeed.batch_config import with_plan

        return with_plan
    raise AttributeError(f"module 'synergy_launch.deepspeed' has no attribute {name!r}")
