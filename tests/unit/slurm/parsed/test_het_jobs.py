"""Which component of a heterogeneous job is resized, and where it has room."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from synergy_core.records import Cluster, Directive, Job, Node, Shape

from synergyd.slurm.parsed import het_jobs
from synergyd.slurm.parsed.job_forms import slurm_name, slurm_name_of_whole_job, squeue_name
from synergyd.slurm.parsed.rows import JobRow, SlurmNodeRow
from synergyd.slurm.parsed.snapshot import SubmittedJob, cluster_from_rows, job_from_row
from tests.unit.slurm.fake_slurm import row


def parts(*gpus: int, **changes: Any) -> tuple[JobRow, ...]:
    """Components of job 10, with so many GPUs a node each."""
    return tuple(
        row(10 + n, het=True, het_job_id=10, het_offset=n, tres_per_node=f"gres:gpu:{g}" if g else "", **changes)
        for n, g in enumerate(gpus)
    )


def test_names() -> None:
    leader, second = parts(0, 2)
    assert (slurm_name(leader), slurm_name(second)) == ("", 11), "the leader's id names all components"
    assert (slurm_name_of_whole_job(leader), slurm_name_of_whole_job(second)) == (10, 10)
    assert squeue_name(second) == "10+1"


@pytest.mark.parametrize(
    ("gpus", "chosen", "why"),
    [
        ((0, 2), 11, ""),
        ((0, 0, 2), 12, ""),
        ((2, 0), 10, "its first component asks"),
        ((2, 2), 10, "2 of its components ask for GPUs"),
        ((0, 2, 2), 10, "2 of its components ask for GPUs"),
        ((0, 0), 10, "none of its components asks for GPUs"),
    ],
)
def test_one_component_with_gpus_is_resized(gpus: tuple[int, ...], chosen: int, why: str) -> None:
    components = parts(*gpus)
    assert het_jobs.group_components(reversed(components)) == {10: components}
    assert [r.job_id for r in components if het_jobs.is_resized(r, components)] == [chosen]
    assert het_jobs.resize_obstacle(components).startswith(why) and bool(het_jobs.resize_obstacle(components)) == bool(
        why
    )


def test_what_one_component_has_and_another_lacks_leaves_it_to_slurm() -> None:
    leader, second = parts(0, 2)
    assert "--no-requeue" in het_jobs.resize_obstacle((replace(leader, requeue=False), second))
    assert "time limits" in het_jobs.resize_obstacle((replace(leader, time_limit_s=60.0), second))
    assert "not all" in het_jobs.resize_obstacle((second,)) == het_jobs.resize_obstacle(())


def test_a_component_waits_for_what_its_leader_waits_for() -> None:
    leader, second = parts(0, 2)
    leader = replace(leader, dependency="afterok:7")
    assert het_jobs.with_leader(second, {10: (leader, second)}).dependency == "afterok:7"


def test_a_component_may_start_when_all_of_them_may() -> None:
    """The plugin puts off the leader alone."""
    leader, second = parts(0, 2)
    together = (replace(leader, eligible_s=130.0), replace(second, eligible_s=100.0))
    assert [het_jobs.with_leader(r, {10: together}).eligible_s for r in together] == [130.0, 130.0]
    runs = tuple(replace(r, eligible_s=None) for r in together)
    assert het_jobs.with_leader(runs[1], {10: runs}).eligible_s is None


def node(name: str, gpus: int = 4, **changes: Any) -> SlurmNodeRow:
    gres = f"gpu:{changes.pop('kind', 'a100')}:{gpus}" if gpus else ""
    return SlurmNodeRow(name, "idle", gres, "", (), ("main",), "", **changes)


def made(components: tuple[JobRow, ...], nodes: list[SlurmNodeRow]) -> Job:
    known = SubmittedJob(Directive(), "", Shape("", 1, 2), 1)
    job = job_from_row(components[1], known, {}, is_paused=False)
    return het_jobs.avoid_other_components(job, components[1], {10: components}, cluster_from_rows(nodes), nodes)


def test_it_leaves_nodes_for_the_other_components() -> None:
    components = parts(0, 2)
    three = [node(f"n{i}") for i in range(3)]
    assert made(components, three).max_nodes == 2
    assert made(components, [*three, node("c1", gpus=0)]).max_nodes == 3, "the other one has a node without GPUs"
    assert made(components, [*three, replace(node("c1", gpus=0), partitions=("cpu",))]).max_nodes == 2
    assert made(components, three[:1]).max_nodes == 1
    assert made(components, three).placed_by_slurm


def test_a_running_one_does_not_grow_onto_nodes_of_the_others() -> None:
    leader, second = parts(0, 2, state="RUNNING")
    components = replace(leader, node_names=("n0",)), replace(second, node_names=("n1",))
    job = made(components, [node(f"n{i}") for i in range(3)])
    assert (job.exclude, job.max_nodes) == (("n0",), 2)


def test_it_keeps_its_size_where_slurm_could_give_it_another_type() -> None:
    nodes = [node("n0"), node("n1", kind="h100")]
    leader, second = parts(0, 2)
    assert "several types" in made((leader, second), nodes).fixed
    assert made((leader, replace(second, tres_per_node="gres:gpu:h100:2")), nodes).fixed == ""


def test_other_jobs_are_as_they_were() -> None:
    plain = row(3)
    job = job_from_row(plain, SubmittedJob(Directive(), "", Shape("", 1, 2), 1), {}, is_paused=False)
    assert het_jobs.avoid_other_components(job, plain, {}, Cluster((Node("n1", "a100", 4),)), ()) == job
    assert het_jobs.with_leader(plain, {}) == plain and slurm_name_of_whole_job(plain) == 3
