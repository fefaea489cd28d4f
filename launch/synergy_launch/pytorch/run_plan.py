"""The plan of a SynergyTask's run: Synergy's where there is one and the script's mesh is cut as it says."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from synergy_core.errors import UsageError
from synergy_core.records import Plan

from synergy_launch.agent.settings import AgentSettings, at_own_batch, check_degrees, check_plan
from synergy_launch.batch.tuner import fit_batch
from synergy_launch.pytorch.mesh import Degrees

_WHERE = "SYNERGY_PLAN_JSON"


def run_plan(settings: AgentSettings, mesh: Degrees, global_batch: int, micro_batch: int | None) -> Plan:
    """Return the launcher's plan, else one of the script's `mesh` and batch.

    `micro_batch` None: the global batch over the replicas. Raises UsageError.
    """
    launcher_plan = settings.plan
    if launcher_plan is None:
        micro = micro_batch or max(1, global_batch // mesh.dp)
        plan = Plan(mesh.tp, mesh.pp, mesh.dp, cp=mesh.cp, global_batch=global_batch, micro_batch=micro)
        return check_plan(plan, plan.gpus)
    groups = (
        0 if launcher_plan.shard == launcher_plan.dp * launcher_plan.cp else launcher_plan.shard
    )  # one of all ranks is none, as in plan_mesh
    if mesh == Degrees(mesh.dp) and (launcher_plan.tp != 1 or launcher_plan.pp != 1):
        what = f"tp={launcher_plan.tp} pp={launcher_plan.pp} was given to a plain PyTorch job"
        raise UsageError(_WHERE, what, "such a job can change dp only")
    split = ["tp", *(name for name in ("pp", "cp") if getattr(mesh, name) > 1), *(["shard"] if mesh.shard else [])]
    check_degrees(replace(launcher_plan, shard=groups), tuple(split), _WHERE)
    planned = Degrees(
        launcher_plan.dp,
        launcher_plan.tp,
        groups if launcher_plan.shard else mesh.shard,
        launcher_plan.pp,
        launcher_plan.cp,
    )
    if planned != mesh:
        more = [name for name in ("pp", "cp") if getattr(mesh, name) > 1 or getattr(launcher_plan, name) > 1]
        mesh_degrees, plan_degrees = (
            _format_degrees(of, more) for of in (mesh, planned._replace(shard=launcher_plan.shard))
        )
        raise UsageError(
            "SynergyTask: mesh", f"its mesh has {mesh_degrees}, the plan {plan_degrees}", "plan_mesh() makes the plan's"
        )
    return at_own_batch(launcher_plan, global_batch, "SynergyTask") if settings.own_batch else launcher_plan


def resumed_plan(plan: Plan, settings: AgentSettings, batch: Any) -> Plan:
    """Return `plan` with a checkpoint's (global, micro) `batch`, as far as it divides there.

    The batch is that of a run that chooses its own, which stands nowhere else. For other runs, return `plan` itself.
    """
    chooses = settings.plan is None and settings.batch_range is not None
    if not chooses or not isinstance(batch, list) or len(batch) != 2:
        return plan
    return fit_batch(plan, int(batch[0]), int(batch[1])) or plan


def _format_degrees(of: Degrees, more: list[str]) -> str:
    return " ".join(f"{name}={getattr(of, name)}" for name in (*more, "dp", "tp", "shard"))
