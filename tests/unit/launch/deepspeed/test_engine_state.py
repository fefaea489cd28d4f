"""Checkpoints that DeepSpeed would load in part, or not at all, are one line; what is converted leaves nothing behind."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from synergy_launch.agent.checkpoint import Checkpoint
from synergy_launch.agent.collectives import OneProcess
from synergy_launch.deepspeed import engine_state
from synergy_launch.deepspeed.engine_state import EngineState

from synergyd.errors import UsageError


class Engine:
    """Writes nothing; loads whatever there is, or raises `error`."""

    def __init__(self, width: int = 3, stage: int = 2, error: str = "") -> None:
        self.module = torch.nn.Linear(2, width)
        basic = torch.optim.AdamW(self.module.parameters(), lr=0.5, betas=(0.8, 0.9))
        shares = [[SimpleNamespace(_hp_mapping=1)]]
        self.optimizer = SimpleNamespace(param_groups=basic.param_groups, optimizer=basic, bit16_groups=shares)
        self._config = SimpleNamespace(load_universal_checkpoint=False)
        self.stage, self.error, self.universal = stage, error, False

    def zero_optimization_stage(self) -> int:
        return self.stage

    def save_checkpoint(self, save_dir: str, tag: str, save_latest: bool) -> None:
        torch.save({"module": self.module.state_dict()}, Path(save_dir, tag, "mp_rank_00_model_states.pt"))

    def load_checkpoint(self, load_dir: str, tag: str) -> tuple[str, dict[str, Any]]:
        self.universal = self._config.load_universal_checkpoint
        if self.error:
            raise RuntimeError(self.error)
        return load_dir, {}


def saved(folder: Path, engine: Engine, **more: Any) -> Checkpoint:
    path = folder / "step_00000007"
    path.mkdir()
    return Checkpoint(path, 7, {**EngineState(engine, OneProcess()).write(path), **more})


def refused(engine: Engine, checkpoint: Checkpoint) -> str:
    with pytest.raises(UsageError) as caught:
        EngineState(engine, OneProcess()).load(checkpoint)
    return str(caught.value).partition("step_00000007: ")[2]


def test_what_was_made_with_something_else(tmp_path: Path) -> None:
    made = saved(tmp_path, Engine())
    assert refused(Engine(width=4), made).startswith("has other parameters than this model")
    assert refused(Engine(stage=3), made).startswith("was written with ZeRO stage 2, the run has stage 3")
    two = Checkpoint(made.path, 7, {**made.meta, "groups": [{}, {}]})
    assert refused(Engine(), two).startswith("has other parameter groups than this optimizer")
    other = Checkpoint(made.path, 7, {"kind": "pytorch"})
    assert refused(Engine(), other).startswith("was not written by a run of DeepSpeed with Synergy")
    broken = Engine(error="a\nsize mismatch")
    assert refused(broken, made).startswith("can't be loaded by DeepSpeed: size mismatch")


def test_as_many_ranks_load_it_as_it_is(tmp_path: Path) -> None:
    engine = Engine()
    engine._config.load_universal_checkpoint = True  # of the user's configuration
    assert EngineState(engine, OneProcess()).load(saved(tmp_path, Engine())) == ""
    assert not engine.universal and engine._config.load_universal_checkpoint


def test_without_zero_any_number_of_ranks_loads_it_as_it_is(tmp_path: Path) -> None:
    engine = Engine(stage=0)
    assert EngineState(engine, OneProcess()).load(saved(tmp_path, Engine(stage=0), dp=4)) == "" and not engine.universal


def test_a_conversion_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = saved(tmp_path, Engine(), dp=2)
    made.meta["groups"][0].update(lr=0.25)
    (tmp_path / "universal_left").mkdir()
    monkeypatch.setattr(engine_state, "_LOOK_S", 0.01)
    monkeypatch.setattr(engine_state, "_CONVERTER", "no.such.converter")
    said = refused(Engine(), made)
    assert said.startswith("can't be converted to 1 ranks: ") and "No module named 'no'" in said
    monkeypatch.setattr(engine_state, "_CONVERTER", "this")
    engine = Engine()
    words = EngineState(engine, OneProcess()).load(made)
    assert words.startswith("checkpoint of step 7 was converted from 2 to 1 ranks in ") and engine.universal
    group = engine.optimizer.param_groups[0]
    assert (group["lr"], group["betas"]) == (0.25, (0.8, 0.9)) and not engine._config.load_universal_checkpoint
    assert [path.name for path in tmp_path.iterdir()] == ["step_00000007"]
    engine.optimizer.bit16_groups.append([SimpleNamespace(_hp_mapping=None)])
    assert refused(engine, made).startswith("a parameter group is too small to be shared out to 1 ranks")
