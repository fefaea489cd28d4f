"""Programs that differ in their names alone: when they count as one, and when they do not."""

from __future__ import annotations

from dataclasses import replace

import pytest
from synergy_core.records import Measurement, Profile, Shape

from synergyd.jobmodel.alike_programs import AlikePrograms
from synergyd.jobmodel.shared_profiles import SharedProfiles, likeness
from tests.unit.jobmodel.test_shared_profiles import FOUR, ONE, RANGE, TWO, profile, run, took

NAMES = ("rate-a", "rate-b", "decay-a", "decay-b", "warm", "cold")


def taught(seconds: dict[str, float]) -> SharedProfiles:
    """What a sweep has measured: each program a step of ONE."""
    known = SharedProfiles()
    for number, (name, step_s) in enumerate(seconds.items()):
        known.learn(run(number, name), profile(took(ONE, step_s), took(TWO, 0.6 * step_s), noise=300.0))
    return known


def shapes(known: SharedProfiles, name: str = "another", own: Profile | None = None) -> list[Shape]:
    return [m.shape for m in known.complete_profile(run(99, name), own or Profile()).measured]


@pytest.mark.parametrize(("programs", "sees"), [(0, []), (1, []), (2, [ONE, TWO]), (6, [ONE, TWO])])
def test_a_new_name_knows_what_several_others_that_ran_as_one_have_measured(programs: int, sees: list[Shape]) -> None:
    known = taught({name: 1.0 + 0.015 * n for n, name in enumerate(NAMES[:programs])})
    assert shapes(known) == sees
    found = known.complete_profile(run(99, "another"), Profile())
    assert found.noise_scale == (pytest.approx(300, rel=0.12) if sees else None) and found.samples == (1 if sees else 0)


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
    assert [m.step_s for m in known.complete_profile(run(99, "odd"), own).measured] == pytest.approx(
        [0.78, 1.3], rel=0.011
    )


def test_where_the_first_was_the_odd_one_the_next_ones_are_compared_with_another() -> None:
    assert shapes(taught({"odd": 9.0, "again": 8.0, **dict.fromkeys(["a", "b", "c", "d", "e"], 1.0)})) == [ONE, TWO]


def test_own_measurements_and_those_of_the_program_come_first() -> None:
    known = taught(dict.fromkeys(NAMES, 1.0))
    known.learn(run(50, "mine"), profile(took(TWO, 0.63), took(FOUR, 0.4)))
    found = known.complete_profile(run(51, "mine"), profile(took(ONE, 1.05)))
    seconds = {m.shape: m.step_s for m in found.measured}
    assert seconds == pytest.approx({ONE: 1.05, TWO: 0.63, FOUR: 0.4}, rel=0.011) and len(found.measured) == 3


@pytest.mark.parametrize(
    "other", [run(9, uid=8), run(9, directive=replace(RANGE, micro_batch=2)), run(9, directive=None)]
)
def test_another_user_or_batch_shares_nothing(other: object) -> None:
    known = taught(dict.fromkeys(NAMES, 1.0))
    assert known.complete_profile(other, Profile()) == Profile()  # type: ignore[arg-type]


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


@pytest.mark.parametrize("same_batch", [True, False])
def test_one_that_has_measured_what_nobody_compares_is_told_nothing(same_batch: bool) -> None:
    """Neither by its own measurements nor by those of its program; other batches alone are no reason to trust either."""
    known = taught(dict.fromkeys(NAMES, 1.0))
    own = profile(took(FOUR, 9.0) if same_batch else took(ONE, 9.0, 256))
    assert shapes(known, "llm", own) == [m.shape for m in own.measured]
    known.learn(run(99, "llm"), own)
    assert shapes(known, "llm", own) == [m.shape for m in own.measured]
    assert shapes(known, "llm") == [m.shape for m in own.measured]  # its next run


def test_it_is_judged_again_when_it_has_measured_more() -> None:
    known = taught(dict.fromkeys(NAMES, 1.0))
    known.learn(run(99, "like"), profile(took(ONE, 1.02)))
    assert shapes(known, "like") == [TWO, ONE]
    known.learn(run(99, "like"), profile(took(ONE, 1.02), took(TWO, 3.0), took(FOUR, 2.0)))
    assert sorted(shapes(known, "like"), key=str) == sorted([ONE, TWO, FOUR], key=str)
    assert FOUR not in shapes(known)  # and it teaches nobody


def test_a_program_that_has_changed_is_not_told_what_it_was() -> None:
    known = taught({"rate": 1.0, "decay": 1.0})
    for number in (50, 51):
        known.learn(run(number, "rate"), profile(took(ONE, 3.0)))
        known.forget(number)
    assert shapes(known, "rate") == [ONE]


def test_a_mark_that_was_forgotten_is_no_agreement() -> None:
    known = taught({"a": 1.0, "b": 1.0, "c": 1.0, "d": 1.0, "e": 1.0, "f": 1.0, "big": 9.0})
    assert shapes(known, "big") == [TWO, ONE] or shapes(known, "big") == [ONE, TWO]
    for number in range(40):
        known.learn(run(200 + number, f"x{number}y"), profile(took(ONE, 1.0), took(FOUR, 0.3)))
    assert FOUR in shapes(known) and FOUR not in shapes(known, "big")


def test_without_a_batch_range_nothing_says_that_programs_are_alike() -> None:
    bare = replace(RANGE, global_batch=None)
    known = SharedProfiles()
    for number, name in enumerate(NAMES):
        known.learn(run(number, name, directive=bare), profile(took(ONE, 1.0)))
    assert known.complete_profile(run(99, "another", directive=bare), Profile()) == Profile()


@pytest.mark.parametrize(
    ("micro", "step_s", "agrees"), [(72, 1.1, True), (72, 0.85, False), (72, 1.3, False), (96, 1.2, None)]
)
def test_micro_batches_that_are_near_are_compared(micro: int, step_s: float, agrees: bool | None) -> None:
    """A step of 9/8 of 64 samples takes 1 to 9/8 of the time, and 10 % more or less for what clusters vary by."""
    known = AlikePrograms()
    known.take("kind", "a", profile(took(ONE, 1.0), took(TWO, 0.6)))
    known.take("kind", "b", profile(took(ONE, step_s, micro)))
    assert (known.find_measurements("kind", "new", False) is not None) == (agrees is True)
    assert known._kinds["kind"].agrees.get("b") is agrees


def test_no_more_is_kept_than_is_needed_and_it_stays() -> None:
    known = AlikePrograms()
    many = [took(Shape("a100", n, 1), 1.0, 64 * n * k) for n in range(1, 31) for k in range(1, 9)]
    kept: list[set[Measurement]] = []
    for _ in range(3):
        for program, some in (("a", many), ("b", many[100:])):
            known.take("kind", program, profile(*some))
        found = known.find_measurements("kind", "new", False)
        assert found is not None and len(found[0]) == 48
        assert max(sum(m.shape == k.shape for m in found[0]) for k in found[0]) == 3
        kept.append(set(found[0]))
    assert kept[1] == kept[2]
    for number in range(10_100):
        known.take(f"k{number}", "p", profile(took(ONE, 1.0)))
    assert len(known._kinds) == 10_000
