"""DeepSpeed's configuration with the plan's batch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from synergy_launch.deepspeed import with_plan

NAMES = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")


def batch_of(config: dict[str, Any]) -> list[int]:
    return [config[name] for name in NAMES]


def test_the_plans_batch_comes_first(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    given = {"train_micro_batch_size_per_gpu": 8, "gradient_accumulation_steps": "auto", "bf16": {"enabled": True}}
    assert batch_of(with_plan(given, global_batch=48)) == [48, 8, 3]
    assert batch_of(with_plan({}, global_batch=48)) == [48, 24, 1]
    monkeypatch.setenv("SYNERGY_PLAN_JSON", json.dumps({"dp": 2, "global_batch": 64, "micro_batch": 4}))
    path = tmp_path / "ds.json"
    path.write_text(json.dumps(given))
    made = with_plan(path, global_batch=48)
    assert batch_of(made) == [64, 4, 8] and made["bf16"] == {"enabled": True}
    assert given["gradient_accumulation_steps"] == "auto"
    monkeypatch.setenv("SYNERGY_OWN_BATCH", "1")
    assert batch_of(with_plan(given, global_batch=48)) == [48, 4, 6]


@pytest.mark.parametrize(
    ("content", "batch", "words"),
    [
        (None, 48, "can't be read: No such file or directory; a JSON file with DeepSpeed's configuration"),
        ("{", 48, "is not JSON"),
        ("[]", 48, "is not an object"),
        ("{}", 47, "global batch 47 can't be cut into micro-batches of 1 on dp=2"),
    ],
)
def test_a_mistake_is_one_line(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    content: Any,
    batch: int,
    words: str,
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    path = tmp_path / "ds.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(SystemExit) as ended:
        with_plan(str(path), global_batch=batch)
    said = capsys.readouterr().err
    assert ended.value.code == 2 and said.count("\n") == 1 and words in said
