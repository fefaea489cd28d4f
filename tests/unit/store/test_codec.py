"""Records survive the way into JSON and back; anything else is refused with one line."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from synergyd.errors import UsageError
from synergyd.records import Action, Alternative, Cell, Decision, ModelSpec, Plan, Profile, Report, Shape
from synergyd.store.codec import RefusedError, clean, decode, encode

RECORDS: tuple[type[Any], ...] = (Cell, Plan, Decision, ModelSpec, Profile, Report, Shape, Alternative)
# text that is stored as it is: no NUL, no lone surrogates
st.register_type_strategy(str, st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00")))
st.register_type_strategy(float, st.floats(allow_nan=False))


@pytest.mark.parametrize("cls", RECORDS)
def test_round_trip(cls: type[Any]) -> None:
    @given(st.from_type(cls))
    def check(record: Any) -> None:
        assert decode(cls, json.loads(json.dumps(encode(record), allow_nan=False))) == record

    check()


def test_not_a_number_comes_back() -> None:
    assert math.isnan(decode(Profile, encode(Profile(speed=math.nan))).speed)


@given(st.text())
def test_any_text_becomes_storable(text: str) -> None:
    stored = clean(text)
    assert "\x00" not in stored and stored.encode().decode() == stored
    assert clean(stored) == stored


def test_unknown_fields_are_ignored_and_missing_ones_default() -> None:
    assert decode(Plan, {"tp": 2, "expert_parallel": 8}) == Plan(tp=2)


@pytest.mark.parametrize(
    ("cls", "data", "message"),
    [
        (Plan, {"tp": "2"}, "p.tp: '2' is not a whole number"),
        (Plan, {"tp": True}, "p.tp: True is not a whole number"),
        (Plan, {"tp": 2.0}, "p.tp: 2.0 is not a whole number"),
        (Plan, {"sequence_parallel": 1}, "p.sequence_parallel: 1 is not true or false"),
        (Plan, {"recompute": None}, "p.recompute: None is not text"),
        (Plan, [1, 2], "p: [1, 2] is not a Plan (a table of names and values)"),
        (Shape, {"gpu_type": "a100", "nodes": 1}, "p: field gpus_per_node is missing"),
        (Profile, {"speed": "fast"}, "p.speed: 'fast' is not a number"),
        (Profile, {"model": {"name": 1}}, "p.model.name: 1 is not text"),
        (Profile, {"speed": 10**400}, "is not a number"),
        (Decision, {"job_id": 1, "action": "kill"}, "p.action: 'kill' is not one of keep, start, resize, wait"),
        (
            Decision,
            {"job_id": 1, "action": "keep", "cell": None, "node_names": "n1", "why": ""},
            "p.node_names: 'n1' is not a list",
        ),
        (
            Decision,
            {"job_id": 1, "action": "keep", "cell": None, "node_names": ["a", 3], "why": ""},
            "p.node_names[1]: 3 is not text",
        ),
    ],
)
def test_wrong_types_are_one_line(cls: type[Any], data: object, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        decode(cls, data, "p")
    assert message in str(caught.value) and "\n" not in str(caught.value)


def test_enums() -> None:
    assert encode(Action.KEEP) == "keep" and decode(Action, "keep") is Action.KEEP


def test_containers() -> None:
    assert encode({1: {"b", "a"}, "x": (1, None, True)}) == {"1": ["a", "b"], "x": [1, None, True]}
    with pytest.raises(RefusedError, match="can't store a object"):
        encode([object()])
