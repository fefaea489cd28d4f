"""How likely a plan is to run out of memory, what the search makes of it, and whether it happens as often as it is called."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from synergy_core.job_report import Report
from synergy_core.records import Cell, Cluster, Directive, Job, JobState, Measurement, Node, Plan, Profile, Shape

from synergyd.jobmodel.cell_search import rank
from synergyd.jobmodel.job_planner import JobPlanner
from synergyd.jobmodel.learning import coarse, inherit_profile, update_profile
from synergyd.jobmodel.memory_belief import LEARNT_SIGMA, MemoryBelief
from synergyd.jobmodel.model.hardware import figures
from synergyd.jobmodel.model.spec import load_model
from synergyd.jobmodel.plan_limits import PlanLimits

H100 = figures("h100")
LLAMA = load_model("llama3-8b")
NODE = Shape("h100", 1, 8)
LIMITS = PlanLimits(64, 64, zero_stages=(1, 2, 3))


@given(st.floats(0.2, 5.0), st.floats(0.01, 0.5), st.floats(0.5, 2.0))
def test_the_risk_is_that_of_a_normal_error(share: float, sigma: float, factor: float) -> None:
    belief = MemoryBelief(factor, sigma)
    peak = np.array([share * H100.usable_bytes])
    expected = 0.5 * math.erfc(-math.log(share * factor) / sigma / math.sqrt(2))
    assert belief.risk(H100, peak)[0] == pytest.approx(expected, abs=1e-12)
    assert belief.risk(H100, 1.01 * peak)[0] >= belief.risk(H100, peak)[0]
    assert replace(belief, sigma=0.0).risk(H100, peak)[0] == 0.0
    assert replace(belief, ran_bytes=float(peak[0])).risk(H100, peak)[0] == 0.0


def test_a_plan_near_the_limit_is_not_chosen_where_a_safe_one_is_little_slower() -> None:
    certain = rank(LLAMA, H100, [NODE], LIMITS)
    best = certain.cell(int(certain.order[0]))
    # a GPU on which that plan is as likely as not to fail
    tight = replace(H100, memory_gib=best.memory_bytes / 2**30 / 0.99 + H100.reserve_gib)
    before = rank(LLAMA, tight, [NODE], LIMITS)
    assert before.cell(int(before.order[0])).plan == best.plan
    belief = MemoryBelief(sigma=0.05)
    after = rank(LLAMA, tight, [NODE], LIMITS, memory=belief)
    chosen = int(after.order[0])
    risk = after.candidates.risk
    at = next(i for i in range(len(risk)) if after.candidates.plans.plan(i) == best.plan)
    assert (
        risk[at] == pytest.approx(belief.risk(tight, np.array([float(best.memory_bytes)]))[0], abs=1e-3)
        and risk[at] > 0.4
    )
    assert risk[chosen] < 0.05 and after.step_s[chosen] < 1.3 * best.step_s
    assert after.goodput == pytest.approx(after.throughput * (1 - risk))
    # recomputing more is a way out that a search for the least recompute would not have
    plans = {after.candidates.plans.plan(i): risk[i] for i in range(len(risk))}
    assert plans[replace(best.plan, recompute="full")] < 1e-6


def job(batch: int) -> Job:
    asked = Shape("h100", 1, 8)
    directive = Directive(global_batch=(batch, batch), max_gpus=8, min_gpus=8)
    return Job(
        1, "j", "u", 1, "gpu", JobState.PENDING, "", 0.0, None, None, 0, shape=asked, asked=asked, directive=directive
    )


TIGHT = replace(H100, memory_gib=37.0)


def tight_planner(profile: Profile, least: dict[str, float] | None = None) -> JobPlanner:
    return JobPlanner(job(64), profile, LLAMA, {"h100": TIGHT}, least_memory=least or {})


def best_cell(profile: Profile) -> Cell:
    cluster = Cluster((Node("n", "h100", 8, partitions=("gpu",)),))
    cells = tight_planner(profile).cells(cluster)
    return max(cells, key=lambda cell: cell.goodput)


def test_what_ran_is_no_risk() -> None:
    first = best_cell(Profile())
    assert first.goodput == pytest.approx(first.throughput, rel=0.1)
    sure = JobPlanner(job(64), Profile(), LLAMA, {"h100": replace(TIGHT, memory_uncertainty=0.0)})
    risky = max(sure.cells(Cluster((Node("n", "h100", 8, partitions=("gpu",)),))), key=lambda cell: cell.goodput)
    assert risky.memory_bytes > first.memory_bytes and risky.step_s < first.step_s
    ran = Profile(samples=1, measured=(Measurement(risky.plan, risky.shape, risky.step_s, 1),))
    again = best_cell(ran)
    assert again.plan == risky.plan and again.goodput == again.throughput
    # a plan that failed though it was predicted to need less: those just below it are as likely as not to fail too
    least = tight_planner(ran).predict(risky.shape, risky.plan)
    assert least is not None
    limit = 0.97 * least[1]
    failed = tight_planner(ran, {"h100": TIGHT.usable_bytes / limit})._memory("h100")
    assert failed.ran_bytes == 0 and failed.risk(TIGHT, np.array([0.999 * limit]))[0] == pytest.approx(0.5, abs=0.02)
    # what failed as it was predicted to takes nothing from what ran
    kept = tight_planner(replace(ran, memory=1.1), {"h100": 1.05})._memory("h100")
    assert kept.factor == 1.1 and kept.ran_bytes == pytest.approx(least[1])
    # a job whose factor is known is surer of plans that have not run
    assert (
        tight_planner(Profile(memory=1.02, samples=1))._memory("h100").sigma == LEARNT_SIGMA < H100.memory_uncertainty
    )


@pytest.mark.parametrize("peak", [None, 1.004, 0.996, 1.0, 1.3])
def test_a_peak_that_was_reported_makes_sure_and_a_step_time_does_not(peak: float | None) -> None:
    plan, predicted = Plan(8, 1, 1, 1, 64), 40 << 30
    peak_bytes = None if peak is None else int(peak * predicted) + 1
    said = Report(1, 0, 100, step_s=2.0, plan=plan, peak_memory_bytes=peak_bytes)
    profile = update_profile(Profile(), said, 2.0, predicted, NODE)
    for rounded in (profile, coarse(profile), coarse(coarse(profile)), inherit_profile(Profile(), [profile])):
        belief = tight_planner(rounded)._memory("h100")
        assert belief.sigma == (H100.memory_uncertainty if peak is None else LEARNT_SIGMA)
        assert belief.factor == pytest.approx(peak or 1.0, rel=0.011) and belief.ran_bytes > 0
        # nor does it matter where it ran
        assert tight_planner(replace(rounded, measured=()))._memory("h100").sigma == belief.sigma
