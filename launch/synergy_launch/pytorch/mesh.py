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
# TorchTitan's names (torchtitan/distributed/parallel_dims.py): replicas of groups of ranks that share the parameters out
REPLICATE, SHARD = "dp_replicate", "dp_shard"


def plan_mesh(device_type: str = "cuda", shard: int = 0) -> DeviceMesh:
    """The mesh (dp, tp) of Synergy's plan, after the process group; where there is no plan, tp is 1.

    With `shard` data-parallel ranks, or as many as the plan says, the parameters are shared out over so many consecutive ones, and held
    by each such group (HSDP): then the mesh is (dp_replicate, dp_shard, tp). A `shard` of the script's own that does not divide dp, or is
    all of it, leaves them shared out over all. Ends with one line and code 2 where the plan has other degrees, or is for another number
    of processes.
    """
    dist.barrier()  # a rank that ends while another still connects would leave that one with a traceback
    with exit_on_error(int(os.environ.get("RANK", "0"))):
        world = dist.get_world_size()
        plan = AgentSettings.from_environment().plan or Plan(dp=world, global_batch=world)
        check_plan(check_degrees(plan, (TP, "shard"), "SYNERGY_PLAN_JSON"), world, "SYNERGY_PLAN_JSON")
        if plan.shard and plan.dp % plan.shard:
            what = f"shard={plan.shard} does not divide dp={plan.dp}"
            raise UsageError("SYNERGY_PLAN_JSON", what, "groups of as many ranks, or 0")
    each = plan.shard or shard
    if each < 1 or each >= plan.dp or plan.dp % each:
        return init_device_mesh(device_type, (plan.dp, plan.tp), mesh_dim_names=(DP, TP))
    return init_device_mesh(device_type, (plan.dp // each, each, plan.tp), mesh_dim_names=(REPLICATE, SHARD, TP))


def data_mesh(mesh: DeviceMesh) -> DeviceMesh:
    """The part of `plan_mesh` that fully_shard takes: over two dimensions it replicates over the first."""
    return mesh[DP] if DP in (mesh.mesh_dim_names or ()) else mesh[REPLICATE, SHARD]


def degrees(mesh: Any, world: int) -> tuple[int, int, int]:
    """(dp, tp, ranks of a group that shares out by itself or 0) of a script's own mesh; (world, 1, 0) where it has none. Raises
    UsageError."""
    if mesh is None:
        return world, 1, 0
    names = mesh.mesh_dim_names or ()
    if names not in ((DP, TP), (REPLICATE, SHARD, TP)) or mesh.size() != world:
        what = f"dimensions {', '.join(names) or 'without names'} of {mesh.size()} processes"
        right = f"it must be (dp, tp) or (dp_replicate, dp_shard, tp) of all {world}, as plan_mesh() makes it"
        raise UsageError("SynergyTask: mesh", what, right)
    tp = mesh[TP].size()
    return world // tp, tp, mesh[SHARD].size() if SHARD in names else 0
