"""A node whose launcher joins the run of a job of one node, over real sockets; Slurm is not asked."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
from synergy_core.records import Plan
from synergy_core.wire.plan_file import PlanFile
from synergy_core.wire.report import ReportAnswer
from synergy_launch.launcher import in_place
from synergy_launch.launcher.failures.plan_guard import PlanGuard
from synergy_launch.launcher.group.launcher_group import LauncherGroup
from synergy_launch.launcher.in_place import Grow, Restarts
from synergy_launch.launcher.job.allocation import JobAllocation
from synergy_launch.launcher.more_nodes import Membership, MoreNodes

from tests.unit.launch.launcher.group.test_launcher_group import SECRET, Seals, port, seals

__all__ = ["port", "seals"]  # fixtures
FIRST = JobAllocation(job_id=9, restarts=0, nodes=("n1",), node_rank=0, gpus=2, in_step=True, leader=True, step="0")
NARROW, WIDE = Plan(dp=2, global_batch=8), Plan(dp=4, global_batch=8)
JOIN = ReportAnswer(WIDE, 1, nodes=("n1", "n2"), joins=True)
RUN = ReportAnswer(WIDE, 2, nodes=("n1", "n2"))


class Allocation(MoreNodes):
    """One that Slurm has given, or not: `refusal`."""

    def __init__(self, number: int, names: tuple[str, ...], member: Membership) -> None:
        self.number, self.names, self.member = number, names, member
        self.refusal, self.is_complete, self.used, self.ended = "", False, False, ""

    @property
    def is_over(self) -> bool:
        return bool(self.ended)

    @property
    def is_granted(self) -> bool:
        return True

    def poll(self, connected: frozenset[str]) -> None:
        self.is_complete = self.is_complete or set(self.names) <= connected

    def use(self) -> None:
        self.used = True

    def end(self, why: str) -> None:
        self.ended = why


class Job:
    """The first node's restarts, and those of a node that joins."""

    def __init__(self) -> None:
        self.given: list[Allocation] = []
        self.guard = PlanGuard(FIRST, PlanFile(9, NARROW), None)
        grow = Grow(lambda: LauncherGroup(FIRST, "127.0.0.1", 1000, SECRET), self._start)
        self.first = Restarts(FIRST, None, grow=grow)
        self.first.look({"state": "training", "step": 100, "checkpoint_step": 100})
        self.open: list[LauncherGroup] = []

    def _start(self, number: int, names: tuple[str, ...], member: Membership) -> MoreNodes:
        self.given.append(Allocation(number, names, member))
        return self.given[-1]

    def joining(self) -> tuple[Restarts, PlanGuard]:
        """The launcher that starts on the node that was asked for last."""
        member = self.given[-1].member
        there = JobAllocation(
            job_id=9, restarts=0, nodes=member.members, node_rank=1, gpus=2, in_step=True, leader=False, step="0"
        )
        group = LauncherGroup(there, "127.0.0.1", 1000, SECRET)
        self.open.append(group)
        return Restarts(there, None, group=group, member=member), PlanGuard(there, PlanFile(9, NARROW), None)

    def until(self, true: Callable[[], object], *others: Restarts) -> None:
        end = time.monotonic() + 60
        while not true():
            assert time.monotonic() < end
            for each in (self.first, *others):
                each.poll()
            time.sleep(0.01)


@pytest.fixture
def job(seals: Seals, port: int) -> Iterator[Job]:
    made = Job()
    yield made
    for group in (*made.open, *filter(None, (made.first.group,))):
        group.close()


def test_a_node_joins_before_the_run_ends_and_takes_part_in_the_next(job: Job) -> None:
    report = job.first.report
    assert report is not None and report.grows and not report.joined
    job.first.hear(JOIN)
    job.until(lambda: job.given)
    assert job.given[0].names == ("n2",) and job.given[0].member.members == ("n1", "n2")
    assert not job.first.is_decided, "it trains on"
    other, guard = job.joining()
    job.until(lambda: job.first.report is not None and job.first.report.joined == 1, other)
    job.first.hear(RUN)
    job.until(lambda: job.first.is_decided)
    assert job.first.begin_next_run(0, job.guard) and job.given[0].used
    assert other.await_first_run(guard)
    for node, its in ((job.first, job.guard), (other, guard)):
        assert (node.allocation.nodes, its.plan, node.report_part.number) == (("n1", "n2"), WIDE, 1)
    assert other.allocation.node_rank == 1 and not other.is_alone
    assert job.first.together, "a lost node is made good from now on: Slurm does not see it"
    assert job.first.group is not None and other.group is not None
    job.first.look({"state": "training", "step": 120, "checkpoint_step": 120})
    other.group.close()
    job.until(lambda: job.first.has_lost_node)
    job.first.hear(replace(JOIN, order=3, nodes=("n1", "n3")))
    job.until(lambda: len(job.given) == 2)
    assert job.first.begin_next_run(137, job.guard) and job.first.allocation.nodes == ("n1",)
    assert job.given[1].ended == "n2 lost meanwhile", "n3 was for a run of another size"
    job.first.hear(replace(JOIN, order=4))
    job.until(lambda: len(job.given) == 3)
    report = job.first.report
    assert report is not None and not report.lost_nodes, "n2 may come again"


def test_a_refusal_is_told_and_changes_nothing(job: Job) -> None:
    job.first.hear(JOIN)
    job.until(lambda: job.given)
    job.given[0].refusal = "Requested nodes are busy"
    job.until(lambda: job.first.report is not None and job.first.report.joined == 1)
    assert job.first.report is not None and job.first.report.join_refusal == "Requested nodes are busy"
    job.first.hear(RUN)
    assert not job.first.is_decided and job.first.allocation.nodes == ("n1",)


def test_an_order_for_nodes_that_have_gone_again_is_not_followed(job: Job) -> None:
    job.first.hear(JOIN)
    job.until(lambda: job.given)
    other, _ = job.joining()
    job.until(lambda: job.first.report is not None and job.first.report.joined == 1, other)
    job.given[0].refusal = "the launchers there ended with exit code 1"
    job.first.hear(RUN)
    assert not job.first.is_decided


def test_a_node_that_finds_no_first_node_is_alone(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(in_place, "JOIN_S", 0.3)
    monkeypatch.setattr(in_place, "ORPHAN_S", 0.0)
    job.first.hear(JOIN)
    job.until(lambda: job.given)
    assert job.first.group is not None
    job.first.group.close()
    other, guard = job.joining()
    assert not other.await_first_run(guard) and other.is_alone and other.is_orphan


def test_what_was_not_used_is_given_back_at_the_end(job: Job) -> None:
    job.first.hear(JOIN)
    job.until(lambda: job.given)
    job.first.close()
    assert job.given[0].ended == "the job has ended"
