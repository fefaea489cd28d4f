"""SynergyTask: performance and memory model, plan search, statistical efficiency, learning from reports."""

from synergyd.task.hardware import GpuFigures, figures
from synergyd.task.learning import inherited, update_profile
from synergyd.task.model_spec import from_megatron_args, load_model
from synergyd.task.plan_table import PlanTable, plan_table
from synergyd.task.synergy_task import SynergyTask

__all__ = [
    "GpuFigures",
    "PlanTable",
    "SynergyTask",
    "figures",
    "from_megatron_args",
    "inherited",
    "load_model",
    "plan_table",
    "update_profile",
]
