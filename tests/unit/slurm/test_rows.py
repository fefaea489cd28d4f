from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from synergyd.slurm.rows import gpu_items, gpus_of, gres_items


@pytest.mark.parametrize(
    "text, found",
    [
        ("", ("", 0)),
        ("(null)", ("", 0)),
        ("N/A", ("", 0)),
        ("gpu", ("", 1)),
        ("gpu:a100", ("a100", 1)),
        ("gpu:4", ("", 4)),
        ("gpu:a100:4", ("a100", 4)),
        ("gpu:a100:4(S:0-1)", ("a100", 4)),
        ("gres:gpu:2", ("", 2)),
        ("gres:gpu:a100:2", ("a100", 2)),
        ("gres/gpu=2", ("", 2)),
        ("gres/gpu:a100=2", ("a100", 2)),
        ("gpu:a100:3(IDX:0,2-3)", ("a100", 3)),
        ("gpu:a100:0(IDX:N/A)", ("a100", 0)),
        ("gpu:a100:no_consume:4", ("a100", 4)),
        ("nic:2,gpu:v100:8(S:0,1),nvme:1", ("v100", 8)),
        ("mps:400,shard:8", ("", 0)),
        ("gpus:4", ("", 0)),
        ("gpu:a100:2,gpu:v100:4", ("a100", 2)),  # the first
        ("gpu:a100:0,gpu:v100:4", ("v100", 4)),  # ... with a count
        ("gpu=6,gpu:a100=2", ("a100", 2)),
        ("gpu:²", ("²", 1)),  # a digit to isdigit, not to int
        ("gpu:" + "9" * 5000, ("9" * 5000, 1)),
    ],
)
def test_gpus_of(text: str, found: tuple[str, int]) -> None:
    assert gpus_of(text) == found


def test_items_keep_what_is_no_gpu() -> None:
    assert gres_items("gres:gpu:2(IDX:0,1),nic:1,") == ["gres:gpu:2(IDX:0,1)", "nic:1"]
    assert gpu_items("nic:1,gpu:a100:2,gpu:1") == [("a100", 2), ("", 1)]


@settings(max_examples=150, deadline=None)
@given(st.text(alphabet="gpures:/=,()0123a²", max_size=20))
def test_no_text_raises(text: str) -> None:
    found = gpus_of(text)
    assert found in [*gpu_items(text), ("", 0)]
