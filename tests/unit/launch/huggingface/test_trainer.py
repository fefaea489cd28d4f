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
    for name in ("SYNERGY_PLAN_JSON", "SYNERGY_OWN_BATCH", "SYNERGY_RUN_DIR", "RANK", "WORLD_SIZE"):
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
        self._call("on_pre_optimizer_step")
        self._call("on_optimizer_step")
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


def test_a_plan_s_batch_that_is_a_multiple_leaves_trainer_s_step(
    hf: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan(monkeypatch, global_batch=64, micro_batch=4)
    args = hf.apply_plan(arguments(tmp_path), global_batch=16)
    assert (args.per_device_train_batch_size, args.gradient_accumulation_steps) == (4, 4)
    assert (args.learning_rate, args.weight_decay, args.max_steps, args.warmup_steps) == (1e-3, 0.1, 100, 10)


def test_a_batch_that_nobody_chose_leaves_the_script_s(
    hf: Any, tmp_path: Path, run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the batch can't move between steps (fp16 here) it would have stayed an invented one."""
    plan(monkeypatch, global_batch=64, micro_batch=8)
    monkeypatch.setenv("SYNERGY_OWN_BATCH", "1")
    args = hf.apply_plan(arguments(tmp_path, fp16=True), global_batch=12)
    assert (args.per_device_train_batch_size, args.gradient_accumulation_steps) == (6, 2)
    assert (args.learning_rate, args.weight_decay, args.max_steps, args.warmup_steps) == (1e-3, 0.1, 100, 10)
    playing = Playing(tmp_path, hf.SynergyCallback(), args)
    playing.step()
    told = status(run_dir)
    assert told["plan"]["global_batch"] == 12 and "in place of the plan" not in told["note"]


def test_another_batch_of_the_plan_s_takes_rate_decay_and_steps_with_it(
    hf: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan(monkeypatch, global_batch=64, micro_batch=4)
    args = hf.apply_plan(arguments(tmp_path), global_batch=256)
    assert (args.per_device_train_batch_size, args.gradient_accumulation_steps) == (4, 16)
    assert (args.learning_rate, args.weight_decay) == (pytest.approx(5e-4), pytest.approx(0.05))
    assert (args.max_steps, args.warmup_steps) == (400, 40)
    linear = hf.apply_plan(arguments(tmp_path, max_steps=-1, warmup_steps=0.1), global_batch=256, lr_rule="linear")
    assert linear.learning_rate == pytest.approx(2.5e-4)
    assert (linear.max_steps, linear.warmup_steps) == (-1, 0.1)
    unknown = hf.apply_plan(arguments(tmp_path, optim="lomo"), global_batch=256)
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
    assert playing.callback.agent.status["step"] == 1
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
    playing.callback.agent.checkpointer.schedule.save_s = 60.0
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


class Loader:
    """Of 12 micro-batches a process and epoch."""

    dataset = range(96)

    def __len__(self) -> int:
        return 12


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"fp16": True}, "fp16 scales the gradients"),
        ({"fsdp": "full_shard"}, "only DDP and one device"),
        ({"deepspeed": "ds.json"}, "only DDP and one device"),
        ({"save_strategy": "best"}, "the best checkpoint"),
        ({"load_best_model_at_end": True}, "the best checkpoint"),
        ({}, ""),
    ],
)
def test_where_the_batch_can_not_move_it_is_said(hf: Any, tmp_path: Path, more: Any, why: str) -> None:
    said = hf.batch_obstacle(arguments(tmp_path, **more), object(), Loader())
    assert said.startswith(why) and bool(said) == bool(why)
    assert hf.batch_obstacle(arguments(tmp_path), object(), iter([])) == "the length of the data is not known"


class Gradient:
    """Plays one parameter's gradients: each of Trainer's steps adds 1."""

    def __init__(self, hf: Any, optimizer: Any, model: Any) -> None:
        self.parameter = next(model.parameters())
        self.steps: list[tuple[float, float]] = []  # (gradient, rate) that the optimizer has seen
        real = optimizer.step

        def step() -> None:
            if self.parameter.grad is not None:
                self.steps.append((float(self.parameter.grad), float(optimizer.param_groups[0]["lr"])))
            real()

        optimizer.step = step


def test_a_batch_takes_several_of_trainer_s_steps(
    hf: Any, tmp_path: Path, run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Batches of 16, then of 24, in steps of 8; the epoch ends after 12 steps, the run after 14."""
    import torch

    plan(monkeypatch, global_batch=16, micro_batch=8)
    args = hf.apply_plan(arguments(tmp_path, max_steps=14, max_grad_norm=0.0, learning_rate=1.0), global_batch=8)
    args.train_batch_size = args.per_device_train_batch_size
    model = torch.nn.Linear(1, 1, bias=False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1.0)
    played = Gradient(hf, optimizer, model)
    playing = object.__new__(Playing)
    playing.callback, playing.args, playing.against = hf.SynergyCallback(), args, False
    playing.state = SimpleNamespace(global_step=0, max_steps=14, log_history=[])
    playing.control = SimpleNamespace(should_save=False)
    playing._call("on_train_begin", model=model, optimizer=optimizer, train_dataloader=Loader())
    saved = []
    for number in range(1, 15):
        playing._call("on_step_begin")
        (model(torch.ones(1, 1)).sum() * number).backward()
        playing._call("on_pre_optimizer_step")
        optimizer.step()
        playing._call("on_optimizer_step")
        assert optimizer.param_groups[0]["lr"] == 1.0
        model.zero_grad()
        playing.state.global_step = number
        playing.control.should_save = number in (3, 13)
        playing._call("on_step_end")
        if playing.control.should_save:
            saved.append(number)
            playing.save()
        if number == 3:
            (run_dir / "batch").write_text('{"global_batch": 31, "micro_batch": 2}')
    ends = [2, 4, 7, 10, 12, 14]
    assert [s for s, _ in played.steps] == [1.5, 3.5, 6.0, 9.0, 11.5, 13.5]
    rates = [2**0.5, 2**0.5, 3**0.5, 3**0.5, 2**0.5, 2**0.5]
    assert [rate for _, rate in played.steps] == pytest.approx(rates)
    log = [json.loads(line) for line in (run_dir.parent / "steps.jsonl").read_text().splitlines()]
    assert [entry["step"] for entry in log] == ends and saved == [4, 14]
    assert [entry["global_batch"] for entry in log] == [16, 16, 24, 24, 24, 24]
    now = status(run_dir)
    assert (now["done"], now["total"], now["rebatching"]) == (112, 112, True) and now["plan"]["micro_batch"] == 8


@pytest.mark.parametrize("kind", ["DEEPSPEED", "MEGATRON_LM", "XLA", "FSDP"])
def test_accelerate_with_gradients_of_its_own_is_one_line(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    from synergy_launch.huggingface import AcceleratedTask

    with pytest.raises(SystemExit) as end:
        AcceleratedTask(SimpleNamespace(distributed_type=kind, is_fsdp2=False), None, None, global_batch=8)
    assert end.value.code == 2
    said = f"synergy: AcceleratedTask: can't take Accelerate with {kind}; use DDP, FSDP2 or one process\n"
    assert capsys.readouterr().err == said


def test_a_train_that_an_error_ended_leaves_arguments_and_model_as_they_were(
    hf: Any, tmp_path: Path, run_dir: Path
) -> None:
    """The next one, such as Trainer's with half the micro-batch, clips, and looks at each gradient once."""
    import torch

    args = hf.apply_plan(arguments(tmp_path, max_grad_norm=0.5), global_batch=8)
    args.train_batch_size = args.per_device_train_batch_size
    model = torch.nn.Linear(1, 1, bias=False)
    shown = {
        "model": model,
        "optimizer": torch.optim.SGD(model.parameters(), lr=1.0),
        "train_dataloader": Loader(),
    }
    playing = object.__new__(Playing)
    playing.callback, playing.args = hf.SynergyCallback(), args
    playing.state = SimpleNamespace(global_step=0, max_steps=14, log_history=[])
    playing.control = SimpleNamespace(should_save=False)
    playing._call("on_train_begin", **shown)
    playing._call("on_step_begin")
    assert args.max_grad_norm == 0.0  # and the step runs out of memory
    playing._call("on_train_begin", **shown)
    assert args.max_grad_norm == 0.5
    assert len(next(model.parameters())._backward_hooks or {}) == 1
    playing._call("on_step_begin")
    (model(torch.ones(1, 1)).sum() * 3).backward()
    playing._call("on_pre_optimizer_step")
    (gradient,) = [float(p.grad) for p in model.parameters() if p.grad is not None]
    assert gradient == pytest.approx(0.5, rel=1e-4) and args.max_grad_norm == 0.5
    playing._call("on_train_end")
    assert not next(model.parameters())._backward_hooks
