"""The device mesh of a plan: ranks by data-parallel replica, then by tensor-parallel part."""

from __future__ import annotations

import os
from typing import Any

import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from synergy_launch.agent.settings import AgentSettings, check_degrees, check_plan
from synergy_launch.agent.user_errors import exit_on_error
from synergyd.errors import UsageError
from synergyd.records import Plan

DP, TP = "dp", "tp"


def plan_mesh(device_type: str = "cuda") -> DeviceMesh:
    """The mesh (dp, tp) of Synergy's plan, after the process group; where there is no plan, tp is 1.

    Ends with one line and code 2 where the plan has other degrees, or is for another number of processes.
    """
    dist.barrier()  # a rank that ends while another still connects would leave that one with a traceback
    with exit_on_error(int(os.environ.get("RANK", "0"))):
        world = dist.get_world_size()
        plan = AgentSettings.from_environment().plan or Plan(dp=world, global_batch=world)
        check_plan(check_degrees(plan, (TP,), "SYNERGY_PLAN_JSON"), world, "SYNERGY_PLAN_JSON")
    return init_device_mesh(device_type, (plan.dp, plan.tp), mesh_dim_names=(DP, TP))


def degrees(mesh: Any, world: int) -> tuple[int, int]:
    """(dp, tp) of a script's own mesh; (world, 1) where it has none. Raises UsageError."""
    if mesh is None:
        return world, 1
    names = mesh.mesh_dim_names or ()
    if names != (DP, TP) or mesh.size() != world:
        what = f"dimensions {', '.join(names) or 'without names'} of {mesh.size()} processes"
        raise UsageError("SynergyTask: mesh", what, f"it must be (dp, tp) of all {world}, as plan_mesh() makes it")
    return mesh[DP].size(), mesh[TP].size()
