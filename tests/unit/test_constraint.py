"""--constraint against a node's features, beside Python's own reading of the same words."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from synergy_core.constraint import constraint_obstacle, has_features


@pytest.mark.parametrize(
    "wanted, met",
    [
        ("", True),
        ("a", True),
        ("c", False),
        ("a&b", True),
        ("a&c", False),
        ("c|b", True),
        ("(a)", True),
        ("a&(c|b)", True),
        ("(a&c)|(b&c)", False),
        ("((a|c)&(b|c))", True),
    ],
)
def test_a_node_with_a_and_b(wanted: str, met: bool) -> None:
    assert has_features(wanted, ("a", "b")) is met and not constraint_obstacle(wanted)


@pytest.mark.parametrize(
    "wanted",
    ["a|b&c", "[a|b]", "a*2", "a&", "&", "(a", "a)", "()", "a b", "a,b", "!a", "[a*2&b]", "(" * 50 + "a" + ")" * 50],
)
def test_what_is_left_to_slurm(wanted: str) -> None:
    assert wanted in constraint_obstacle(wanted) and not has_features(wanted, ("a", "b", "c"))


texts = st.recursive(
    st.sampled_from("abcd"),
    lambda inner: st.tuples(st.sampled_from("&|"), st.lists(inner, min_size=2, max_size=3)).map(
        lambda pair: "(" + pair[0].join(pair[1]) + ")"
    ),
    max_leaves=12,
)


@pytest.mark.slow
@given(texts, st.sets(st.sampled_from("abcd")))
def test_as_python_reads_it(text: str, features: set[str]) -> None:
    words = "".join(str(c in features) if c.isalpha() else {"&": " and ", "|": " or "}.get(c, c) for c in text)
    assert has_features(text, features) is eval(words)


@given(st.text(alphabet="ab&|()[]*: ", max_size=30))
def test_no_text_raises(text: str) -> None:
    has_features(text, ("a",))
