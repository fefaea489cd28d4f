"""The device mesh of a plan: ranks by pipeline stage, by data-parallel replica, by part of the sequence, then by tensor-parallel part."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch.distributed as dist
from synergy_core.errors import UsageError
from synergy_core.records import Plan
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from synergy_launch.agent.settings import AgentSettings, check_degrees, check_plan
from synergy_launch.agent.user_errors import exit_on_error

PP, DP, CP, TP = "pp", "dp", "cp", "tp"
# TorchTitan's names (torchtitan/distributed/parallel_dims.py): replicas of groups of ranks that share the parameters out
REPLICATE, SHARD = "dp_replicate", "dp_shard"
_SHAPES = tuple((*pp, *dp, *cp, TP) for pp in ((), (PP,)) for dp in ((DP,), (REPLICATE, SHARD)) for cp in ((), (CP,)))


class Degrees(NamedTuple):
    """The way in which a mesh cuts the ranks.

    `shard`: the number of the dp * cp ranks in a group that shares out by itself, 0 where all do.
    """

    dp: int
    tp: int = 1
    shard: int = 0
    pp: int = 1
    cp: int = 1


def plan_mesh(device_type: str = "cuda", shard: int = 0, *, pp: bool = False, cp: bool = False) -> DeviceMesh:
    """Return the mesh (dp, tp) of Synergy's plan, after the process group; where there is no plan, tp is 1.

    `pp`, `cp`: the script can cut its model into pipeline stages, and its sequences into parts. Where the plan has them too the mesh is
    (pp, dp, cp, tp), without those of 1. With `shard` ranks of dp x cp, or as many as the plan says, the parameters are shared out over
    so many consecutive ones, and held by each such group (HSDP): then dp is two dimensions, dp_replicate and dp_shard. A `shard` of the
    script's own that does not divide dp x cp, is no multiple of cp, or is all of it, leaves them shared out over all. Ends with one line
    and code 2 where the plan has other degrees, or is for another number of processes.
    """
    dist.barrier()  # a rank that ends while another still connects would leave that one with a traceback
    with exit_on_error():
        world = dist.get_world_size()
        plan = AgentSettings.from_environment().plan or Plan(dp=world, global_batch=world)
        takes = (TP, *([PP] if pp else []), *([CP] if cp else []), "shard")
        check_plan(check_degrees(plan, takes, "SYNERGY_PLAN_JSON"), world, "SYNERGY_PLAN_JSON")
        _check_groups(plan)
    each, ranks = plan.shard or shard, plan.dp * plan.cp
    dims = {PP: plan.pp} if plan.pp > 1 else {}
    if each < 1 or each >= ranks or ranks % each or each % plan.cp:
        dims |= {DP: plan.dp}
    else:
        dims |= {REPLICATE: ranks // each, SHARD: each // plan.cp}
    dims |= {CP: plan.cp, TP: plan.tp} if plan.cp > 1 else {TP: plan.tp}
    mesh = init_device_mesh(device_type, tuple(dims.values()), mesh_dim_names=tuple(dims))
    if plan.cp > 1:
        data_mesh(mesh)  # its flattened dimension is a group of ranks, which all of them have to make
    dist.barrier()  # as above: a use that this mesh does not allow ends a rank next
    return mesh


def _check_groups(plan: Plan) -> None:
    what = ""
    if plan.shard % plan.cp:
        what = f"shard={plan.shard} parts the cp={plan.cp} ranks of a sequence"
    elif plan.shard and plan.dp * plan.cp % plan.shard:
        what = f"shard={plan.shard} does not divide dp={plan.dp}{f' x cp={plan.cp}' * (plan.cp > 1)}"
    if what:
        raise UsageError("SYNERGY_PLAN_JSON", what, "groups of as many ranks, or 0")


def data_mesh(mesh: DeviceMesh) -> DeviceMesh:
    """Return the part of `plan_mesh` that fully_shard takes: over two dimensions it replicates over the first.

    Ranks of one cp group hold the same parameters for parts of the same samples, so cp is one dimension with what shares out (as
    TorchTitan's dp_shard_cp).
    """
    names = mesh.mesh_dim_names or ()
    shared = DP if DP in names else SHARD
    if CP in names:
        flat = mesh[shared, CP]._flatten(f"{shared}_{CP}")
        if shared == DP:
            return flat
        together = getattr(DeviceMesh, "_concatenate", None)  # an older torch finds the flat dimension by name
        return together([mesh[REPLICATE], flat]) if together is not None else mesh[REPLICATE, f"{shared}_{CP}"]
    return mesh[DP] if shared == DP else mesh[REPLICATE, SHARD]


def dimension_size(mesh: DeviceMesh | None, name: str) -> int:
    """Return the ranks along the dimension `name`; 1 where the mesh has none of that name."""
    return mesh[name].size() if mesh is not None and name in (mesh.mesh_dim_names or ()) else 1


def dimension_rank(mesh: DeviceMesh | None, name: str) -> int:
    """Return this rank's number along the dimension `name`; 0 where the mesh has none of that name."""
    return mesh.get_local_rank(name) if mesh is not None and name in (mesh.mesh_dim_names or ()) else 0


def mesh_degrees(mesh: Any, world: int) -> Degrees:
    """Return the degrees of a script's own mesh; dp alone where it has none. Raises UsageError."""
    if mesh is None:
        return Degrees(world)
    names = mesh.mesh_dim_names or ()
    if names not in _SHAPES or mesh.size() != world:
        what = f"dimensions {', '.join(names) or 'without names'} of {mesh.size()} processes"
        right = f"it must be (dp, tp) or (dp_replicate, dp_shard, tp) of all {world}, as plan_mesh() makes it, pp before and cp after dp"
        raise UsageError("SynergyTask: mesh", what, right)
    tp, pp, cp = (dimension_size(mesh, name) for name in (TP, PP, CP))
    return Degrees(world // (tp * pp * cp), tp, dimension_size(mesh, SHARD) * cp if SHARD in names else 0, pp, cp)


def data_rank(rank: int, of: Degrees) -> int:
    """Return the data-parallel replica that `rank` belongs to: its ranks see the same samples."""
    return rank // (of.tp * of.cp) % of.dp
