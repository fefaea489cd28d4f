"""What an owner sets since sbatch: texts and JSON in, a directive out."""

from __future__ import annotations

from dataclasses import replace

import pytest
from synergy_core.errors import UsageError
from synergy_core.records import Directive, Job, JobState, Shape
from synergy_core.steering import Steering, format_steering, parse_steering, steer_directive, steer_job, with_changes


def test_what_is_set_comes_over_the_directive_and_goes_back() -> None:
    directive = Directive(min_gpus=2, max_gpus=8, weight=1.5)
    first = parse_steering("job 7", ["max_gpus=4", "weight=2"], Steering())
    assert steer_directive(directive, first) == Directive(min_gpus=2, max_gpus=4, weight=2.0)
    then = parse_steering("job 7", ["weight="], first)
    assert then == Steering(max_gpus=4) and format_steering(then) == "max_gpus=4"
    assert steer_directive(directive, parse_steering("job 7", ["max_gpus="], then)) == directive
    assert format_steering(Steering()) == "as in its script" and steer_directive(directive, None) == directive


@pytest.mark.parametrize(
    ("steering", "bounds"),
    [(Steering(min_gpus=16), (16, 16)), (Steering(max_gpus=1), (1, 1)), (Steering(min_gpus=3, max_gpus=5), (3, 5))],
)
def test_a_bound_that_crosses_the_scripts_other_one_moves_it(steering: Steering, bounds: tuple[int, int]) -> None:
    after = steer_directive(Directive(min_gpus=2, max_gpus=8), steering)
    assert (after.min_gpus, after.max_gpus) == bounds


@pytest.mark.parametrize(
    "given",
    ["min_gpus", "gpus=4", "min_gpus=0", "max_gpus=65537", "min_gpus=four", "min_gpus=1.5", "weight=0", "weight=nan",
     "weight=1e9", "weight=-1", "min_gpus=9 max_gpus=8", "min_gpus=1 min_gpus=2", "weight=1e400", "min_gpus=" + "9" * 5000],
)  # fmt: skip
def test_a_wrong_text_is_one_line(given: str) -> None:
    with pytest.raises(UsageError) as raised:
        parse_steering("job 7", given.split(), Steering())
    assert str(raised.value).startswith("job 7: ") and "\n" not in str(raised.value) and len(str(raised.value)) < 400


@pytest.mark.parametrize("value", [True, "4", 4.0, [4], {}, 2**70, -1])
def test_json_of_another_type_is_refused(value: object) -> None:
    with pytest.raises(UsageError, match="min_gpus is"):
        with_changes("job 7", {"min_gpus": value}, Steering())


@pytest.mark.parametrize(("held", "why"), [(4, "max_gpus=2 was set"), (2, "")])
def test_a_job_on_more_than_it_may_have_now_gives_back(held: int, why: str) -> None:
    job = make_job(JobState.RUNNING, Shape("a100", 1, held))
    assert steer_job(job, Steering(max_gpus=2)).gives_back == why
    assert steer_job(replace(job, state=JobState.PENDING), Steering(max_gpus=2)).gives_back == ""
    assert steer_job(replace(job, directive=None), Steering(max_gpus=2)).gives_back == ""


def make_job(state: JobState, shape: Shape) -> Job:
    return Job(7, "a", "ann", 1000, "main", state, "", 0.0, None, None, 0, shape, shape, directive=Directive())
