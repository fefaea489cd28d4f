"""What a Megatron-LM run resumes from."""

from __future__ import annotations

from pathlib import Path

import pytest
from synergy_launch.megatron_lm.older_checkpoint import is_resumed_from_older_format


def saved(folder: Path, newest: str, *parts: str) -> Path:
    folder.mkdir()
    (folder / "latest_checkpointed_iteration.txt").write_text(newest)
    inside = folder / (f"iter_{int(newest):07d}" if newest.isdecimal() else newest)
    for part in parts:
        (inside / part).mkdir(parents=True)
    return folder


@pytest.mark.parametrize("newest", ["40", "release"])
def test_parts_of_ranks_are_the_older_format(tmp_path: Path, newest: str) -> None:
    older = saved(tmp_path / "older", newest, "mp_rank_00_000", "mp_rank_00_001")
    newer = saved(tmp_path / "newer", newest, "__0_0.distcp")
    assert is_resumed_from_older_format([], older) and not is_resumed_from_older_format([], newer)
    # its own checkpoints come before what it begins with
    assert is_resumed_from_older_format(["--load", str(older)], tmp_path / "none")
    assert is_resumed_from_older_format([f"--load={older}"], None)
    assert not is_resumed_from_older_format(["--load", str(older)], newer)


@pytest.mark.parametrize("newest", ["", "../../etc", "-1", "9" * 5000, "\u0663"])
def test_what_makes_no_sense_counts_as_none(tmp_path: Path, newest: str) -> None:
    (tmp_path / "latest_checkpointed_iteration.txt").write_text(newest)
    assert not is_resumed_from_older_format(["--load"], tmp_path)
    assert not is_resumed_from_older_format(["--load", str(tmp_path / "missing")], None)
