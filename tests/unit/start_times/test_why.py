"""Slurm's one word for why a job waits, with the numbers behind it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from synergy_core.expected import Expected
from synergy_core.reasons import format_reasons, hide_jobs

from synergyd.start_times.forecast import JobForecast
from synergyd.start_times.records import PendingJob, Queue
from synergyd.start_times.why import Waits
from tests.unit.start_times.queues import NOW, node, pending, program, queue, running


def ends(**seconds: float) -> dict[int, JobForecast]:
    return {
        int(job[1:]): JobForecast(end=Expected(low_s=NOW + s, middle_s=NOW + s, high_s=NOW + s))
        for job, s in seconds.items()
    }


def said(of: Queue, job: PendingJob, told: dict[int, JobForecast] | None = None) -> str:
    return format_reasons(Waits(of, told or {}).reasons(job))


def test_who_frees_what_it_waits_for() -> None:
    ib = {"features": frozenset(["ib"])}
    nodes = (node("n1", 0, **ib), node("n2", 3, **ib), node("n3"))
    runs = (running(4711, ("n1",)), running(4712, ("n2",), gpus=1))
    job = pending(3, nodes=2, features="ib")
    text = said(queue(nodes, runs, (job,)), job, ends(j4711=8400, j4712=60))
    assert text == (
        "Waits for 8 GPUs on 2 nodes in partition p with feature ib: 3 of the 8 there are free. "
        "In about 2 h 20 min jobs 4712, 4711 should have freed 5 GPUs."
    )


def test_free_gpus_that_do_not_lie_together() -> None:
    job = pending(3)
    text = said(queue((node("n1", 2), node("n2", 2)), (), (job,)), job)
    assert (
        text
        == "Waits for 4 GPUs on 1 node in partition p (0 nodes of the 1 that it needs have room): 4 of the 8 there are free."
    )


def test_cpus_where_it_asks_for_no_gpu() -> None:
    job = replace(pending(3), need=replace(pending(3).need, gpus=0))
    assert (
        said(queue((node("n1", 1),), (), (job,)), job)
        == "Waits for 8 CPUs on 1 node in partition p: 2 of the 8 there are free."
    )


def test_jobs_ahead() -> None:
    first, job = pending(2, nodes=2), pending(3, slurm_reason="Priority")
    text = said(queue((node("n1", 0), node("n2", 0)), (), (first, job)), job)
    assert text.endswith("1 job of higher priority waits for the same nodes, and asks for 8 GPUs in all.")


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"slurm_reason": "JobHeldUser"}, "It is held by its user: `scontrol release` lets it run."),
        (
            {"slurm_reason": "BeginTime", "may_start_s": NOW + 7200},
            "May not start for another 2 h 0 min (its begin time).",
        ),
        (
            {"slurm_reason": "Dependency", "after": (1,), "note": "afterok:1"},
            "Waits for the end of job 1 (afterok:1), expected in about 50 s.",
        ),
        (
            {"slurm_reason": "QOSMaxGRESPerUser", "cap": ("user", "mina", "gpus")},
            "A limit is reached (Slurm's reason: QOSMaxGRESPerUser): user mina holds 4 GPUs now.",
        ),
        (
            {"slurm_reason": "AssocGrpGRES", "cap": ("account", "chem", "gpus")},
            "A limit is reached (Slurm's reason: AssocGrpGRES): it is that of account chem.",
        ),
        ({"slurm_reason": "Licenses", "note": "matlab:1"}, "Waits for licences: matlab:1."),
        ({"slurm_reason": "PartitionDown"}, "Its partition p takes no jobs now (PartitionDown)."),
        ({"nodes": 3}, "Waits for 12 GPUs on 3 nodes in partition p: 1 node that takes jobs now could have it."),
        ({"slurm_reason": "None"}, ""),
        ({"slurm_reason": "SomethingNew"}, "Slurm's reason: SomethingNew."),
    ],
)
def test_slurms_other_words(changes: dict[str, Any], text: str) -> None:
    job = pending(3, **changes)
    caps = frozenset([job.cap]) if job.cap and job.cap[0] == "user" else frozenset()
    of = queue((node("n1", 0),), (running(1, ("n1",), caps=caps, program=program()),), (job,))
    assert said(of, job, ends(j1=50)) == text


def test_a_job_of_others_is_not_named_to_those_who_may_not_see_it() -> None:
    job = pending(3)
    reasons = Waits(queue((node("n1", 0),), (running(1, ("n1",)),), (job,)), ends(j1=50)).reasons(job)
    assert format_reasons(hide_jobs(reasons, lambda _: False)).endswith(
        "In about 50 s another job should have freed 4 GPUs."
    )
