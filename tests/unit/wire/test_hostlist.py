from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from synergy_core.errors import UsageError
from synergy_core.wire.hostlist import MAX_NAMES, expand


@pytest.mark.parametrize(
    "text, names",
    [
        ("", []),
        ("(null)", []),
        ("N/A", []),
        ("None assigned", []),
        ("n1", ["n1"]),
        (" n1\n", ["n1"]),
        ("n1,gpu05", ["n1", "gpu05"]),
        ("n[1-3,7],gpu05", ["n1", "n2", "n3", "n7", "gpu05"]),
        ("n[08-11]", ["n08", "n09", "n10", "n11"]),
        ("n[098-101]", ["n098", "n099", "n100", "n101"]),
        ("n[9-10]-ib", ["n9-ib", "n10-ib"]),
        ("rack-1-n[2-2]", ["rack-1-n2"]),
        ("a[1],b[2-3]x", ["a1", "b2x", "b3x"]),
    ],
)
def test_names(text: str, names: list[str]) -> None:
    assert list(expand(text)) == names


@pytest.mark.parametrize(
    "text",
    ["n[1-", "n[]", "n[1,,2]", "n[-3]", "n[1-]", "n[3-1]", "n[1--2]", "n[a]", "n]", ",n1", "n1,", "n1,,n2", "n[1]x[2]", "n[1-2-3]",
     f"n[0-{MAX_NAMES + 1}]", "n[0-99999,0-99999]", f"n[1-{'9' * 5000}]", "n[²]"],
)  # fmt: skip
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"^x: .* is not a host list; expected "):
        expand(text, "x")


@pytest.mark.parametrize(
    "text",
    ["n[1-999999999]", "n[1-2]r[1-2]", "a," * 4_000_000 + "a", "p" * 1_000_000 + "[1-99999]", "[" * 8_000_000, "n[" + "1," * 4_000_000],
)  # fmt: skip
def test_a_malformed_or_endless_one_costs_a_line_and_little_time(text: str) -> None:
    began = time.process_time()
    with pytest.raises(UsageError) as error:
        expand(text, "SLURM_JOB_NODELIST")
    assert time.process_time() - began < 3.0 and len(str(error.value)) < 200


@settings(max_examples=100, deadline=None)
@given(st.text(alphabet="n1[]-,0 é", max_size=20))
def test_no_text_does_worse_than_usage_error(text: str) -> None:
    try:
        names = expand(text)
    except UsageError as error:
        assert "\n" not in str(error)
        return
    assert not any(c in name for name in names for c in "[],")


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 900), st.integers(0, 50), st.integers(1, 5)), min_size=1, max_size=4))
def test_ranges_as_slurm_writes_them(parts: list[tuple[int, int, int]]) -> None:
    text = ",".join(f"n[{low:0{width}d}-{low + more:0{width}d}]" for low, more, width in parts)
    wanted = [f"n{i:0{len(f'{low:0{width}d}')}d}" for low, more, width in parts for i in range(low, low + more + 1)]
    assert list(expand(text)) == wanted
