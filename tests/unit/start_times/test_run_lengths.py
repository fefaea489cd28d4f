"""Lengths drawn from runs that have ended: by program, by other users' votes, under time limits."""

from __future__ import annotations

import statistics

from synergyd.start_times.run_lengths import EndedRun, LengthDraw, RunLengths
from tests.unit.start_times.queues import program


def learnt(*runs: EndedRun) -> RunLengths:
    lengths = RunLengths()
    for run in runs:
        lengths.add(run)
    return lengths


def draws(lengths: RunLengths, of: object = None, had_s: float = 0.0, count: int = 300) -> list[float]:
    return [LengthDraw(lengths, seed).seconds(of or program(), had_s) for seed in range(count)]  # type: ignore[arg-type]


def test_of_an_unknown_job_any_share_of_its_limit_is_as_likely() -> None:
    drawn = draws(RunLengths())
    assert 0 <= min(drawn) < 60 and 540 < max(drawn) <= 600
    assert 250 < statistics.median(drawn) < 350


def test_many_runs_of_a_program_tell_its_length() -> None:
    drawn = draws(learnt(*[EndedRun(program(), 120.0)] * 30))
    assert statistics.median(drawn) == 120.0
    assert sum(s == 120.0 for s in drawn) > 250


def test_few_runs_count_little() -> None:
    shares = [sum(s == 120.0 for s in draws(learnt(*[EndedRun(program(), 120.0)] * n))) for n in (1, 8)]
    assert shares[0] < shares[1] - 30


def test_a_job_that_has_run_longer_than_all_runs_runs_on() -> None:
    drawn = draws(learnt(*[EndedRun(program(), 120.0)] * 30), had_s=300.0)
    assert min(drawn) >= 300.0 and max(drawn) <= 600.0


def test_lengths_of_one_draw_are_drawn_together() -> None:
    """Of a program about which nothing is known, the jobs of one draw are alike: their sum is less certain than that of strangers."""
    own = [LengthDraw(RunLengths(), seed) for seed in range(200)]
    alike = [sum(draw.seconds(program()) for _ in range(10)) for draw in own]
    strangers = [LengthDraw(RunLengths(), seed) for seed in range(200)]
    apart = [sum(draw.seconds(program(user=f"u{i}")) for i in range(10)) for draw in strangers]
    assert statistics.stdev(alike) > 1.5 * statistics.stdev(apart)


def test_each_other_user_has_one_vote() -> None:
    """One user with a thousand runs weighs as much as three with one each, and two users alone are not listened to."""
    loud = [EndedRun(program("loud", f"p{i}"), 1.0) for i in range(1000)]
    quiet = [EndedRun(program(f"q{i}", "x"), 500.0) for i in range(3)]
    short, long = (sum(s == x for s in draws(learnt(*loud, *quiet), program("mina", "new"))) for x in (1.0, 500.0))
    assert short < long / 2
    assert not any(s == 1.0 for s in draws(learnt(*loud, quiet[0]), program("mina", "new")))


def test_runs_under_another_limit_count_by_their_share_of_it() -> None:
    runs = [EndedRun(program(name=f"n{i}", limit_s=1200.0), 600.0) for i in range(30)]
    assert statistics.median(draws(learnt(*runs), program(name="new", limit_s=200.0))) == 100.0


def test_a_job_without_a_limit_has_some_length() -> None:
    drawn = draws(RunLengths(), program(limit_s=None))
    assert min(drawn) >= 60.0 and max(drawn) <= 30 * 86400.0
