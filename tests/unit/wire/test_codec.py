"""Records survive the way into JSON and back; anything else is refused with one line."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from synergy_core.errors import UsageError
from synergy_core.job_report import Report
from synergy_core.reasons import Reason
from synergy_core.records import Action, Alternative, Cell, Decision, ModelSpec, Plan, Profile, Shape
from synergy_core.wire.codec import clean, decode, encode

RECORDS: tuple[type[Any], ...] = (Cell, Plan, Decision, ModelSpec, Profile, Report, Shape, Alternative)
# text that is stored as it is: no NUL, no lone surrogates
st.register_type_strategy(str, st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00")))
st.register_type_strategy(float, st.floats(allow_nan=False))
_TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"))
_VALUES = _TEXTS | st.integers() | st.lists(st.none() | st.integers())
st.register_type_strategy(Reason, st.builds(Reason, code=_TEXTS, fields=st.dictionaries(_TEXTS, _VALUES)))


@pytest.mark.slow
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
        (Plan, {"tp": "2"}, "p: tp is '2'; expected a whole number"),
        (Plan, {"tp": True}, "p: tp is True; expected a whole number"),
        (Plan, {"tp": 2.0}, "p: tp is 2.0; expected a whole number"),
        (Plan, {"sequence_parallel": 1}, "p: sequence_parallel is 1; expected true or false"),
        (Plan, {"recompute": None}, "p: recompute is None; expected text"),
        (Plan, [1, 2], "p: is a list; expected a Plan (a table of names and values)"),
        (Shape, {"gpu_type": "a100", "nodes": 1}, "p: gpus_per_node is missing"),
        (Profile, {"speed": "fast"}, "p: speed is 'fast'; expected a number"),
        (Profile, {"model": {"name": 1}}, "p: model.name is 1; expected text"),
        (Profile, {"speed": 10**400}, "expected a number"),
        (
            Decision,
            {"job_id": 1, "action": "kill"},
            "p: action is 'kill'; expected one of keep, start, resize, wait",
        ),
        (Decision, {"job_id": 1, "action": [1]}, "p: action is a list; expected one of keep, start, resize, wait"),
        (
            Decision,
            {"job_id": 1, "action": "keep", "cell": None, "node_names": "n1", "why": ""},
            "p: node_names is 'n1'; expected a list",
        ),
        (
            Decision,
            {"job_id": 1, "action": "keep", "cell": None, "node_names": ["a", 3], "why": ""},
            "p: node_names[1] is 3; expected text",
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
    with pytest.raises(TypeError, match="JSON can't hold a object"):
        encode([object()])
