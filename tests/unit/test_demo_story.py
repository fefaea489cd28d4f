"""The demo's judge of step logs."""

from __future__ import annotations

import json
from pathlib import Path

from tests.demo.story import faults, grew, legs, shrank


def _log(path: Path, steps: list[tuple[int, int, float]]) -> Path:
    lines = [{"step": s, "restarts": r, "loss": x, "tp": 1, "pp": 1, "dp": r + 1} for r, s, x in steps]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"step": 9')
    return path


def test_legs_and_a_clean_run(tmp_path: Path) -> None:
    run = legs(_log(tmp_path / "steps", [(0, 1, 5.0), (0, 2, 4.9), (1, 3, 4.8), (1, 4, 4.7)]))
    assert [(leg.restarts, leg.first_step, leg.last_step, leg.dp) for leg in run] == [(0, 1, 2, 1), (1, 3, 4, 2)]
    assert faults("a", run, 1.0) == []


def test_a_repeated_or_lost_step_and_a_jump_are_seen(tmp_path: Path) -> None:
    repeated = legs(_log(tmp_path / "a", [(0, 1, 5.0), (0, 2, 4.9), (1, 2, 4.9)]))
    assert faults("a", repeated, 1.0) == ["a: step 2 was followed by step 2"]
    lost = legs(_log(tmp_path / "b", [(0, 1, 5.0), (1, 3, 4.9)]))
    assert faults("b", lost, 1.0) == ["b: step 1 was followed by step 3"]
    jumped = legs(_log(tmp_path / "c", [(0, 1, 3.0), (1, 2, 5.0)]))
    assert faults("c", jumped, 1.0) == ["c: loss 3.0000 before the resize, 5.0000 after it"]


def test_one_odd_step_is_no_jump_and_a_fresh_start_is_one(tmp_path: Path) -> None:
    before = [(0, i, 2.7) for i in range(1, 9)]
    odd = legs(_log(tmp_path / "a", [*before, (1, 9, 3.8), *((1, i, 2.7) for i in range(10, 16))]))
    assert faults("a", odd, 1.0) == []
    fresh = legs(_log(tmp_path / "b", [*before, *((1, i, 5.5) for i in range(9, 16))]))
    assert faults("b", fresh, 1.0) == ["b: loss 2.7000 before the resize, 5.5000 after it"]


def test_a_job_shrank_or_grew_by_its_own_legs(tmp_path: Path) -> None:
    """Two jobs shrink and the one that is back first is seen first: that the other grows later is told by it alone."""
    grown = legs(_log(tmp_path / "a", [(0, 1, 3.0), (3, 2, 3.0), (1, 3, 3.0), (2, 4, 3.0)]))
    assert [leg.gpus for leg in grown] == [1, 4, 2, 3]
    assert [(shrank(grown[:n]), grew(grown[1:n])) for n in (2, 3, 4)] == [(False, False), (True, False), (True, True)]
    assert not shrank([]) and not grew([])


def test_no_log_is_no_leg(tmp_path: Path) -> None:
    assert legs(tmp_path / "none") == []
