"""What runs of one program share, and who is no such run."""

from __future__ import annotations

from dataclasses import replace

import pytest
from synergy_core.kernels import LOCAL, Kernels
from synergy_core.records import Directive, Job, Measurement, ModelSpec, Plan, Profile, Shape

from synergyd.jobmodel.shared_profiles import KERNELS, SharedProfiles, believed_profiles, likeness, program_mark
from tests.unit.scheduler.builders import job as made

ONE, TWO, FOUR = (Shape("a100", 1, g) for g in (1, 2, 4))
RANGE = Directive(global_batch=(64, 512))


def run(job_id: int, name: str = "vit-1", uid: int = 7, directive: Directive | None = RANGE) -> Job:
    return replace(made(job_id, 1), name=name, uid=uid, directive=directive)


def took(shape: Shape, step_s: float, batch: int = 64) -> Measurement:
    return Measurement(Plan(dp=shape.gpus, micro_batch=batch // shape.gpus, global_batch=batch), shape, step_s, 9)


def profile(*measured: Measurement, noise: float | None = None) -> Profile:
    return Profile(samples=9, measured=measured, noise_scale=noise)


def test_the_next_run_knows_what_the_last_one_measured() -> None:
    known = SharedProfiles()
    assert known.complete_profile(run(2, "vit-2"), Profile()) == Profile()
    stored = known.learn(run(1), profile(took(ONE, 1.0), took(TWO, 0.6), noise=300.0))
    assert list(stored) == [likeness(run(2, "vit-2"), Profile())]
    known.forget(1)
    next_one = known.complete_profile(run(2, "vit-2"), Profile())
    assert [(m.shape, m.samples) for m in next_one.measured] == [(ONE, 1), (TWO, 1)]
    assert [m.step_s for m in next_one.measured] == pytest.approx([1.0, 0.6], rel=0.011)
    assert next_one.noise_scale == pytest.approx(300, rel=0.12) and next_one.samples == 1
    # its own count before those of others, which stay for what it has not tried
    own = profile(took(TWO, 0.61), noise=9.0)
    assert known.learn(run(2, "vit-2"), own)
    merged = known.complete_profile(run(2, "vit-2"), own)
    assert [m.shape for m in merged.measured] == [ONE, TWO] and merged.measured[1] == took(TWO, 0.61)
    assert merged.noise_scale == 9.0 and merged.samples == 9


def test_what_says_nothing_new_changes_nothing() -> None:
    known = SharedProfiles()
    first = profile(took(ONE, 1.0), noise=300.0)
    assert known.learn(run(1), first)
    assert known.learn(run(1), first) == {} == known.learn(run(1), profile(took(ONE, 1.02), noise=310.0))


def test_a_new_run_expects_the_noise_scale_of_the_middle_of_one() -> None:
    """It grows a thousandfold in a run. By that of the first steps alone a run would begin on few GPUs and stay there."""
    known = SharedProfiles()
    for noise in (100.0, 3000.0, 90_000.0):
        known.learn(run(1), profile(took(ONE, 1.0), noise=noise))
    known.forget(1)
    assert known.complete_profile(run(2), Profile()).noise_scale == pytest.approx(3000, rel=0.12)
    # a run that has only begun counts with what it has shown, and each run alike
    known.learn(run(2), profile(took(ONE, 1.0), noise=100.0))
    assert known.complete_profile(run(3), Profile()).noise_scale == pytest.approx(548, rel=0.12)


@pytest.mark.parametrize(
    "other",
    [
        run(2, uid=8),
        run(2, "swin-1"),
        run(2, directive=replace(RANGE, global_batch=(64, 64))),
        run(2, directive=replace(RANGE, model="gpt2")),
        run(2, directive=None),
    ],
)
def test_others_share_nothing(other: Job) -> None:
    known = SharedProfiles()
    known.learn(run(1), profile(took(ONE, 1.0)))
    assert known.complete_profile(other, Profile()) == Profile()


def test_jobs_of_a_known_model_share_by_that() -> None:
    spec = ModelSpec("m", 2, 64, 2, 2, 256, 100, 32)
    assert likeness(run(1), Profile(model=spec)) is None
    assert SharedProfiles().learn(run(1), replace(profile(took(ONE, 1.0)), model=spec)) == {}


def test_weight_and_limits_of_a_run_do_not_make_it_another_program() -> None:
    other = run(2, "vit_17", directive=replace(RANGE, weight=3.0, min_gpus=2, max_gpus=8, deadline_s=1e9))
    assert likeness(other, Profile()) == likeness(run(1), Profile())


def test_a_run_that_is_unlike_is_left_alone_and_two_in_a_row_are_a_new_program() -> None:
    known = SharedProfiles()
    known.learn(run(1), profile(took(ONE, 1.0), took(FOUR, 0.3)))
    assert known.learn(run(2), profile(took(ONE, 3.0))) == {}
    assert known.complete_profile(run(2), profile(took(ONE, 3.0))) == profile(took(ONE, 3.0))
    assert len(known.complete_profile(run(3), Profile()).measured) == 2
    known.learn(run(3), profile(took(ONE, 1.01), took(TWO, 0.5)))  # one that agrees in between
    assert known.learn(run(4), profile(took(ONE, 3.0))) == {}
    (found,) = known.learn(run(5), profile(took(ONE, 3.0))).values()
    assert [m.shape for m in found.measured] == [ONE]
    assert [m.step_s for m in found.measured] == pytest.approx([3.0], rel=0.011)


def test_no_more_is_kept_than_is_needed() -> None:
    known = SharedProfiles()
    many = [took(Shape("a100", n, 1), 1.0, 64 * n * k) for n in range(1, 31) for k in range(1, 9)]
    for i, m in enumerate(many):
        known.learn(run(i), profile(m))
    kept = known.complete_profile(run(0), Profile()).measured
    assert len(kept) == 48 and max(sum(m.shape == k.shape for m in kept) for k in kept) == 3
    assert kept[-1].plan == many[-1].plan


def test_another_daemon_goes_on_with_it() -> None:
    known, after = SharedProfiles(), SharedProfiles()
    stored = known.learn(run(1), profile(took(ONE, 1.0), noise=5.0))
    after.load({"job:1": profile(took(TWO, 9.0)), **stored})
    assert after.complete_profile(run(2), Profile()) == known.complete_profile(run(2), Profile()) != Profile()


NAMED = Directive(model="llama3-8b", global_batch=(64, 64))


def test_detected_kernels_hold_for_the_other_jobs_of_the_program_alone() -> None:
    known = SharedProfiles()
    first, second = run(1, "gpt-1", directive=NAMED), run(2, "gpt-2", directive=NAMED)
    stored = known.learn(first, Profile(samples=1, kernels=LOCAL))
    assert stored == {KERNELS + program_mark(first): Profile(kernels=LOCAL)}
    assert known.learn(first, Profile(samples=2, kernels=LOCAL)) == {}  # nothing new
    later = SharedProfiles()
    later.load(stored)
    strangers = run(3, "gpt-3", uid=8, directive=NAMED), run(4, "other", directive=NAMED)
    for shared in (known, later):
        believed = believed_profiles([second, *strangers], {}, shared)
        assert [believed[i].kernels for i in (2, 3, 4)] == [LOCAL, None, None]
    own = Profile(samples=1, kernels=Kernels(attention=True))
    assert believed_profiles([second], {2: own}, known)[2].kernels == own.kernels
    assert known.learn(second, own)  # the latest job of the program counts
    assert known.learn(first, Profile(samples=3, kernels=LOCAL)) == known.learn(second, own) == {}, (
        "not at every report"
    )
    assert believed_profiles([run(5, "gpt-5", directive=NAMED)], {}, known)[5].kernels == own.kernels
