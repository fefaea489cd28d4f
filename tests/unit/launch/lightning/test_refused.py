"""What of Lightning's Trainer is refused, with stand-ins for its objects."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from synergy_core.errors import UsageError
from synergy_core.records import Plan
from synergy_launch.lightning.refused import batch_obstacle, check_optimizers, check_trainer


def named(name: str, **fields: Any) -> Any:
    made = type(name, (), {})()
    vars(made).update(fields)
    return made


def trainer(strategy: str = "DDPStrategy", io: str = "TorchCheckpointIO", loop: bool = True, **more: Any) -> Any:
    averaging = more.pop("averaging", None)
    fields: dict[str, Any] = {
        "strategy": named(strategy, checkpoint_io=named(io), _model_averaging_period=averaging),
        "fit_loop": SimpleNamespace(epoch_loop=named("Loop", **({"restarted_on_train_batch_end": False} if loop else {}))),
        "world_size": 2, "accumulate_grad_batches": 2, "limit_train_batches": 1.0, "overfit_batches": 0.0,
        "callbacks": [named("ModelCheckpoint")], **more,
    }  # fmt: skip
    return SimpleNamespace(**fields)


def module(automatic: bool = True) -> Any:
    return SimpleNamespace(automatic_optimization=automatic, training_step=lambda batch, batch_idx: None)


UNIT = Plan(dp=2, global_batch=8, micro_batch=2)


def test_an_ordinary_trainer_is_taken() -> None:
    check_trainer(trainer(), module(), UNIT)
    check_trainer(trainer("SingleDeviceStrategy", world_size=1, accumulate_grad_batches=4), module(),
                  Plan(global_batch=8, micro_batch=2))  # fmt: skip


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"strategy": "FSDPStrategy"}, "strategy FSDPStrategy"),
        ({"strategy": "DeepSpeedStrategy"}, "strategy DeepSpeedStrategy"),
        ({"strategy": "ModelParallelStrategy"}, "strategy ModelParallelStrategy"),
        ({"strategy": "SingleDeviceXLAStrategy"}, "strategy SingleDeviceXLAStrategy"),
        ({"averaging": 4}, "model_averaging_period"),
        ({"loop": False}, "lightning: this release"),
        ({"accumulate_grad_batches": 1}, "accumulate_grad_batches=1 where the plan has 2 and 2"),
        ({"world_size": 1}, "1 processes and"),
        ({"limit_train_batches": 10}, "limit_train_batches=10"),
        ({"overfit_batches": 0.1}, "overfit_batches=0.1"),
        ({"callbacks": [named("BatchSizeFinder")]}, "BatchSizeFinder sets what the plan sets"),
        ({"callbacks": [named("GradientAccumulationScheduler")]}, "GradientAccumulationScheduler sets"),
        ({"io": "AsyncCheckpointIO"}, "AsyncCheckpointIO"),
    ],
)
def test_a_trainer_that_does_not_go_is_one_line(more: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said) as error:
        check_trainer(trainer(**more), module(), UNIT)
    assert "\n" not in str(error.value)


def test_a_module_that_steps_or_takes_batches_itself_is_one_line() -> None:
    with pytest.raises(UsageError, match="manual optimization"):
        check_trainer(trainer(), module(automatic=False), UNIT)
    takes = SimpleNamespace(automatic_optimization=True, training_step=lambda dataloader_iter: None)
    with pytest.raises(UsageError, match="takes its batches itself"):
        check_trainer(trainer(), takes, UNIT)


def test_optimizers_and_schedules() -> None:
    by_epoch, by_step = (SimpleNamespace(interval=kind, frequency=2) for kind in ("epoch", "step"))
    check_optimizers([named("AdamW")], [by_epoch, SimpleNamespace(interval="step", frequency=1)])
    for optimizers, schedules, said in [
        ([named("AdamW"), named("AdamW")], [], "2 optimizers"),
        ([named("LBFGS")], [], "LBFGS"),
        ([named("AdamW")], [by_step], "frequency=2"),
    ]:
        with pytest.raises(UsageError, match=said):
            check_optimizers(optimizers, schedules)


def test_a_scaler_fixes_the_batch() -> None:
    assert batch_obstacle(SimpleNamespace(precision_plugin=named("MixedPrecision", scaler=object()))).startswith("fp16")
    assert batch_obstacle(SimpleNamespace(precision_plugin=named("MixedPrecision", scaler=None))) == ""
    assert batch_obstacle(SimpleNamespace(precision_plugin=named("Precision"))) == ""
