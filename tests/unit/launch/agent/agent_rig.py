"""One rank's agent in simulated time, for the tests beside this file."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from synergy_core.records import Plan
from synergy_launch.agent.agent import Agent
from synergy_launch.agent.collectives import OneProcess
from synergy_launch.agent.settings import AgentSettings


class Clock:
    """Time that passes only when somebody sleeps."""

    def __init__(self) -> None:
        self.now = 100.0
        self.on_sleep: Callable[[], None] = lambda: None

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.on_sleep()


class Saver:
    def __init__(self) -> None:
        self.saved = 0
        self.fails = False
        self.error = OSError("no space left")

    def __call__(self, folder: Path) -> Mapping[str, Any]:
        if self.fails:
            raise self.error
        self.saved += 1
        (folder / "data").write_text("x")
        return {}


class Rig:
    def __init__(self, folder: Path, **more: Any) -> None:
        self.run_dir = folder / "run"
        self.run_dir.mkdir(exist_ok=True)
        self.clock = Clock()
        self.settings = AgentSettings(
            run_dir=self.run_dir, step_log=folder / "steps.jsonl", checkpoint_dir=folder / "checkpoints", **more
        )
        self.agent = Agent(
            self.settings, Plan(), OneProcess(), clock=self.clock, monotonic=self.clock, sleep=self.clock.sleep
        )
        self.save = Saver()

    def start(self, **more: Any) -> None:
        assert self.agent.find_checkpoint(None).checkpoint is None
        self.agent.start(0, save=self.save, **more)

    def step(self, number: int, seconds: float = 1.0, **more: Any) -> bool:
        self.clock.now += seconds
        return self.agent.after_step(number, **{"loss": 1.0 / number, **more})

    def request(self, number: int) -> None:
        (self.run_dir / "checkpoint-request").write_text(str(number))

    @property
    def status(self) -> dict[str, Any]:
        content = json.loads((self.run_dir / "status.json").read_text())
        assert isinstance(content, dict)
        return content


class TwoRanks(OneProcess):
    """Rank 0 of two; the other one answers `other` to each question."""

    world = 2

    def __init__(self, other: Callable[[], Sequence[int]]) -> None:
        self._other = other

    def maximum(self, values: Sequence[int]) -> list[int]:
        other = list(self._other()) + [0] * len(values)
        return [max(pair) for pair in zip(values, other, strict=False)]
