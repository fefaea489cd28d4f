"""What a user gains by writing or reporting what is not so: eight like jobs on 32 GPUs, one of which may lie."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import pairwise

import pytest
from synergy_core.job_report import Report

from synergyd.jobmodel.job_planner import JobPlanner
from synergyd.settings import Settings
from tests.unit.scheduler.cluster_play import GPU, LIAR, START_S, Play, Played, Tale, played, truth

pytestmark = pytest.mark.slow

JOBS = 8
EPOCHS = 18  # three hours, nearly all that an honest job needs
MOST = 1.10  # of what honesty gets
SITES = {
    "sum": Settings(fairness=1.0),
    "nash": Settings(),
    "worse-off": Settings(fairness=-2.0),
    "max-min": Settings(objective="max-min"),
}


@dataclass(frozen=True)
class Lie:
    tale: Tale = truth
    directive: Mapping[str, object] = field(default_factory=dict)


def noisy(report: Report, job: Played) -> Report:
    assert report.noise_scale is not None
    return replace(report, noise_scale=report.noise_scale * 1000)


def superlinear(report: Report, job: Played) -> Report:
    assert report.step_s is not None
    return replace(report, step_s=report.step_s / job.job.shape.gpus)


def soon_over(report: Report, job: Played) -> Report:
    assert report.done is not None
    return replace(report, total=report.done + job.total / 8)


def almost_done(report: Report, job: Played) -> Report:
    assert report.done is not None
    return replace(report, total=report.done * 1.0001)


def stands_still(report: Report, job: Played) -> Report:
    return replace(report, done=0.9999 * job.total)


def huge(report: Report, job: Played) -> Report:
    return replace(report, total=1000 * job.total)


def fifth(report: Report, job: Played) -> Report:
    return replace(report, total=job.total / 5)


def all_at_once(report: Report, job: Played) -> Report:
    return soon_over(superlinear(report, job), job)


LIES = {
    "weight": Lie(directive={"weight": 1000.0}),
    "deadline": Lie(directive={"deadline_s": START_S + 1.6 * 3600}),  # needs twice an equal share
    "noise scale": Lie(noisy),
    "superlinear steps": Lie(superlinear),
    "always soon over": Lie(soon_over),
    "almost done": Lie(almost_done),
    "done stands still": Lie(stands_still),
    "a fifth of the total": Lie(fifth),
    "huge total": Lie(huge),
    "all": Lie(all_at_once, {"weight": 1000.0, "deadline_s": START_S + 1.6 * 3600}),
}
#: at Fairness=1 the GPUs go to who tells the best speed-up; a noise scale is not bounded, for true ones go as far beyond the batch
NOT_BOUND = {("sum", "noise scale")}


def gains(site: Settings, lie: Lie) -> tuple[float, float]:
    """(GPU seconds, sequences of progress) of the liar."""
    jobs = [played(i, **(lie.directive if i == LIAR else {})) for i in range(1, JOBS + 1)]
    jobs[0].tale = lie.tale
    one = Play(jobs, site).run(EPOCHS).jobs[0]
    return one.gpu_s, one.done


@cache
def honest(name: str) -> tuple[float, float]:
    return gains(SITES[name], Lie())


# max-min is near to the one before it
CASES = [(name, lie) for name in SITES for lie in LIES if name != "max-min" or lie in ("weight", "deadline", "all")]


@pytest.mark.parametrize(("name", "lie"), CASES)
def test_no_lie_gains_more_than_a_tenth(name: str, lie: str) -> None:
    gpu_s, done = gains(SITES[name], LIES[lie])
    honest_gpu_s, honest_done = honest(name)
    if (name, lie) in NOT_BOUND:
        assert MOST < gpu_s / honest_gpu_s < 2.0  # SECURITY.md tells of it
    else:
        assert gpu_s <= MOST * honest_gpu_s
        assert done <= MOST * honest_done


def test_a_deadline_pays_where_the_admin_sets_no_bound() -> None:
    trusting = Settings(deadline_share=0.0)
    assert gains(trusting, LIES["deadline"])[0] > 1.3 * honest("nash")[0]


def test_a_weight_alone_gains_nothing_from_other_users_whatever_its_bound() -> None:
    assert gains(Settings(max_weight=1000.0), LIES["weight"])[0] <= MOST * honest("nash")[0]


def test_superlinear_steps_are_not_believed() -> None:
    """Whatever steps a job reports, its Cells never have more throughput a GPU than at a smaller size on like nodes."""
    jobs = [played(i) for i in range(1, JOBS + 1)]
    jobs[0].tale = superlinear
    play = Play(jobs, Settings(fairness=1.0)).run(4)
    one = replace(jobs[0].job, directive=played(1, global_batch=(256, 256)).job.directive)
    profile = play.controller.believed_profiles([one])[LIAR]
    assert len(profile.measured) >= 1
    cells = JobPlanner(one, profile, None, {"a100": GPU}, jobs[0].plan).cells(play.cluster())
    within = sorted((c for c in cells if c.shape.nodes == 1), key=lambda c: c.shape.gpus)
    per_gpu = [c.throughput / c.shape.gpus for c in within]
    assert len(per_gpu) >= 3
    assert all(later <= 1.001 * before for before, later in pairwise(per_gpu))
