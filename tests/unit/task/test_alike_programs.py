"""Programs that differ in their names alone: when they count as one, and when they do not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from synergyd.records import Profile, Shape
from synergyd.task.alike_programs import AlikePrograms
from synergyd.task.shared_profiles import SharedProfiles, likeness
from tests.unit.task.test_shared_profiles import FOUR, ONE, RANGE, TWO, profile, run, took

NAMES = ("rate-a", "rate-b", "decay-a", "decay-b", "warm", "cold")


def taught(seconds: dict[str, float]) -> SharedProfiles:
    """What a sweep has measured: each program a step of ONE."""
    known = SharedProfiles()
    for number, (name, step_s) in enumerate(seconds.items()):
        known.learn(run(number, name), profile(took(ONE, step_s), took(TWO, 0.6 * step_s), noise=300.0))
    return known


def shapes(known: SharedProfiles, name: str = "another", own: Profile | None = None) -> list[Shape]:
    return [m.shape for m in known.believed(run(99, name), own or Profile()).measured]


@pytest.mark.parametrize(("programs", "sees"), [(0, []), (1, []), (2, [ONE, TWO]), (6, [ONE, TWO])])
def test_a_new_name_knows_what_several_others_that_ran_as_one_have_measured(programs: int, sees: list[Shape]) -> None:
    known = taught({name: 1.0 + 0.015 * n for n, name in enumerate(NAMES[:programs])})
    assert shapes(known) == sees
    found = known.believed(run(99, "another"), Profile())
    assert found.noise_scale == (pytest.approx(300, rel=0.03) if sees else None) and found.samples == (1 if sees else 0)


def test_runs_of_one_program_are_no_agreement() -> None:
    known = taught({f"vit-{n}": 1.0 for n in range(9)})
    assert shapes(known, "vit-10") == [ONE, TWO] and shapes(known, "swin") == []


@pytest.mark.parametrize("seconds", [[1.0, 2.0] * 8, [1.0, 1.0, 1.0, 1.5] * 8, [9.0, *[1.0, 1.2] * 8]])
def test_where_one_in_five_differs_nobody_shares(seconds: list[float]) -> None:
    assert shapes(taught({f"{n}x": step_s for n, step_s in enumerate(seconds)})) == []


def test_one_odd_program_is_left_out_and_keeps_to_itself() -> None:
    known = taught({**dict.fromkeys(["a", "b", "c", "d", "e", "f", "g", "h"], 1.0), "odd": 1.3})
    assert shapes(known) == [ONE, TWO]
    own = profile(took(ONE, 1.3))
    assert shapes(known, "odd", own) == [TWO, ONE]  # its own program's alone
    assert [m.step_s for m in known.believed(run(99, "odd"), own).measured] == pytest.approx([0.78, 1.3], rel=0.011)


def test_where_the_first_was_the_odd_one_the_next_ones_are_compared_with_another() -> None:
    assert shapes(taught({"odd": 9.0, "again": 8.0, **dict.fromkeys(["a", "b", "c", "d", "e"], 1.0)})) == [ONE, TWO]


def test_own_measurements_and_those_of_the_program_come_first() -> None:
    known = taught(dict.fromkeys(NAMES, 1.0))
    known.learn(run(50, "mine"), profile(took(TWO, 0.63), took(FOUR, 0.4)))
    found = known.believed(run(51, "mine"), profile(took(ONE, 1.05)))
    seconds = {m.shape: m.step_s for m in found.measured}
    assert seconds == pytest.approx({ONE: 1.05, TWO: 0.63, FOUR: 0.4}, rel=0.011) and len(found.measured) == 3


@pytest.mark.parametrize(
    "other", [run(9, uid=8), run(9, directive=replace(RANGE, micro_batch=2)), run(9, directive=None)]
)
def test_another_user_or_batch_shares_nothing(other: object) -> None:
    known = taught(dict.fromkeys(NAMES, 1.0))
    assert known.believed(other, Profile()) == Profile()  # type: ignore[arg-type]


def test_another_daemon_goes_on_with_it_and_what_was_stored_before_it_had_a_kind_is_still_known() -> None:
    known, after = SharedProfiles(), SharedProfiles()
    stored: dict[str, Profile] = {}
    for number, name in enumerate(NAMES):
        stored |= known.learn(run(number, name), profile(took(ONE, 1.0)))
    after.load(stored)
    assert shapes(after) == [ONE]
    key = likeness(run(1), Profile())
    assert key is not None
    before = SharedProfiles()
    before.load({key.rpartition(":")[0]: profile(took(ONE, 1.0))})
    assert shapes(before, "vit-7") == [ONE] and shapes(before) == []
    assert before.learn(run(2), profile(took(TWO, 0.6))) and shapes(before, "vit-7") == [ONE, TWO]


def test_no_more_is_kept_than_is_needed() -> None:
    known = AlikePrograms()
    for number in range(400):
        known.take("kind", f"p{number}", profile(took(ONE, 1.0), took(Shape("a100", 1, 5 + number), 1.0, 5 + number)))
    found = known.known("kind", "new")
    assert found is not None and len(found[0]) == 48
    for number in range(10_100):
        known.take(f"k{number}", "p", profile(took(ONE, 1.0)))
    assert len(known._kinds) == 10_000
