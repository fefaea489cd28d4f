"""What a batch range would bring a job whose user asked for one batch."""

from __future__ import annotations

from dataclasses import replace

import pytest
from synergy_core.records import Directive, Job, JobState, Measurement, Plan, Profile, Shape

from synergyd.jobmodel.batch_advice import BatchAdvice, advise, measured_gain, remark
from synergyd.jobmodel.job_planner import JobPlanner
from synergyd.jobmodel.model.spec import load_model

SHAPE = Shape("a100", 2, 8)
GPT = load_model("gpt3-1.3b")
PLAN = Plan(dp=16, micro_batch=4, global_batch=64)


def planner(directive: Directive | None, noise: float | None, batch: int = 64, **changes: object) -> JobPlanner:
    job = Job(
        7, "j", "u", 1, "gpu", JobState.RUNNING, "", 0.0, 0.0, None, 0, shape=SHAPE, asked=SHAPE,
        node_names=("n0", "n1"), directive=directive,
    )  # fmt: skip
    plan = replace(PLAN, global_batch=batch)
    ran = (Measurement(plan, SHAPE, 0.5, 4),) if batch else ()
    profile = Profile(noise_scale=noise, global_batch=batch, samples=4, rebatching=True, measured=ran)
    return replace(JobPlanner(job, profile, GPT, {}, plan), **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize("directive", [Directive(), Directive(global_batch=(64, 64)), None])
def test_a_noisy_run_with_one_batch_is_told_what_a_range_brings(directive: Directive | None) -> None:
    task = planner(directive, 5000.0)
    advice = advise(task)
    assert advice is not None and advice.low == 64
    # what it says is what the job would have with that range in its directive
    ranged = replace(task.job, directive=Directive(global_batch=(64, advice.high), micro_batch=4))
    before, after = task.best_plan(SHAPE), replace(task, job=ranged).best_plan(SHAPE)
    assert before is not None and after is not None
    assert 64 < after.plan.global_batch <= advice.high < 2 * after.plan.global_batch
    assert 1 - before.goodput / after.goodput == pytest.approx(advice.sooner)
    assert 0.05 <= advice.sooner < 1


def test_who_gains_little_or_tells_nothing_is_told_nothing() -> None:
    assert advise(planner(Directive(), 5.0)) is None  # a larger batch would waste its examples
    assert advise(planner(Directive(), None)) is None
    waiting = planner(Directive(), 5000.0)
    assert advise(replace(waiting, job=replace(waiting.job, state=JobState.PENDING))) is None
    assert advise(planner(Directive(), 5000.0, present=None)) is None
    assert advise(planner(Directive(), 5000.0, batch=0)) is None
    # a range that holds the best batch is wide enough
    found = advise(planner(Directive(), 5000.0))
    assert found is not None
    assert advise(planner(Directive(global_batch=(64, found.high)), 5000.0)) is None


def test_who_can_not_follow_or_needs_no_word_is_told_nothing() -> None:
    task = planner(Directive(), 5000.0)
    assert advise(task) is not None
    assert advise(replace(task, profile=replace(task.profile, rebatching=False))) is None
    assert advise(replace(task, job=replace(task.job, directive=Directive(adapt=True), batches=(64, 256)))) is None
    assert advise(replace(task, job=replace(task.job, batch_cap=64, batches=(64, 64)))) is None


def test_a_gain_within_what_the_model_does_not_know_is_no_advice() -> None:
    """The same run, before a step of it was measured and after."""
    sure = planner(Directive(), 1000.0)
    found = advise(sure)
    vague = replace(sure, profile=replace(sure.profile, measured=(), samples=1))
    ranged = replace(vague.job, directive=Directive(global_batch=(64, 1024), micro_batch=4))
    best = replace(vague, job=ranged).best_plan(SHAPE)
    assert found is not None and best is not None and best.uncertainty > found.sooner
    assert advise(vague) is None


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({}, ""),
        ({"adapt": True}, ""),
        ({"adapt": True, "rebatching": False}, " adapt=yes changes nothing: its program can't take another batch."),
        ({"adapt": True, "cap": 64}, " Its global batch stays at 64 or below: its loss did worse above."),
    ],
)  # fmt: skip
def test_what_keeps_a_batch(changes: dict[str, object], told: str) -> None:
    task = planner(Directive(adapt="adapt" in changes), 5000.0)
    job = replace(task.job, batches=(64, 256), batch_cap=changes.get("cap", 0))  # type: ignore[arg-type]
    profile = replace(task.profile, rebatching=bool(changes.get("rebatching", True)))
    assert remark(job, profile) == told


def test_a_range_that_ends_too_soon() -> None:
    found = advise(planner(Directive(global_batch=(64, 128)), 50_000.0))
    assert found is not None and found.low == 64 and found.high > 128


def test_the_more_noise_the_wider_and_never_beyond_sixteen_times() -> None:
    found = [advise(planner(Directive(), noise)) for noise in (500.0, 5e3, 5e4, 5e6)]
    highs = [advice.high if advice is not None else 64 for advice in found]
    assert highs == sorted(highs) and highs[-1] == 16 * 64


def test_a_plain_job_by_its_measurements() -> None:
    """A step of 0.1 s on each of 16 GPUs whose exchange costs as much: a larger batch sends less often."""
    measured = tuple(
        Measurement(Plan(dp=dp, micro_batch=4, global_batch=4 * dp), Shape("a100", nodes, 8), step_s, 20)
        for dp, nodes, step_s in ((8, 1, 0.1), (16, 2, 0.2))
    )
    profile = Profile(noise_scale=5000.0, global_batch=64, samples=20, measured=measured, rebatching=True)
    advice = advise(planner(Directive(), 5000.0, model=None, profile=profile))
    assert advice is not None and advice.sooner > 0.1


def test_the_sentence() -> None:
    told = BatchAdvice(low=64, high=512, sooner=0.314, noise_scale=912.3).sentence()
    assert told == (
        " With global_batch=64:512 in its #SYNERGY line it would end 31% sooner on these GPUs, by the noise scale of 912 sequences "
        "that it measures."
    )


@pytest.mark.parametrize(("step_s", "how"), [(0.8, "23% more"), (1.1, "10% less")])
def test_a_batch_that_has_moved_is_checked_by_measured_steps(step_s: float, how: str) -> None:
    """At a noise scale of 5000 an example of a batch of 128 is worth 0.988 of one of 64."""
    task = planner(Directive(global_batch=(64, 128)), 5000.0)
    large = Measurement(replace(PLAN, global_batch=128), SHAPE, step_s, 4)
    profile = replace(task.profile, global_batch=128, measured=(*task.profile.measured, large))
    words = f" Its global batch of 128 makes {how} progress a second than 64 did, by its measured steps and its noise scale."
    assert measured_gain(task.job, profile) == words
    for other in (
        replace(profile, global_batch=64),
        replace(profile, noise_scale=None),
        replace(profile, measured=(replace(profile.measured[0], samples=3), large)),
        replace(profile, measured=(replace(profile.measured[0], plan=replace(PLAN, micro_batch=2)), large)),
    ):
        assert measured_gain(task.job, other) == ""
