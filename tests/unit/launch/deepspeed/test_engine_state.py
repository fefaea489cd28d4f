"""Checkpoints that DeepSpeed would load in part, or not at all, are one line; what is converted leaves nothing behind."""

from __future__ import annotations

import glob
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from synergy_core.errors import UsageError
from synergy_launch.agent.checkpoint import Checkpoint, Checkpoints
from synergy_launch.agent.collectives import OneProcess
from synergy_launch.deepspeed import engine_state
from synergy_launch.deepspeed.engine_state import EngineState


class Files:
    """DeepSpeed's checkpoint engine: one file for each call, or `error`."""

    error: OSError | None = None

    def save(self, state_dict: Any, path: str) -> None:
        if self.error:
            raise self.error
        torch.save(state_dict, path)


class Engine:
    """Writes the model alone, in step with the other ranks at `meet`; loads whatever there is, or raises `error`."""

    def __init__(self, width: int = 3, stage: int = 2, error: str = "") -> None:
        self.module = torch.nn.Linear(2, width)
        basic = torch.optim.AdamW(self.module.parameters(), lr=0.5, betas=(0.8, 0.9))
        shares = [[SimpleNamespace(_hp_mapping=1)]]
        self.optimizer = SimpleNamespace(param_groups=basic.param_groups, optimizer=basic, bit16_groups=shares)
        self._config = SimpleNamespace(load_universal_checkpoint=False)
        self.stage, self.error, self.universal, self.checkpoint_engine = stage, error, False, Files()
        self.meet: Callable[[], object] = lambda: None
        self.script_error: OSError | None = None

    def zero_optimization_stage(self) -> int:
        return self.stage

    def save_checkpoint(self, save_dir: str, tag: str, save_latest: bool) -> None:
        self.meet()
        name = str(Path(save_dir, tag, "mp_rank_00_model_states.pt"))
        self.checkpoint_engine.save(state_dict={"module": self.module.state_dict()}, path=name)
        self._copy_recovery_script(save_dir)
        self.meet()

    def _copy_recovery_script(self, save_path: str) -> None:
        if self.script_error:
            raise self.script_error

    def _get_all_ckpt_names(self, path: str, tag: str) -> list[str]:
        return glob.glob(f"{path}/{tag}/mp_rank_*_model_states.pt")  # noqa: PTH207 as DeepSpeed does

    def load_checkpoint(self, load_dir: str, tag: str) -> tuple[str | None, dict[str, Any]]:
        self.universal = self._config.load_universal_checkpoint
        if self.error:
            raise RuntimeError(self.error)
        found = self.universal or self._get_all_ckpt_names(load_dir, tag)
        return load_dir if found else None, {}


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


class Thread(OneProcess):
    """One of two ranks, each of which is a thread of this process."""

    def __init__(self, rank: int, values: list[Any], met: threading.Barrier) -> None:
        self.rank, self.world, self._values, self._met = rank, 2, values, met

    def maximum(self, values: Sequence[int]) -> list[int]:
        return [max(column) for column in zip(*self._both(list(values)), strict=True)]

    def broadcast(self, value: Any) -> Any:
        return self._both(value)[0]

    def barrier(self) -> None:
        self._both(None)

    def _both(self, value: Any) -> list[Any]:
        self._values[self.rank] = value
        self._met.wait(5)
        values = list(self._values)
        self._met.wait(5)
        return values


def on_two_ranks(action: Callable[[Any], object]) -> list[str]:
    """What each rank has raised."""
    said = ["", ""]
    values, met = [None, None], threading.Barrier(2)

    def run(rank: int) -> None:
        try:
            action(Thread(rank, values, met))
        except Exception as error:
            said[rank] = f"{type(error).__name__} {error}"

    other = threading.Thread(target=run, args=(1,))
    other.start()
    run(0)
    other.join()
    return said


@pytest.mark.parametrize("failing", [0, 1])
def test_a_file_that_one_rank_cannot_write_keeps_no_rank_waiting(tmp_path: Path, failing: int) -> None:
    engines, met = [Engine(), Engine()], threading.Barrier(2)
    for engine in engines:
        engine.meet = lambda: met.wait(5)
    full = OSError(28, "No space left on device")
    if failing:
        engines[1].checkpoint_engine.error = full
    else:
        engines[0].script_error = full
    said = on_two_ranks(
        lambda ranks: Checkpoints(tmp_path, ranks).save(7, EngineState(engines[ranks.rank], ranks).write)
    )
    assert said[failing] == "CheckpointError checkpoint of step 7: [Errno 28] No space left on device"
    assert said[1 - failing] == "CheckpointError checkpoint of step 7: another rank could not write its part"
    for engine in engines:
        assert "save" not in vars(engine.checkpoint_engine) and "_copy_recovery_script" not in vars(engine)


def test_a_conversion_that_cannot_begin_ends_all_ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = saved(tmp_path, Engine(), dp=4)

    def refuse(*_: Any, **__: Any) -> None:
        raise OSError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(subprocess, "Popen", refuse)
    said = on_two_ranks(lambda ranks: EngineState(Engine(), ranks).load(made))
    assert said[0] == said[1] and said[0].startswith("UsageError ")
    assert "can't be converted to 2 ranks: [Errno 11] Resource temporarily unavailable" in said[0]
    assert [path.name for path in tmp_path.iterdir()] == ["step_00000007"]


# what ds_to_universal does with its paths, and a request for a checkpoint to all processes of the step
CONVERTER = r"""
import glob, os, re, signal, sys
os.kill(os.getpid(), signal.SIGUSR2)
given = dict(zip(sys.argv[2::2], sys.argv[3::2]))
target = given["--output_folder"]
assert glob.glob(os.path.join(given["--input_folder"], "*_model_states.pt")), "no input"
os.makedirs(target)
open(f"{target}/step.00", "w").close()
assert [re.match(f"{target}/step\.([0-9]+)", path)[1] for path in glob.glob(f"{target}/step.*")] == ["00"], "no output"
"""


@pytest.fixture
def own_converter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder for checkpoints; the converter is found by a relative entry of sys.path, and a handler for SIGUSR2 is set."""
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules" / "own_converter.py").write_text(CONVERTER)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend("modules")
    monkeypatch.setattr(engine_state, "_LOOK_S", 0.01)
    monkeypatch.setattr(engine_state, "_CONVERTER", "own_converter")
    folder = tmp_path / "run1+lr3 (a [b] *"
    folder.mkdir()
    before = signal.signal(signal.SIGUSR2, handler)
    yield folder
    signal.signal(signal.SIGUSR2, before)


def handler(*_: Any) -> None:
    """As the agent's."""


def test_a_request_does_not_end_a_conversion_nor_does_the_name_of_its_folder(own_converter: Path) -> None:
    engine = Engine()
    said = EngineState(engine, OneProcess()).load(saved(own_converter, Engine(), dp=2))
    assert "was converted from 2 to 1 ranks" in said and engine.universal
    assert signal.getsignal(signal.SIGUSR2) is handler


def test_a_folder_with_brackets_in_its_name_is_loaded_as_it_is(own_converter: Path) -> None:
    engine = Engine()
    assert EngineState(engine, OneProcess()).load(saved(own_converter, Engine())) == ""
    assert "_get_all_ckpt_names" not in vars(engine)


def test_what_the_converter_says_need_be_no_text(own_converter: Path) -> None:
    Path("modules/own_converter.py").write_text(r"import os; os.write(2, b'\xff is wrong\n'); os._exit(1)")
    said = refused(Engine(), saved(own_converter, Engine(), dp=2))
    assert said.startswith("can't be converted to 1 ranks: \ufffd is wrong; ")
