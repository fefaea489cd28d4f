"""SIGKILL at random moments: every resume finds a good checkpoint and loses at most an interval."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.benchmarks import kills

pytestmark = [pytest.mark.training, pytest.mark.timeout(900)]


@pytest.mark.parametrize(("saves", "most"), [("waiting", kills.INTERVAL), ("background", 2 * kills.INTERVAL - 1)])
def test_every_kill_is_followed_by_a_resume_from_a_good_checkpoint(tmp_path: Path, saves: str, most: int) -> None:
    result = kills.measure(6, 2, tmp_path / "run", seed=7, saves=saves)
    assert result.kills == 6 and result.corrupt == []
    assert result.resumes >= 4  # a kill before the first step leaves nothing to resume
    assert max(result.lost) <= most
    assert result.same_end is True
