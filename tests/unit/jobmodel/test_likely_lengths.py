"""How much a job that does not tell its length has likely left, after what like jobs have taken."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest
from synergy_core.records import Directive, Job, JobState, Profile, Shape

from synergyd.jobmodel.likely_lengths import LearntLengths, Lengths

SHAPE = Shape("a100", 1, 4)
JOB = Job(1, "run-1", "ann", 1, "gpu", JobState.PENDING, "", 0.0, None, None, 0, shape=SHAPE, asked=SHAPE)
PLAIN = replace(JOB, directive=Directive(global_batch=(64, 512)))


def named(name: str, low: int = 64, gpus: int = 4, uid: int = 1) -> Job:
    shape = Shape("a100", 1, gpus)
    return replace(PLAIN, name=name, uid=uid, asked=shape, directive=Directive(global_batch=(low, 512)))


def spread(gpu_s: float, count: int, sigma: float = 0.1, seed: int = 1) -> list[float]:
    draw = random.Random(seed)
    return [gpu_s * math.exp(draw.gauss(0.0, sigma)) for _ in range(count)]


def after(*ended: tuple[Job, float]) -> LearntLengths:
    lengths = LearntLengths()
    for job, gpu_s in ended:
        lengths.record_end(job, gpu_s)
    return lengths


def index(lengths: LearntLengths, job: Job, had_gpu_s: float = 0.0) -> float:
    found = lengths.index_gpu_s(job, had_gpu_s)
    assert found is not None
    return found


def test_of_jobs_that_all_take_as_long_what_is_left_counts() -> None:
    """Gittins' index of a known length is what is left of it."""
    known = Lengths(spread(10_000.0, 500, sigma=0.01))
    assert known.index_gpu_s(0.0) == pytest.approx(10_000, rel=0.25)
    assert known.index_gpu_s(5_000.0) == pytest.approx(5_000, rel=0.4)
    assert known.index_gpu_s(8_000.0) < known.index_gpu_s(5_000.0) < known.index_gpu_s(0.0)


def test_the_longer_a_job_goes_on_beyond_all_others_the_more_it_counts() -> None:
    """A falling hazard: who has outlived all like it goes after those that are new."""
    known = Lengths(spread(600.0, 50))
    old = [known.index_gpu_s(had) for had in (2_000.0, 20_000.0, 200_000.0)]
    assert known.index_gpu_s(0.0) < 1_000 < old[0] < old[1] < old[2]
    assert Lengths().index_gpu_s(1e12) == 1e12  # beyond all that is counted: as long again


def test_a_bound_of_the_index_is_the_mean_that_is_left() -> None:
    """E[min(X - a, d)] / P(X <= a + d) at d without end is the mean left; none may be above it."""
    took = spread(5_000.0, 200, sigma=1.0)
    known = Lengths(took)
    assert known.index_gpu_s(0.0) <= 1.3 * sum(took) / len(took)


def test_few_jobs_count_little() -> None:
    """One short run of a program that usually is like all others moves it a little, ten move it much."""
    usual = [(named(f"train-{i}", gpus=4), gpu_s) for i, gpu_s in enumerate(spread(50_000.0, 40, 0.3))]
    new = named("quick-1", low=32)
    found = [
        index(after(*usual, *((new, gpu_s) for gpu_s in spread(300.0, count))), new, 100.0) for count in (0, 1, 10)
    ]
    assert found[0] > found[1] > found[2] and found[2] < 700 < found[0] / 10


def test_jobs_are_told_apart_by_program_then_by_user_and_batch_then_by_size() -> None:
    short = [(named(f"short-{i}", low=16), gpu_s) for i, gpu_s in enumerate(spread(300.0, 20))]
    long = [(named(f"long-{i}", low=8, gpus=8), gpu_s) for i, gpu_s in enumerate(spread(90_000.0, 20, seed=2))]
    lengths = after(*short, *long)
    assert index(lengths, named("short-99", low=16), 100.0) < 1_000
    assert index(lengths, named("long-99", low=8, gpus=8), 1_000.0) > 20_000
    # each run called differently: the batches tell
    assert index(lengths, named("a", low=16), 100.0) < 1_000
    # nothing else known: the size
    assert index(lengths, named("b", low=128, gpus=8), 1_000.0) > index(lengths, named("b", low=128, gpus=4), 1_000.0)


def test_other_users_have_one_vote_each_from_three_on() -> None:
    """A user's jobs say nothing to others alone, nor by their number; three users that agree do."""
    mine = named("mine", low=128, uid=9)
    one = [(named("short", low=16), gpu_s) for gpu_s in spread(300.0, 200)]
    assert after(*one).index_gpu_s(mine, 100.0) is None
    usual = [(named("long", uid=uid), gpu_s) for uid, gpu_s in enumerate(spread(90_000.0, 4, seed=2), 2)]
    vote = index(after(*usual, (named("short", low=16), 300.0)), mine, 100.0)
    assert index(after(*one, *usual), mine, 100.0) == pytest.approx(vote, rel=0.1) and vote > 2_000
    # what its own user's jobs took counts first
    assert index(after(*usual, *((replace(job, uid=9), gpu_s) for job, gpu_s in one)), mine, 100.0) < 1_000


def test_nothing_is_said_before_a_job_has_ended_and_none_that_never_ran_teaches() -> None:
    lengths = LearntLengths()
    assert lengths.record_end(PLAIN, 0.0) == {} and lengths.index_gpu_s(PLAIN, 10.0) is None


def test_what_is_stored_gives_the_next_daemon_the_same_to_a_bin() -> None:
    stored: dict[str, Profile] = {}
    lengths = LearntLengths()
    for i, (short, long) in enumerate(zip(spread(300.0, 25, 0.4), spread(90_000.0, 25, 0.4, seed=2), strict=True)):
        stored |= lengths.record_end(named(f"short-{i}", low=16), short)
        stored |= lengths.record_end(named(f"long-{i}", low=8), long)
    again = LearntLengths()
    again.load(
        {
            **stored,
            "length:x:y:-1:2": Profile(samples=3),
            "length:odd": Profile(),
            "length:a:b:1:2": Profile(),
            "length:a:b:1:9999": Profile(samples=1),
            "length:a:b:1:2:x": Profile(samples=1),
            "job:1": Profile(),
        }
    )
    for job in (named("short-1", low=16), named("long-1", low=8), named("other", low=64)):
        for had in (0.0, 200.0, 50_000.0):
            assert index(again, job, had) == pytest.approx(index(lengths, job, had), rel=0.5)
    # and goes on counting where the last one stopped
    key, profile = next(iter(again.record_end(named("short-1", low=16), 300.0).items()))
    assert profile.samples == stored.get(key, Profile()).samples + 1
