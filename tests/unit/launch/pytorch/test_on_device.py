"""Batches of any make, moved to a device."""

from __future__ import annotations

from collections import UserDict
from typing import Any, NamedTuple

import pytest

pytest.importorskip("torch")
pytestmark = pytest.mark.training


class Pair(NamedTuple):
    rows: Any
    names: list[str]


def test_mappings_sequences_and_namedtuples() -> None:
    import torch
    from synergy_launch.pytorch.on_device import on_device

    rows = torch.ones(2)
    moved = on_device("meta", UserDict(rows=rows, n=3))  # Hugging Face's BatchEncoding is one
    assert dict(**moved)["rows"].device.type == "meta" and moved["n"] == 3
    pair = on_device("meta", Pair(rows, ["a"]))
    assert isinstance(pair, Pair) and pair.rows.device.type == "meta" and pair.names == ["a"]
    both = on_device("meta", (rows, [rows, "b"]))
    assert isinstance(both, list) and both[1][0].device.type == "meta" and both[1][1] == "b"
