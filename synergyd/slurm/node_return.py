"""Nodes that a running job gives back to Slurm: `scontrol update ReqNodeList=` on stock Slurm, 22.05 and later."""

from __future__ import annotations

from collections.abc import Sequence

from synergyd.slurm.client import SlurmWriter
from synergyd.slurm.directives.later_steps import step_after_training
from synergyd.slurm.parsed.expanders import JoinedNodes, find_expanders
from synergyd.slurm.parsed.job_forms import slurm_name
from synergyd.slurm.parsed.rows import JobRow


def obstacle_to_leaving(slurm: SlurmWriter, row: JobRow) -> str:
    """Return why nodes can't leave the job while it runs, or "" if they can. Raises SlurmError."""
    if row.het_job_id:
        return "Slurm changes no component of a heterogeneous job while it runs"
    if (wait_s := slurm.step_wait_s()) > 0:
        return f"slurm.conf has WaitTime={wait_s:g}: srun would end the step so long after the first node has left it"
    line = step_after_training(slurm.batch_script(row.job_id) or "")
    return "" if line is None else f"line {line[0]} of its script would not work on fewer nodes: {line[1]}"


def return_nodes(
    slurm: SlurmWriter, row: JobRow, nodes_to_keep: Sequence[str], joined: Sequence[str] = ()
) -> tuple[str, bool] | None:
    """Give all nodes of a running job back but `nodes_to_keep`. Return None once Slurm has them, else (why not, transient).

    `joined`: nodes that it may have beyond its own allocation. An allocation beside its own ends by itself when no node of it is kept.
    Raises SlurmError.
    """
    beyond = JoinedNodes(restarts=row.restarts, names=frozenset(joined))
    beside = find_expanders(slurm.jobs_of_user(row.uid), {row.job_id: beyond}).get(row.job_id, ()) if joined else ()
    for each in (row, *beside):
        keeps = [n for n in each.node_names if n in nodes_to_keep]
        if keeps and len(keeps) < len(each.node_names):
            slurm.keep_nodes(slurm_name(each), keeps)
    after = (slurm.job(row.job_id), *(slurm.job(each.job_id) for each in beside))
    if nodes_left := sorted(n for each in after if each is not None for n in each.node_names if n not in nodes_to_keep):
        return f"it still has {', '.join(nodes_left[:3])}", True
    return None
