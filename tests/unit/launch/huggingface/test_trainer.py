"""The Trainer's callback and apply_plan, with a stand-in for transformers: what Trainer does is played here."""

from __future__ import annotations

import importlib
import json
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch")
pytestmark = pytest.mark.training


@pytest.fixture
def hf(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    stand_in = ModuleType("transformers")
    stand_in.TrainerCallback = object  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "transformers", stand_in)
    monkeypatch.delitem(sys.modules, "synergy_launch.huggingface.trainer", raising=False)
    for name in ("SYNERGY_PLAN_JSON", "SYNERGY_RUN_DIR", "RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGUSR2)}
    yield importlib.import_module("synergy_launch.huggingface.trainer")
    sys.modules.pop("synergy_launch.huggingface.trainer", None)
    for number, handler in handlers.items():
        signal.signal(number, handler)


def arguments(folder: Path, world: int = 1, **more: Any) -> SimpleNamespace:
    values: dict[str, Any] = {
        "output_dir": str(folder / "out"), "world_size": world, "process_index": 0, "per_device_train_batch_size": 8,
        "gradient_accumulation_steps": 1, "optim": "adamw_torch_fused", "learning_rate": 1e-3, "weight_decay": 0.1,
        "max_steps": 100, "warmup_steps": 10, "save_strategy": "steps", "dataloader_drop_last": False, **more,
    }  # fmt: skip
    return SimpleNamespace(**values)


def plan(monkeypatch: pytest.MonkeyPatch, world: int = 1, **fields: int) -> None:
    monkeypatch.setenv("SYNERGY_PLAN_JSON", json.dumps({"dp": world, **fields}))
    monkeypatch.setenv("WORLD_SIZE", str(world))


class Playing:
    """Trainer's events in its order (transformers 5.23); `against` drops the saves that were asked for."""

    def __init__(self, folder: Path, callback: Any, args: Any, step: int = 0) -> None:
        self.callback, self.args = callback, args
        self.state = SimpleNamespace(global_step=step, max_steps=args.max_steps, log_history=[])
        self.control = SimpleNamespace(should_save=False)
        self.against = False
        args.train_batch_size = args.per_device_train_batch_size
        self._call("on_train_begin")

    def _call(self, name: str, **more: Any) -> None:
        getattr(self.callback, name)(self.args, self.state, self.control, **more)

    def step(self, save: bool = False) -> None:
        self.control.should_save = False
        self._call("on_step_begin")
        self.state.global_step += 1
        self.control.should_save = save
        self._call("on_step_end")
        self._call("on_log", logs={"loss": 5.0 - self.state.global_step})
        if self.control.should_save and not self.against:
            self.save()

    def save(self) -> None:
        folder = Path(self.args.output_dir) / f"checkpoint-{self.state.global_step}"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "model.safetensors").write_text(f"weights {self.state.global_step}")
        (folder / "trainer_state.json").write_text(json.dumps({"global_step": self.state.global_step}))
        self.control.should_save = False
        self._call("on_save")


@pytest.fixture
def run_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "job" / "run"
    folder.mkdir(parents=True)
    monkeypatch.setenv("SYNERGY_RUN_DIR", str(folder))
    monkeypatch.setenv("SYNERGY_HOLD_S", "0")
    return folder


def status(run_dir: Path) -> dict[str, Any]:
    content = json.loads((run_dir / "status.json").read_text())
    assert isinstance(content, dict)
    return content


def test_without_a_plan_the_batch_is_the_script_s(hf: Any, tmp_path: Path) -> None:
    args = hf.apply_plan(arguments(tmp_path), global_batch=24)
    assert (args.per_device_train_batch_size, args.gradient_accumulation_steps) == (8, 3)
    assert (args.learning_rate, args.max_steps, args.warmup_steps) == (1e-3, 100, 10)


def test_a_plan_s_batch_takes_rate_decay_and_steps_with_it(
    hf: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan(monkeypatch, global_batch=64, micro_batch=4)
    args = hf.apply_plan(arguments(tmp_path), global_batch=16)
    assert (args.per_device_train_batch_size, args.gradient_accumulation_steps) == (4, 16)
    assert (args.learning_rate, args.weight_decay) == (pytest.approx(2e-3), pytest.approx(0.2))
    assert (args.max_steps, args.warmup_steps) == (25, 3)
    linear = hf.apply_plan(arguments(tmp_path, max_steps=-1, warmup_steps=0.1), global_batch=16, lr_rule="linear")
    assert linear.learning_rate == pytest.approx(4e-3)
    assert (linear.max_steps, linear.warmup_steps) == (-1, 0.1)
    unknown = hf.apply_plan(arguments(tmp_path, optim="lomo"), global_batch=16)
    assert (unknown.learning_rate, unknown.weight_decay) == (1e-3, 0.1)


@pytest.mark.parametrize(
    ("given", "batch", "said"),
    [
        ({"global_batch": 8, "tp": 2, "dp": 1}, 8, "SYNERGY_PLAN_JSON: tp=2 was given to a script"),
        (None, 0, "apply_plan: global_batch=0"),
    ],
)
def test_a_mistake_is_one_line(
    hf: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], given: Any, batch: int,
    said: str,
) -> None:  # fmt: skip
    if given:
        monkeypatch.setenv("SYNERGY_PLAN_JSON", json.dumps(given))
        monkeypatch.setenv("WORLD_SIZE", "2")
        monkeypatch.setattr(hf, "_ranks", lambda who: hf.OneProcess())
    with pytest.raises(SystemExit) as end:
        hf.apply_plan(arguments(tmp_path), global_batch=batch)
    assert end.value.code == 2
    error = capsys.readouterr().err
    assert error.startswith(f"synergy: {said}") and error.count("\n") == 1


def test_processes_that_do_not_know_each_other_are_one_line(
    hf: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(SystemExit):
        hf.resume_from(tmp_path / "out")
    assert "make TrainingArguments first" in capsys.readouterr().err


def test_a_request_is_met_after_trainer_has_saved(hf: Any, tmp_path: Path, run_dir: Path) -> None:
    playing = Playing(tmp_path, hf.SynergyCallback(), arguments(tmp_path))
    playing.step()
    assert playing.callback.agent._status["step"] == 1
    (run_dir / "checkpoint-request").write_text("1")
    playing.against = True  # another callback, or save_strategy best, has the last word
    playing.step()
    assert status(run_dir)["checkpoint_requests"] == 0
    playing.against = False
    playing.step()
    assert (status(run_dir)["checkpoint_requests"], status(run_dir)["checkpoint_step"]) == (1, 3)
    assert status(run_dir)["loss"] == 3.0  # the one logged last, after step 2
    assert status(run_dir)["plan"]["global_batch"] == 8 and status(run_dir)["total"] == 800
    assert hf.resume_from(playing.args.output_dir) == str(tmp_path / "out" / "checkpoint-3")


def test_trainer_s_own_saves_are_sealed_at_a_step_and_at_an_epoch_s_end(hf: Any, tmp_path: Path, run_dir: Path) -> None:
    playing = Playing(tmp_path, hf.SynergyCallback(), arguments(tmp_path))
    playing.step(save=True)
    assert status(run_dir)["checkpoint_step"] == 1
    (tmp_path / "out" / "checkpoint-1" / "optimizer.pt").write_text("more")
    playing.save()  # the epoch ends here, and Trainer saves once more
    (tmp_path / "out" / "checkpoint-1" / "random").write_text("not sealed, of no matter")
    assert hf.resume_from(playing.args.output_dir) == str(tmp_path / "out" / "checkpoint-1")
    playing.step()
    playing.save()  # at the end of an epoch alone
    assert (tmp_path / "out" / "checkpoint-2" / "complete").exists()


def test_sigterm_saves_and_ends_with_code_0(hf: Any, tmp_path: Path, run_dir: Path) -> None:
    playing = Playing(tmp_path, hf.SynergyCallback(), arguments(tmp_path))
    playing.step()
    playing.callback.agent._stop = True
    with pytest.raises(SystemExit) as end:
        playing.step()
    assert end.value.code == 0 and status(run_dir)["checkpoint_step"] == 2


def test_sigterm_without_time_ends_without_a_save_even_where_trainer_would(
    hf: Any, tmp_path: Path, run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SYNERGY_GRACE_S", "3")
    playing = Playing(tmp_path, hf.SynergyCallback(), arguments(tmp_path))
    playing.step()
    playing.callback.agent._cadence.save_s = 60.0
    playing.callback.agent._stop = True
    with pytest.raises(SystemExit) as end:
        playing.step(save=True)
    assert end.value.code == 0 and status(run_dir)["checkpoint_step"] is None
    assert not list((tmp_path / "out").glob("checkpoint-*"))


def test_the_end_is_saved_and_said(hf: Any, tmp_path: Path, run_dir: Path) -> None:
    playing = Playing(tmp_path, hf.SynergyCallback(), arguments(tmp_path, max_steps=2, save_strategy="epoch"))
    playing.step()
    playing.step()
    playing._call("on_train_end")
    assert (status(run_dir)["state"], status(run_dir)["checkpoint_step"]) == ("done", 2)


def test_a_resume_with_another_batch_keeps_it_with_apply_plan_and_is_told_of_without(
    hf: Any, tmp_path: Path, run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    playing = Playing(tmp_path, hf.SynergyCallback(), arguments(tmp_path))
    playing.step(save=True)
    other = arguments(tmp_path, per_device_train_batch_size=16)
    Playing(tmp_path, hf.SynergyCallback(), other, step=1)
    assert status(run_dir)["note"] == "global batch 16 after 8: Trainer skips or repeats examples; use apply_plan"
    plan(monkeypatch, global_batch=16, micro_batch=4)
    kept = hf.apply_plan(arguments(tmp_path), global_batch=8)
    assert (kept.per_device_train_batch_size, kept.gradient_accumulation_steps) == (4, 2)
    Playing(tmp_path, hf.SynergyCallback(), kept, step=0)
    assert status(run_dir)["note"].endswith("training starts at step 0: resume_from was not used")


def test_a_plan_that_was_not_applied_is_told_of(
    hf: Any, tmp_path: Path, run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan(monkeypatch, global_batch=16, micro_batch=4)
    Playing(tmp_path, hf.SynergyCallback(), arguments(tmp_path))
    assert status(run_dir)["note"] == "global batch 8 in place of the plan's 16: use apply_plan"
    assert status(run_dir)["plan"]["global_batch"] == 8
