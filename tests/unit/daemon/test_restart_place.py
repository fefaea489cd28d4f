"""What a requeue depends on is read anew just before it: a job that would not start again at once goes on as it is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from synergyd.control.resize.instructions import Requeue
from synergyd.control.resize.lifecycle import ResizeState
from synergyd.slurm.parsed.rows import PartitionRow
from tests.unit.daemon.daemon_world import Site, grow

UP = PartitionRow(name="main")


def acknowledged(site: Site) -> None:
    """The job has answered the request for its checkpoint, and would be requeued now."""
    site.report(1, checkpoint_requests=1)
    site.tick()


def reserve(site: Site) -> None:
    start = int(site.slurm.now_s)
    site.slurm.reserved = f"ReservationName=maint StartTime={start} EndTime={start + 999} Nodes=n1 Flags= TRES=(null)\n"


def take(site: Site) -> None:
    """Somebody starts on what was free of n1."""
    site.slurm.submit(2, None, state="RUNNING", node_names=("n1",), start_s=site.slurm.now_s)


OBSTACLES: dict[str, tuple[Callable[[Site], object], str]] = {
    "down": (lambda s: setattr(s.slurm, "partition_rows", (replace(UP, state="DOWN"),)), "main: it is DOWN"),
    "inactive": (lambda s: setattr(s.slurm, "partition_rows", (replace(UP, state="INACTIVE"),)), "it is INACTIVE"),
    "drain": (lambda s: setattr(s.slurm, "partition_rows", (replace(UP, state="DRAIN"),)), "main is DRAIN"),
    "node": (lambda s: s.slurm.states.update(n1="mixed+drain"), "n1 can't take jobs now"),
    "reservation": (reserve, "the reservation maint takes n1"),
    "taken": (take, "others have taken GPUs of n1 meanwhile"),
}


@pytest.mark.parametrize("name", OBSTACLES)
def test_a_job_that_would_not_start_again_goes_on_as_it_is(tmp_path: Path, name: str) -> None:
    site = Site(tmp_path)
    site.slurm.partition_rows = (UP,)
    grow(site)
    happens, why = OBSTACLES[name]
    happens(site)
    acknowledged(site)
    assert (site.life(1).state, site.slurm.requeued) == (ResizeState.RUNNING, [])
    assert "requeue refused, it goes on as it is: its place: " in site.story(1) and why in site.story(1)
    assert "synergy-" not in site.slurm.reserved, "its nodes are kept no longer"


def test_else_it_is_requeued_with_its_nodes_kept(site: Site) -> None:
    site.slurm.partition_rows = (UP,)
    grow(site)
    acknowledged(site)
    assert site.slurm.requeued == [(1, 0)] and "Nodes=n1 " in site.slurm.reserved


def test_jobs_put_off_for_a_third_one_do_not_wait_for_each_other(site: Site) -> None:
    grow(site)
    site.slurm.reserve("synergy-9", ["n1"], "root")
    acknowledged(site)
    life = site.life(1)
    assert (life.state, life.shielded_nodes, site.slurm.requeued) == (ResizeState.REQUEUING, ("n1",), [])
    beside = replace(site.daemon.controller.jobs[1], lifecycle=replace(life, job_id=2), job=None, report=None)
    site.daemon.controller.jobs[2] = beside
    check = site.daemon.actuator.check
    assert [check.conflict(Requeue(i, 0, shield=("n1",))) != "" for i in (1, 2)] == [True, True]
    site.slurm.unreserve("synergy-9")
    assert [check.conflict(Requeue(i, 0, shield=("n1",))) for i in (1, 2)] == ["", ""]


def test_a_slurmctld_that_has_just_started_is_waited_for(site: Site) -> None:
    grow(site)
    site.slurm.states["n1"] = "unknown"
    acknowledged(site)
    assert (site.life(1).state, site.slurm.requeued) == (ResizeState.REQUEUING, [])
    site.slurm.states["n1"] = "mixed"
    for _ in range(4):
        site.tick()
    assert site.slurm.requeued == [(1, 0)]


@pytest.mark.parametrize(
    ("asks", "requeued"),
    [
        (None, True),
        ({"tres_per_node": "gres:gpu:1"}, False),
        ({"tres_per_node": "gres:gpu:1", "partition": "other"}, True),
        ({"tres_per_node": "gres:gpu:1", "req_nodes": ("n2",)}, True),
        ({"tres_per_node": "gres:gpu:1", "priority": 0}, True),
        ({"tres_per_node": ""}, True),
    ],
)
def test_where_its_nodes_can_not_be_kept_nobody_may_wait_for_them(
    site: Site, asks: dict[str, object] | None, requeued: bool
) -> None:
    site.slurm.refuse = {"reserve": ("Access/permission denied", False)}
    grow(site)
    if asks is not None:
        site.slurm.submit(2, None, **asks)
        site.slurm.full = True
    acknowledged(site)
    assert bool(site.slurm.requeued) == requeued
    told = "another job waits for GPUs there, and they can't be kept (Access/permission denied)"
    assert (told in site.story(1)) == (not requeued)


def test_one_job_at_a_time_restarts_on_a_node(site: Site) -> None:
    """The reservation of one would keep the other from starting."""
    grow(site)
    site.slurm.reserve("synergy-2", ["n1"], "root")
    acknowledged(site)
    assert (
        site.slurm.requeued == []
        and "Requeue put off: its place: n1 kept for a job that is started again" in site.story(1)
    )
    site.slurm.unreserve("synergy-2")
    for _ in range(4):
        site.tick()
    assert site.slurm.requeued == [(1, 0)]


def test_what_a_daemon_before_left_is_deleted_at_the_first_epoch(site: Site) -> None:
    grow(site)
    acknowledged(site)
    assert "synergy-1 " in site.slurm.reserved
    site.slurm.reserved += site.slurm.reserved.replace("synergy-1 ", "synergy-77 ")
    site.start()
    site.epoch()
    assert "synergy-77" not in site.slurm.reserved and "synergy-1 " in site.slurm.reserved, "job 1 is on its way still"


def test_partitions_are_read_each_epoch_and_the_cluster_s_defaults_seldom(site: Site) -> None:
    reads: list[bool] = []
    read = site.slurm.partitions
    site.slurm.partitions = lambda *, again=True: reads.append(again) or read()  # type: ignore[func-returns-value, method-assign]
    site.slurm.partition_rows = (UP,)
    for _ in range(5):
        site.epoch(60)
    assert len(reads) == 5 and reads.count(True) <= 1
    site.running(1, "n1")
    site.slurm.partition_rows = (replace(UP, state="DOWN"),)
    assert "it is DOWN" in site.epoch(60)[1].why
