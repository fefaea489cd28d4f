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


class Movable(UserDict[str, Any]):
    """Moves itself and has attributes besides, as Hugging Face's BatchEncoding."""

    def to(self, device: Any, *, non_blocking: bool = False) -> Movable:
        self.data = {name: value.to(device) for name, value in self.data.items()}
        return self


def test_what_can_move_itself_stays_what_it_is() -> None:
    import torch
    from synergy_launch.pytorch.device import on_device

    batch = Movable(rows=torch.ones(2))
    assert on_device("meta", batch) is batch and batch["rows"].device.type == "meta"


def test_mappings_sequences_and_namedtuples() -> None:
    import torch
    from synergy_launch.pytorch.device import on_device

    rows = torch.ones(2)
    moved = on_device("meta", UserDict(rows=rows, n=3))
    assert dict(**moved)["rows"].device.type == "meta" and moved["n"] == 3
    pair = on_device("meta", Pair(rows, ["a"]))
    assert isinstance(pair, Pair) and pair.rows.device.type == "meta" and pair.names == ["a"]
    both = on_device("meta", (rows, [rows, "b"]))
    assert isinstance(both, list) and both[1][0].device.type == "meta" and both[1][1] == "b"
