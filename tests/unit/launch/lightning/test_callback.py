"""Lightning's callback, with a stand-in for lightning: what Trainer does is played here."""

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

UNIT, STEPS = 8, 12  # examples of a step, steps of an epoch


@pytest.fixture
def adapter(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Any]:
    stand_in = ModuleType("lightning.pytorch")
    stand_in.Callback = type("Callback", (), {"state_key": "Synergy"})  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "lightning", ModuleType("lightning"))
    monkeypatch.setitem(sys.modules, "lightning.pytorch", stand_in)
    monkeypatch.delitem(sys.modules, "synergy_launch.lightning.callback", raising=False)
    for name in ("SYNERGY_OWN_BATCH", "SYNERGY_NOISE", "SYNERGY_CHECKPOINT_DIR", "RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "run").mkdir()
    monkeypatch.setenv("SYNERGY_RUN_DIR", str(tmp_path / "run"))
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGUSR2)}
    yield importlib.import_module("synergy_launch.lightning.callback")
    sys.modules.pop("synergy_launch.lightning.callback", None)
    for number, handler in handlers.items():
        signal.signal(number, handler)


class Playing:
    """Trainer's events in its order (Lightning 2.6), in steps of two micro-batches."""

    def __init__(self, adapter: Any, folder: Path, every: float = 1.0, interval: int = 0) -> None:
        import torch

        self.module, self.folder = torch.nn.Linear(2, 1), folder / "checkpoints"
        self.ours = adapter.SynergyCallback(
            self.folder, global_batch=UNIT, micro_batch=UNIT // 2, checkpoint_interval=interval
        )
        self.optimizer = torch.optim.SGD(self.module.parameters(), lr=0.1)
        self.progress = SimpleNamespace(current=SimpleNamespace(ready=0, processed=0))
        self.validates_after = 0  # micro-batches
        loop = SimpleNamespace(
            batch_progress=self.progress, _should_check_val_fx=lambda _: self.progress.current.ready == self.validates_after
        )  # fmt: skip
        self.trainer = SimpleNamespace(
            global_step=0, global_rank=0, max_steps=-1, max_epochs=2, val_check_interval=every, optimizers=[self.optimizer],
            precision_plugin=None, fit_loop=SimpleNamespace(epoch_loop=loop, _data_fetcher=None, restarting=False),
            train_dataloader=self.ours.loader(list(range(STEPS * UNIT))),
            strategy=SimpleNamespace(model=self.module, checkpoint_io=None, save_checkpoint=torch.save),
            _checkpoint_connector=SimpleNamespace(dump_checkpoint=lambda _: {}),
        )  # fmt: skip
        self.ours._trainer = self.trainer
        self.ours.on_train_start(self.trainer, self.module)

    def micro_batch(self) -> None:
        import torch

        current = self.progress.current
        number = current.ready
        current.ready += 1
        self.ours.on_train_batch_start(self.trainer, self.module, None, number)
        loss = self.module(torch.ones(1, 2)).sum() / 2
        if number % 2 == 0:
            self.optimizer.zero_grad()
        self.ours.on_before_backward(self.trainer, self.module, loss)
        torch.autograd.backward(loss)
        if number % 2:
            self.ours.on_before_optimizer_step(self.trainer, self.module, self.optimizer)
            self.optimizer.step()
            self.trainer.global_step += 1
        current.processed += 1
        self.ours.on_train_batch_end(self.trainer, self.module, {"loss": loss}, None, number)

    def steps(self, count: int) -> None:
        for _ in range(2 * count):
            self.micro_batch()

    @property
    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.folder.parent / "run" / "status.json").read_text())
        return found

    def saved(self) -> list[str]:
        return sorted(path.parent.name for path in self.folder.glob("*/complete"))


@pytest.mark.parametrize(
    ("noise", "batch", "micro_batches", "kept", "lost"), [("1", 8, 7, 2, 3), ("0", 8, 7, 2, 3), ("1", 16, 14, 4, 6)]
)
def test_a_stop_inside_a_batch_leaves_the_checkpoint_before_it(
    adapter: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, noise: str, batch: int, micro_batches: int, kept: int, lost: int
) -> None:  # fmt: skip
    """As Trainer(max_time=...) stops: after a step's first micro-batch, or the first of a batch's two steps."""
    plan = {"dp": 1, "global_batch": batch, "micro_batch": UNIT // 2}
    monkeypatch.setenv("SYNERGY_PLAN_JSON", json.dumps(plan))
    monkeypatch.setenv("SYNERGY_NOISE", noise)
    play = Playing(adapter, tmp_path, interval=kept)
    for _ in range(micro_batches):
        play.micro_batch()
    play.ours.on_train_end(play.trainer, play.module)
    assert f"checkpoint of step {lost}: fit: it was stopped inside a batch" in play.status["note"]
    assert (play.status["step"], play.status["checkpoint_step"], play.status["state"]) == (lost, kept, "done")
    assert play.saved() == [f"step_{kept:08d}"] and f"step_{kept:08d}" in play.ours.resume_from()


def test_a_stop_between_two_steps_is_saved(adapter: Any, tmp_path: Path) -> None:
    play = Playing(adapter, tmp_path)
    play.steps(3)
    play.ours.on_train_end(play.trainer, play.module)
    assert play.saved() == ["step_00000003"]


@pytest.mark.parametrize(
    ("step", "validates", "at_once"), [(2, 0, False), (2, 4, True), (2, 6, False), (STEPS, 0, True)]
)
def test_sigterm_lets_the_batch_s_other_hooks_come_first(
    adapter: Any, tmp_path: Path, step: int, validates: int, at_once: bool
) -> None:
    """Not before a validation or the end of an epoch, which may take long."""
    play = Playing(adapter, tmp_path)
    play.validates_after = validates
    play.steps(step - 1)
    play.micro_batch()
    signal.raise_signal(signal.SIGTERM)
    if not at_once:
        play.micro_batch()
        assert play.saved() == []
    with pytest.raises(SystemExit) as ended:
        play.micro_batch()
    assert ended.value.code == 0 and play.saved() == [f"step_{step:08d}"]
    assert play.trainer.global_step == step


@pytest.mark.parametrize(
    ("every", "said"),
    [(1.0, False), (0.5, False), (0.25, False), (0.125, True), (0.01, True), (4, True), ("00:00:10:00", False)],
)
def test_validations_by_micro_batches_are_noted(adapter: Any, tmp_path: Path, every: Any, said: bool) -> None:
    """A part of an epoch that is no whole number of its twelve steps is one too."""
    told = Playing(adapter, tmp_path, every).status["note"] or ""
    assert (f"val_check_interval={every} counts micro-batches" in told) is said
