"""Jobs that would wait while nodes are powered down: left to Slurm at the size asked for, which wakes nodes for them. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from synergyd.records import Action, Decision, Node
from synergyd.scheduler.problem.gpu_limits import Allowance, beyond_own
from synergyd.scheduler.problem.records import Allocation, JobRequest, Problem
from synergyd.words import shape_words


def with_wakes(
    decisions: Iterable[Decision], problem: Problem, allocation: Allocation, nodes: Iterable[Node]
) -> tuple[Decision, ...]:
    """The decisions; a job that got no GPUs starts on nodes of Slurm's choice where powered-down ones have room for the size
    asked for. Each such node is counted on for one job's GPUs only."""
    decisions = tuple(decisions)
    asleep = {node.name: node.gpus for node in nodes if node.wakeable}
    if not asleep:
        return decisions
    requests = {request.job_id: request for request in problem.jobs}
    allowance = Allowance(problem, allocation.choice)
    found = []
    for decision in decisions:
        job = requests.get(decision.job_id)
        if job is not None and decision.action is Action.WAIT and job.current is None and job.asked is not None:
            names = _room(job, problem, asleep)
            if names and not beyond_own(job, job.asked) and allowance.exceeded(job, None, job.asked) is None:
                allowance.change(job, None, job.asked)
                cell = job.cells[job.asked]
                for name in names:
                    asleep[name] -= cell.shape.gpus_per_node
                why = f"Starts on {shape_words(cell.shape)} on nodes of Slurm's choice: no GPUs are free, and Slurm can wake "
                why += f"{', '.join(names[:3])}{' and more' if len(names) > 3 else ''}."
                decision = replace(decision, action=Action.START, cell=cell, node_names=(), why=why)
        found.append(decision)
    return tuple(found)


def leak_words(nodes: Iterable[Node]) -> str:
    """A sentence for jobs that wait, a blank before it; "" where Slurm counts no GPUs as in use that no job holds."""
    leaked = [f"{node.leaked} of {node.name}" for node in nodes if node.leaked]
    if not leaked:
        return ""
    more = f" and of {len(leaked) - 3} more nodes" if len(leaked) > 3 else ""
    return f" Slurm counts GPUs as in use that no job holds, and gives them to nobody: {', '.join(leaked[:3])}{more}."


def _room(job: JobRequest, problem: Problem, asleep: dict[str, int]) -> list[str]:
    """Powered-down nodes for the size asked for; empty where there are too few."""
    shape = job.cells[job.asked or 0].shape
    names = [
        node.name
        for node in problem.nodes
        if asleep.get(node.name, 0) >= shape.gpus_per_node
        and node.gpu_type == shape.gpu_type
        and node.admits(job.node_filter)
    ]
    return names[: shape.nodes] if len(names) >= shape.nodes else []
