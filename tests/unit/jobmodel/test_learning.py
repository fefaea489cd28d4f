"""Online refinement: what a job's measured plans move, and what one odd measurement does not."""

import math
from collections import defaultdict
from dataclasses import replace

import numpy as np
import pytest
from synergy_core.job_report import Report
from synergy_core.kernels import LOCAL, Kernels
from synergy_core.records import Measurement, Plan, Profile, Shape

from synergyd.jobmodel.learning import CoarseProfiles, coarse, inherit_profile, level, refine_figures, update_profile
from synergyd.jobmodel.model.arrays import Floats, from_plans
from synergyd.jobmodel.model.hardware import GpuFigures, figures
from synergyd.jobmodel.model.spec import load_model
from synergyd.jobmodel.model.step_time import step_time

GPT = load_model("gpt3-6.7b")
A100 = figures("a100-80")
# the job's true hardware: slower links, and slower to launch
TRUE = replace(A100, link_efficiency=0.5, inter_efficiency=0.5, inter_latency_s=2e-4, launch_s=1e-3)
SHAPE = Shape("a100-80", 2, 8)
SEEN = [Plan(8, 1, 2, 1, 64, "full", True), Plan(2, 1, 8, 1, 64, "full", True), Plan(4, 2, 2, 1, 64, "full", True)]
ASKED = [Plan(8, 2, 1, 1, 64, "full", True), Plan(4, 1, 4, 2, 64, "full", True), Plan(1, 4, 4, 1, 64, "full")]


def seconds(plans: list[Plan], gpu: GpuFigures = A100) -> Floats:
    return step_time(GPT, gpu, from_plans(plans, 8)).total


def report(plan: Plan, step_s: float, **changes: object) -> Report:
    return Report(1, 0, 100, step_s=step_s, plan=plan, **changes)  # type: ignore[arg-type]


def learn(plans: list[Plan], times: list[float], profile: Profile = Profile()) -> Profile:  # noqa: B008
    for plan, step_s in zip(plans, times, strict=True):
        profile = update_profile(profile, report(plan, step_s), float(seconds([plan])[0]), None, SHAPE)
    return profile


def errors(profile: Profile, plans: list[Plan]) -> Floats:
    gpu = refine_figures(GPT, A100, profile.measured, profile.speed)
    return np.abs(seconds(plans, gpu) / profile.speed / seconds(plans, TRUE) - 1)


def test_the_first_report_sets_the_level_and_no_parameter() -> None:
    profile = learn(SEEN[:1], [2 * seconds(SEEN[:1])[0]])
    assert profile.speed == pytest.approx(0.5)
    assert refine_figures(GPT, A100, profile.measured, profile.speed) is A100
    assert errors(learn(SEEN[:1], [seconds(SEEN[:1], TRUE)[0]]), SEEN[:1])[0] < 1e-9


def test_measured_plans_improve_those_not_tried() -> None:
    level = learn(SEEN, list(seconds(SEEN, TRUE)))
    alone = np.abs(seconds(ASKED) / level.speed / seconds(ASKED, TRUE) - 1)
    assert errors(level, SEEN).max() < 0.05
    assert errors(level, ASKED).mean() < 0.7 * alone.mean()


def test_one_odd_measurement_moves_little() -> None:
    times = list(seconds(SEEN, TRUE))
    odd = learn([*SEEN, SEEN[0]], [*times, 30 * times[0]])
    assert errors(odd, SEEN[1:]).max() < 0.25
    many = learn([*SEEN, *SEEN, *SEEN, ASKED[0]], [*times, *times, *times, 100.0 * seconds(ASKED, TRUE)[0]])
    assert errors(many, SEEN).max() < 0.25


def level_of(profile: Profile) -> tuple[float, int]:
    found = level(GPT, A100, profile.measured)
    assert found is not None
    return found


def test_the_level_of_a_type_is_what_its_plans_measured_and_no_odd_one() -> None:
    times = list(2 * seconds(SEEN))
    assert level_of(learn(SEEN, times)) == pytest.approx((0.5, 3))
    assert level(GPT, figures("h100"), learn(SEEN, times).measured) is None
    odd = learn([SEEN[0], SEEN[0], SEEN[1]], [times[0], times[0], 50 * times[1]])
    assert level_of(odd) == pytest.approx((0.5, 3))
    even = learn(SEEN[:2], [times[0], 2 * times[1]])  # one report each: between the two
    assert level_of(even) == pytest.approx((0.5 / 2**0.5, 2))
    # a first report that was odd is outvoted by the second of the same plan, within a few
    recovered = learn(SEEN[:1] * 6, [8 * times[0], *times[:1] * 5])
    share, reports = level_of(recovered)
    assert share == pytest.approx(0.5, rel=0.6) and reports == 6


def test_the_same_plan_is_remembered_once_and_the_oldest_forgotten() -> None:
    profile = learn(SEEN[:1] * 5, [10.0] * 5)
    assert len(profile.measured) == 1 and profile.measured[0].step_s == pytest.approx(10.0)
    plans = [Plan(1, 1, 16, 1, 16 * n) for n in range(1, 30)]
    profile = learn(plans, [1.0] * len(plans))
    assert [m.plan for m in profile.measured] == plans[-16:]


@pytest.mark.parametrize("step_s", [math.nan, math.inf, -1.0, 0.0, None])
def test_what_is_no_time_is_not_remembered(step_s: float | None) -> None:
    profile = update_profile(Profile(), Report(1, 0, 1, step_s=step_s, plan=SEEN[0]), 1.0, None, SHAPE)
    assert profile.measured == () and profile.speed == 1.0
    wrong_shape = update_profile(Profile(), report(SEEN[0], 1.0), 1.0, None, Shape("a100-80", 1, 8))
    assert wrong_shape.measured == ()


def test_other_hardware_is_left_alone() -> None:
    profile = learn(SEEN, list(seconds(SEEN, TRUE)))
    h100 = figures("h100")
    assert refine_figures(GPT, h100, profile.measured, profile.speed) is h100


def test_like_jobs_share_what_they_learnt() -> None:
    first = learn(SEEN, [2 * s for s in seconds(SEEN)])
    odd = Profile(speed=19.0, samples=3)
    start = inherit_profile(Profile(noise_scale=7.0), [first, odd, first, Profile()])
    assert start.speed == pytest.approx(0.5, rel=0.011) and (start.samples, start.noise_scale) == (1, 7.0)
    assert [m.plan for m in start.measured] == SEEN
    assert [m.step_s for m in start.measured] == pytest.approx([m.step_s for m in first.measured], rel=0.011)
    # a report of one of them that says nothing new changes nothing for the others
    again = learn(SEEN[-1:], [2 * seconds(SEEN[-1:])[0] * 1.0001], first)
    assert inherit_profile(Profile(), [again]) == inherit_profile(Profile(), [first])
    assert inherit_profile(first, [odd]) is first
    assert inherit_profile(Profile(), [Profile()]) == Profile()


def test_small_moves_of_a_profile_change_nothing_that_is_made_of_it() -> None:
    profile = learn(SEEN, [2 * s for s in seconds(SEEN)], Profile(noise_scale=7.0))
    moved = replace(profile, speed=profile.speed * 1.0001, samples=profile.samples)
    assert coarse(moved) == coarse(profile) == coarse(coarse(profile))
    assert coarse(replace(profile, speed=profile.speed * 1.05)) != coarse(profile)
    assert coarse(profile).speed == pytest.approx(profile.speed, rel=0.011)
    assert coarse(Profile(samples=13)).samples == 8 and coarse(Profile()) == Profile()
    assert coarse(Profile(speed=0.0, memory=-1.0)) == Profile(speed=0.0, memory=-1.0)


def test_few_jobs_an_epoch_go_on_with_what_they_have_learnt_the_oldest_first() -> None:
    coarsened, before = CoarseProfiles(), learn(SEEN, list(seconds(SEEN)))
    after = learn(SEEN, [1.2 * s for s in seconds(SEEN)])
    coarsened.renew(dict.fromkeys(range(40), before), defaultdict(lambda: "prior"))
    assert [coarsened.coarsen(i, before, "prior")[0] for i in range(40)] == [coarse(before)] * 40
    renewed = []
    for _ in range(4):
        coarsened.renew(dict.fromkeys(range(40), after), defaultdict(lambda: "prior"))
        renewed.append(sum(coarsened.coarsen(i, after, "prior")[0] == coarse(after) for i in range(40)))
    assert renewed == [16, 32, 40, 40]
    # what it needs, or is, counts at once
    changed = replace(after, memory=2.0)
    coarsened.renew(dict.fromkeys(range(40), changed), defaultdict(lambda: "prior"))
    assert all(coarsened.coarsen(i, changed, "prior")[0].memory == pytest.approx(2.0, rel=0.011) for i in range(40))
    coarsened.forget(3)
    assert coarsened.coarsen(3, before, "other") == (coarse(before), "other")


def test_first_measured_steps_come_before_further_ones_and_these_before_a_new_prior() -> None:
    """While 40 go on learning and 40 wait, for all of which the prior has moved: one that has just measured its first steps."""
    coarsened, before = CoarseProfiles(), learn(SEEN, list(seconds(SEEN)))
    after = learn(SEEN, [1.2 * s for s in seconds(SEEN)])
    waits = dict.fromkeys(range(40), Profile())
    coarsened.renew(waits | dict.fromkeys(range(100, 140), before) | {200: Profile()}, defaultdict(lambda: "prior"))
    given = waits | dict.fromkeys(range(100, 140), after) | {200: before}
    for i, profile in (waits | dict.fromkeys(range(100, 140), before) | {200: Profile()}).items():
        coarsened.coarsen(i, profile, "prior")
    coarsened.renew(given, defaultdict(lambda: "moved"))
    renewed = [i for i, profile in given.items() if coarsened.coarsen(i, profile, "moved")[1] == "moved"]
    assert [i for i in renewed if i >= 100] == [*range(100, 115), 200]
    assert [i for i in renewed if i < 100] == [0, 1, 2, 3]


def test_refining_is_quick_enough_for_an_epoch() -> None:
    measured = tuple(
        Measurement(p, SHAPE, float(s)) for p, s in zip(SEEN + ASKED, seconds(SEEN + ASKED, TRUE), strict=True)
    )
    gpu = refine_figures(GPT, A100, measured, 1.0)
    # the second time it is remembered
    assert refine_figures(GPT, A100, measured, 1.0) is gpu


def test_what_was_measured_with_other_kernels_is_forgotten() -> None:
    plan, fused = SEEN[0], Kernels(attention=True)

    def after(profile: Profile, kernels: Kernels | None, step_s: float) -> Profile:
        return update_profile(profile, report(plan, step_s, kernels=kernels), 1.0, None, SHAPE)

    local = after(after(Profile(), None, 2.0), LOCAL, 2.0)
    assert local.kernels == LOCAL and local.samples == 2 and local.measured[0].samples == 2
    assert after(local, None, 2.0).kernels == LOCAL  # a launcher that says nothing of them
    told_more = after(local, replace(LOCAL, fp8=False), 2.0)
    assert told_more.samples == 3 and told_more.kernels == replace(LOCAL, fp8=False)
    other = after(local, fused, 1.0)
    assert (other.kernels, other.samples, other.speed) == (fused, 1, 1.0)
    assert [m.step_s for m in other.measured] == [1.0]


def test_the_noise_scale_is_that_of_the_latest_report_within_a_factor() -> None:
    """Averaged once more it lags behind one that grows, and batch and size stay too small for minutes."""
    report = Report(1, 0, 10, noise_scale=100.0)
    profile = update_profile(Profile(), report, None, None)
    for noise in (150.0, 250.0, 200.0):
        profile = update_profile(profile, replace(report, noise_scale=noise), None, None)
        assert profile.noise_scale == noise
    odd = update_profile(profile, replace(report, noise_scale=1e9), None, None)
    assert odd.noise_scale == 800.0, "one odd report is no rule"
    assert update_profile(odd, replace(report, noise_scale=0.0), None, None).noise_scale == 800.0
