"""What one user's jobs report decides for that user alone."""

from __future__ import annotations

import statistics
from dataclasses import replace

import pytest
from synergy_core.records import Directive, Job, JobState, Measurement, Plan, Profile, Shape
from synergy_core.restarts import RestartTimes

from synergyd.jobmodel.fit.population import UserPriors
from synergyd.jobmodel.model.hardware import figures
from synergyd.jobmodel.model.throughput import PRIOR
from synergyd.jobmodel.restart_cost import RestartCostModel
from synergyd.jobmodel.shared_profiles import SharedProfiles, believed_profiles

PRIOR_S = 30.0
SHAPE = Shape("a100", 1, 4)
VICTIM, LIAR = 1, 1000


def job(job_id: int, uid: int, name: str = "train", **said: object) -> Job:
    directive = Directive(**said)  # type: ignore[arg-type]
    return Job(
        job_id, name, f"u{uid}", uid, "main", JobState.RUNNING, "", 0.0, 0.0, None, 0, SHAPE, SHAPE, directive=directive
    )


@pytest.mark.parametrize("memory", [20.0, 0.05, 1.3])
def test_the_memory_and_speed_of_a_named_model_are_its_users_alone(memory: float) -> None:
    plan = Plan(dp=4, micro_batch=1, global_batch=8)
    lie = Profile(speed=0.1, memory=memory, samples=50, measured=(Measurement(plan, SHAPE, 9.0, 50),))
    jobs = [
        job(7, VICTIM, model="llama2-7b"),
        job(8, LIAR, model="llama2-7b"),
        *(job(i, LIAR + i, model="llama2-7b") for i in range(9, 30)),
    ]
    found = believed_profiles(jobs, {j.job_id: lie for j in jobs[1:]}, SharedProfiles())
    assert found[7] == Profile()
    own = believed_profiles([*jobs, job(99, LIAR, model="llama2-7b")], {8: lie}, SharedProfiles())[99]
    assert own.memory == pytest.approx(memory, rel=0.02) and own.measured  # the liar's own jobs share it


def cost(costs: RestartCostModel, uid: int = VICTIM) -> float:
    return costs.cost(job(1, uid, "mine")).mean_s


def restarts(job_id: int, seconds: float) -> RestartTimes:
    return RestartTimes(
        job_id=job_id, restarts=1, checkpoint_s=0.3 * seconds, requeue_s=0.1 * seconds, start_s=0.6 * seconds
    )


def test_one_users_restarts_move_nobody_elses_however_many_programs() -> None:
    costs = RestartCostModel(PRIOR_S)
    before = cost(costs)
    for n in range(16):
        for uid in (LIAR, LIAR + 1):  # a single one, and two that agree
            costs.learn(job(100 + n, uid, f"p{chr(97 + n)}x"), restarts(100 + n, 484.0))
    assert cost(costs) == before
    assert cost(costs, LIAR) > 5 * before  # the own ones go on sharing


def test_several_users_that_agree_teach_others_and_one_liar_among_them_does_not() -> None:
    honest, lied, alone = RestartCostModel(PRIOR_S), RestartCostModel(PRIOR_S), cost(RestartCostModel(PRIOR_S))
    said = [50.0, 60.0, 70.0, 80.0]
    for uid, seconds in enumerate(said):
        honest.learn(job(10 + uid, 10 + uid), restarts(10 + uid, seconds))
        lied.learn(job(10 + uid, 10 + uid), restarts(10 + uid, seconds))
    for n in range(16):
        lied.learn(job(100 + n, LIAR, f"p{chr(97 + n)}x"), restarts(100 + n, 1e6))
    assert alone < cost(honest) < max(said)
    assert cost(honest) <= cost(lied) < cost(honest) * max(said) / statistics.median(said)


def test_what_is_loaded_from_a_store_counts_for_its_user_alone() -> None:
    costs, mine = RestartCostModel(PRIOR_S), job(5, VICTIM, "mine")
    stored = {
        k: p for n in range(9) for k, p in costs.learn(job(n, LIAR, f"p{chr(97 + n)}x"), restarts(n, 484.0)).items()
    }
    stored |= costs.learn(mine, restarts(5, 90.0))
    fresh, before = RestartCostModel(PRIOR_S), cost(RestartCostModel(PRIOR_S))
    fresh.load(stored)
    for n in range(9):
        fresh.cost(job(n, LIAR, f"p{chr(97 + n)}x"))
    assert fresh.cost(job(6, 77, "other")).mean_s == before
    assert fresh.cost(replace(mine, job_id=6)).mean_s == costs.cost(replace(mine, job_id=6)).mean_s > before


def test_the_prior_of_plain_jobs_is_of_their_user() -> None:
    shared, priors = SharedProfiles(), UserPriors()
    plan = Plan(dp=4, micro_batch=2, global_batch=8)
    wider = replace(plan, micro_batch=4, global_batch=16)
    measured = Measurement(plan, SHAPE, 60.0, 9), Measurement(wider, SHAPE, 90.0, 9)
    for n in range(20):
        shared.learn(job(n, LIAR, f"p{chr(97 + n)}x"), Profile(samples=9, measured=measured))
    priors.learn(shared.programs(), figures)
    assert priors.prior_for(VICTIM) == PRIOR != priors.prior_for(LIAR)
    fresh = SharedProfiles()
    fresh.load({"like:x:": Profile(samples=9, measured=(Measurement(plan, SHAPE, 60.0, 9),))})
    assert fresh.programs() == {}  # nobody knows whose it is
