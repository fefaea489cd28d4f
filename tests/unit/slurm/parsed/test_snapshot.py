from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from synergy_core.job_report import Report
from synergy_core.node_needs import Room
from synergy_core.records import Directive, JobState, Plan, Shape

from synergyd.control.controller import Controller
from synergyd.control.resize.events import JobObserved, Observed, ReportsReceived
from synergyd.control.resize.lifecycle import ResizeTimes
from synergyd.control.state.size_changes import SizeChanges
from synergyd.slurm.parsed.rows import PartitionRow, SlurmNodeRow
from synergyd.slurm.parsed.snapshot import (
    SubmittedJob,
    cluster_from_rows,
    job_from_row,
    leaks,
    node_from_row,
    nodes_from_row,
    not_resizable,
    shape_from_row,
    state_from_row,
    with_leaks,
)
from tests.unit.slurm.fake_slurm import row

NODE = SlurmNodeRow("n1", "idle", "gpu:a100:4", "gpu:a100:0(IDX:N/A)", ("a100",), ("main",), "")
KNOWN = SubmittedJob(Directive(), "", Shape("a100", 1, 2), 8)


@pytest.mark.parametrize(
    "text, state",
    [
        ("PENDING", JobState.PENDING),
        ("RUNNING", JobState.RUNNING),
        ("CONFIGURING", JobState.RUNNING),
        ("COMPLETING", JobState.COMPLETING),
        ("STAGE_OUT", JobState.COMPLETING),
        ("SUSPENDED", JobState.SUSPENDED),
        ("REQUEUED", JobState.PENDING),
        ("REQUEUE_HOLD", JobState.PENDING),
        ("SPECIAL_EXIT", JobState.PENDING),
        ("COMPLETED", JobState.DONE),
        ("CANCELLED", JobState.DONE),
        ("CANCELLED+", JobState.DONE),
        ("OUT_OF_MEMORY", JobState.DONE),
        ("NODE_FAIL", JobState.DONE),
        ("running", JobState.RUNNING),
    ],
)
def test_states(text: str, state: JobState) -> None:
    assert state_from_row(row(state=text)) is state


def test_a_state_of_a_newer_slurm_is_neither_gone_nor_writable() -> None:
    assert state_from_row(row(state="TELEPORTING")) is JobState.COMPLETING


@pytest.mark.parametrize(
    "state", ["idle", "mixed", "allocated", "completing", "mixed+completing", "idle+cloud", "planned"]
)
def test_nodes_that_take_jobs(state: str) -> None:
    assert node_from_row(replace(NODE, state=state)).up


@pytest.mark.parametrize(
    "state",
    ["down", "DOWN", "idle+drain", "mixed+drain", "draining", "drained", "fail", "failing", "unknown",
     "idle+not_responding", "idle*", "idle*+cloud", "allocated*", "reboot_issued", "idle+powered_down", "idle~", "idle#", "inval", "future",
     "idle$", "blocked"],
)  # fmt: skip
def test_nodes_that_do_not(state: str) -> None:
    assert not node_from_row(replace(NODE, state=state)).up


@pytest.mark.parametrize(
    "gres, used, found",
    [
        ("gpu:a100:4", "gpu:a100:3(IDX:0-2)", ("a100", 4, 3)),
        ("gpu:4", "gpu:2", ("gpu", 4, 2)),
        ("gpu:a100:4", "gpu:a100:9", ("a100", 4, 4)),
        ("gpu:a100:4(S:0-1),nic:2", "gpu:a100:1(IDX:3),nic:2", ("a100", 4, 1)),
        ("gpu:a100:4,gpu:v100:2", "gpu:a100:1(IDX:0),gpu:v100:2(IDX:4-5)", ("a100", 4, 1)),  # not the other type's
        ("(null)", "gpu:0", ("gpu", 0, 0)),
    ],
)
def test_gpus_of_a_node(gres: str, used: str, found: tuple[str, int, int]) -> None:
    node = node_from_row(replace(NODE, gres=gres, gres_used=used))
    assert (node.gpu_type, node.gpus, node.gpus_used) == found


def test_a_cluster_is_the_nodes_with_gpus_of_the_partitions() -> None:
    rows = [NODE, replace(NODE, name="n2", partitions=("dev", "main")), replace(NODE, name="cpu", gres="(null)")]
    rows.append(replace(NODE, name="n3", partitions=("other",)))
    assert [n.name for n in cluster_from_rows(rows).nodes] == ["n1", "n2", "n3"]
    assert [n.name for n in cluster_from_rows(rows, ("main",)).nodes] == ["n1", "n2"]


def test_the_shape_of_a_running_job_has_its_nodes_type() -> None:
    types = {"n1": "h100"}
    assert shape_from_row(row(node_names=("n1", "n2"), num_nodes=2), types) == Shape("h100", 2, 2)
    assert shape_from_row(row(node_names=("gone",), tres_per_node="gres:gpu:a100:2"), types) == Shape("a100", 1, 2)
    assert shape_from_row(row(), types) == Shape("", 1, 2)


@pytest.mark.parametrize(
    "changes, why",
    [
        ({}, ""),
        ({"array": True, "array_job_id": 1, "array_task": "3"}, ""),
        ({"batch": False}, "no batch job"),
        ({"requeue": False}, "--no-requeue"),
        ({"tres_per_node": ""}, "ask by node"),
        ({"tres_per_node": "gres:nic:1"}, "ask by node"),
        ({"tres_other": "gres:gpu:8"}, "ask by node"),  # beside GPUs by node: an update of one contradicts the other
        ({"tres_other": "gres:nic:8"}, ""),
        ({"num_tasks": 2}, "2 tasks on 1 nodes"),
        ({"num_tasks": 2, "num_nodes": 2}, ""),
    ],
)
def test_what_may_not_be_resized(changes: dict[str, Any], why: str) -> None:
    found = not_resizable(row(**changes), Directive())
    assert why in found and bool(found) == bool(why)


def test_the_directive_may_forbid_it() -> None:
    assert "resize=no" in not_resizable(row(), Directive(resize=False))


def test_a_pending_job() -> None:
    job = job_from_row(row(eligible_s=50.0, start_s=60.0, priority=0), KNOWN, {}, is_paused=False)
    assert (job.state, job.held, job.begin_s, job.start_s, job.fixed) == (JobState.PENDING, True, 50.0, None, "")


def test_a_running_job_needs_an_agent_that_has_reported() -> None:
    running = row(state="RUNNING", start_s=5.0, eligible_s=1.0, node_names=("n1",), priority=0)
    job = job_from_row(running, KNOWN, {"n1": "a100"}, is_paused=True)
    controller = Controller(ResizeTimes(), 60.0, size_changes=SizeChanges(assumed=True))
    controller.handle(JobObserved(job.job_id, 0.0, Observed("RUNNING", job.restarts)), 10.0)
    assert "has not reported" in controller.decidable_job(job, 10.0).fixed and not job.held and job.paused
    assert (job.start_s, job.begin_s) == (5.0, None)
    controller.handle(
        ReportsReceived(
            (Report(job.job_id, job.restarts, 1, step_s=0.5, plan=Plan(dp=1, global_batch=8)),), job.restarts
        ),
        11.0,
    )
    assert controller.decidable_job(job, 12.0).fixed == ""


def test_a_typed_request_keeps_its_type() -> None:
    wide = replace(KNOWN, directive=Directive(gpu_types=("h100", "a100")))
    job = job_from_row(row(tres_per_node="gres:gpu:a100:2"), wide, {}, is_paused=False)
    assert job.directive is not None and job.directive.gpu_types == ("a100",)
    job = job_from_row(row(), wide, {}, is_paused=False)
    assert job.directive is not None and job.directive.gpu_types == ("h100", "a100")


def test_a_job_with_a_wrong_directive_is_shown_with_its_error() -> None:
    job = job_from_row(row(), replace(KNOWN, directive=None, error="line 2: no"), {}, is_paused=False)
    assert (job.directive, job.directive_error, job.fixed) == (None, "line 2: no", "")


def test_an_untyped_request_takes_the_type_it_runs_on() -> None:
    untyped = replace(KNOWN, requested_shape=Shape("", 4, 2))
    job = job_from_row(row(state="RUNNING", node_names=("n1",)), untyped, {"n1": "h100"}, is_paused=False)
    assert job.asked == Shape("h100", 4, 2)


def test_a_node_is_seen_once_for_each_of_its_types() -> None:
    gres, used = "gpu:a100:2,gpu:1g.10gb:7,nic:2", "gpu:a100:1(IDX:0),gpu:1g.10gb:0(IDX:N/A),nic:1"
    row = replace(
        NODE, gres=gres, gres_used=used, cpus=64, cpus_alloc=8, memory_mib=1000, memory_alloc_mib=10, threads_per_core=2
    )
    first, second = nodes_from_row(row)
    assert (first.gpu_type, first.gpus, first.gpus_used) == ("a100", 2, 1)
    assert (second.gpu_type, second.gpus, second.gpus_used) == ("1g.10gb", 7, 0)
    assert first.room == second.room == Room(64, 1000, (("nic", 2),))
    assert first.used == second.used == Room(8, 10, (("nic", 1),))
    assert (first.threads_per_core, nodes_from_row(row, whole_cores=False)[0].threads_per_core) == (2, 1)
    cluster = cluster_from_rows([row, replace(NODE, name="n2")])
    assert cluster.keys == {("n1", "1g.10gb"): "n1:1g.10gb"}
    assert cluster.node("n1", "1g.10gb") == second and cluster.node("n1", "a100") == first == cluster.by_name["n1"]
    assert nodes_from_row(NODE)[0].room is None, "nothing said of its CPUs: they are plenty"


def test_a_job_in_several_partitions_goes_by_those_that_take_it() -> None:
    limits = {
        "main": PartitionRow(name="main", max_nodes=4),
        "small": PartitionRow(name="small", max_nodes=1),
        "shut": PartitionRow(name="shut", state="DOWN"),
        "theirs": PartitionRow(name="theirs", allow_accounts=("chem",)),
    }
    asked = replace(KNOWN, requested_shape=Shape("a100", 2, 2), nodelist=("n1",), excluded=("n3", "n2"))
    job = job_from_row(
        row(partition="main,small,shut,theirs", account="bio"), asked, {}, is_paused=False, partitions=limits
    )
    assert (job.open_partitions, job.max_nodes) == ("main", 4)
    assert (job.nodelist, job.exclude) == (("n1",), ("n2", "n3"))
    job = job_from_row(row(partition="small,shut"), asked, {}, is_paused=False, partitions=limits)
    assert job.directive is None and "small: MaxNodes=1; shut: it is DOWN" in job.directive_error
    assert job_from_row(row(partition="new"), asked, {}, is_paused=False, partitions=limits).open_partitions == "new"


def test_gpus_in_use_that_no_job_holds() -> None:
    used = replace(NODE, gres_used="gpu:a100:4(IDX:0-3)")
    held, done = row(1, state="COMPLETING", node_names=("n1",)), row(2, state="NODE_FAIL", node_names=("n1",))
    assert leaks([used], [done]) == {"n1": 4}
    assert leaks([used], [held]) == leaks([NODE], []) == {}
    assert with_leaks(cluster_from_rows([used]), {"n1": 4}).nodes[0].leaked == 4
