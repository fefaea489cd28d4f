from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from synergyd.slurm.parsed.rows import (
    gpu_items,
    gres_items,
    memory_is_per_cpu,
    parse_gpus,
    parse_mib,
    parse_seconds,
    per_gpu,
)


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
    assert parse_gpus(text) == found


def test_items_keep_what_is_no_gpu() -> None:
    assert gres_items("gres:gpu:2(IDX:0,1),nic:1,") == ["gres:gpu:2(IDX:0,1)", "nic:1"]
    assert gpu_items("nic:1,gpu:a100:2,gpu:1") == [("a100", 2), ("", 1)]


@settings(max_examples=150, deadline=None)
@given(st.text(alphabet="gpures:/=,()0123a²", max_size=20))
def test_no_text_raises(text: str) -> None:
    found = parse_gpus(text)
    assert found in [*gpu_items(text), ("", 0)]


@pytest.mark.parametrize(
    "text, seconds",
    [
        ("3:04", 184.0),
        ("1:00:00", 3600.0),
        ("3-04:06:00", 3 * 86400 + 4 * 3600 + 360.0),
        ("365-00:00:00", 365 * 86400.0),
        ("UNLIMITED", None),
        ("Partition_Limit", None),
        ("NOT_SET", None),
        ("", None),
        ("10", None),
        ("1-2", None),
        ("1:2:3:4", None),
        ("²:04", None),
        ("9" * 5000 + ":04", None),
    ],
)
def test_durations(text: str, seconds: float | None) -> None:
    assert parse_seconds(text) == seconds


@pytest.mark.parametrize(
    "text, mib",
    [("62.50G", 64000), ("1500M", 1500), ("2048K", 2), ("1T", 1024**2), ("64000", 64000), ("0", 0), ("", 0), ("N/A", 0),
     ("1.x5G", 0), ("²G", 0), ("64000+", 0)],
)  # fmt: skip
def test_memory(text: str, mib: int) -> None:
    assert parse_mib(text) == mib


def test_memory_of_a_cpu_or_of_a_node() -> None:
    assert memory_is_per_cpu(300, 900, 3, 1) and not memory_is_per_cpu(900, 900, 3, 1)
    assert not memory_is_per_cpu(300, 600, 2, 2), "the same either way"
    assert not memory_is_per_cpu(0, 64000, 8, 1), "whole nodes"
    assert not memory_is_per_cpu(3072, 0, 3, 1), "a running job's TRES where Slurm does not count memory"
    assert (per_gpu("gres:gpu:512"), per_gpu("gres:nic:4"), per_gpu("N/A")) == (512, 0, 0)
