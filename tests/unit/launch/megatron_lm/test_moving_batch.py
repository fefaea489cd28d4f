"""A batch that moves between the iterations of a loop like Megatron-LM's: samples, lengths and rates."""

from __future__ import annotations

import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from synergy_core.errors import UsageError
from synergy_launch.megatron_core.script_batch import MovingBatch, RunLength, batch_obstacle, keep_history
from synergy_launch.megatron_lm import batch_arguments


class ConstantNumMicroBatchesCalculator:
    """Megatron-core's, as far as it is asked."""

    def __init__(self, batch: int, micro: int) -> None:
        self._batch, self._micro = batch, micro

    def get_current_global_batch_size(self) -> int:
        return self._batch

    def get_micro_batch_size(self) -> int:
        return self._micro


class Scheduler:
    def __init__(self, groups: list[dict[str, Any]]) -> None:
        self.max_lr, self.min_lr, self.init_lr, self.start_wd, self.end_wd = 1e-3, 1e-4, 0.0, 0.1, 0.1
        self._groups = groups

    def step(self, increment: int) -> None:
        assert increment == 0  # it counts samples: a change of the batch is none
        for group in self._groups:
            group["lr"], group["weight_decay"] = group.get("max_lr", self.max_lr), self.end_wd


class Loop:
    """What train() does with the calculator, with its assertion that micro-batches only grow."""

    def __init__(self, *, batch: int = 8, iteration: int = 0, consumed: int = 0, iters: int = 30, **more: Any) -> None:
        known = {
            "iteration": iteration, "consumed_train_samples": consumed, "train_iters": iters, "train_samples": None, "exit_interval": None,
            "data_parallel_size": 2, "optimizer": "adam", "lr": 1e-3, "min_lr": 1e-4, "decoupled_lr": 3e-3, "decoupled_min_lr": None,
        }  # fmt: skip
        length = more.pop("length", RunLength())
        self.groups: list[dict[str, Any]] = more.pop("groups", [{"max_lr": 5.0, "min_lr": 5.0, "default_config": True}])
        self.args = SimpleNamespace(**{**known, **more})
        self.scheduler = Scheduler(self.groups)
        optimizer = SimpleNamespace(param_groups=self.groups)
        self.began: list[tuple[int, int]] = []
        self.batch = MovingBatch(
            self.args, ConstantNumMicroBatchesCalculator(batch, 1), optimizer, self.scheduler, length,
            lambda *what: self.began.append(what),
        )  # fmt: skip
        self.before = (self.groups[0]["max_lr"], self.args.exit_interval, self.args.train_iters)
        self.batch.start()
        self.batches: list[int] = []

    def run(self, wanted: dict[int, int]) -> list[int]:
        number, known = self.args.iteration, self.batch.get()
        while number < self.args.train_iters:
            self.batch.update(self.args.consumed_train_samples, False)
            assert self.batch.get() == known
            known = self.batch.get()
            self.batch.update(self.args.consumed_train_samples, True)
            size = self.batch.get() * 2
            assert (
                size == self.batch.get_current_global_batch_size() == self.batch.get_current_running_global_batch_size()
            )
            self.batches.append(size)
            number += 1
            self.args.consumed_train_samples += size
            if number in wanted:
                self.batch.ask(wanted[number])
        return self.batches


def test_a_batch_that_stays_changes_nothing() -> None:
    assert Loop().run({}) == [8] * 30


@pytest.mark.parametrize("wanted", [{10: 16}, {10: 4}, {3: 64, 5: 8}, {1: 12, 7: 20, 9: 6}, {10: 9}])
def test_the_run_ends_after_the_same_samples(wanted: dict[int, int]) -> None:
    loop = Loop()
    made = loop.run(wanted)
    assert sum(made) == loop.args.consumed_train_samples == 240
    sizes = {size for size in wanted.values() if size % 2 == 0} | {8}
    assert set(made[:-1]) <= sizes  # only the last iteration may be smaller
    assert loop.began == list(enumerate(made))


def test_rates_follow_the_batch_and_come_back() -> None:
    loop = Loop()
    assert loop.groups[0]["max_lr"] == 1e-3  # not what the checkpoint brought
    seen = []
    for wanted in (32, 8):
        loop.batch.ask(wanted)
        loop.batch.update(0, True)
        seen.append((loop.groups[0]["lr"], loop.scheduler.min_lr, loop.groups[0]["weight_decay"]))
    assert seen[0] == pytest.approx((2e-3, 2e-4, 0.1 * math.sqrt(4)))
    assert seen[1] == pytest.approx((1e-3, 1e-4, 0.1))


def test_a_resumed_run_ends_where_its_samples_do() -> None:
    """Ten iterations of 8, five of 16; the command line is still the first one's: 30 iterations of 8, and its own stop at 25."""
    loop = Loop(iteration=15, consumed=160, length=RunLength(240, 0), exit_interval=25)
    assert loop.run({}) == [8] * 10 and loop.args.exit_interval is None
    loop = Loop(batch=16, iteration=15, consumed=160, iters=15, length=RunLength(240, 7))
    assert loop.run({}) == [16] * 5 and loop.args.exit_interval == 7


def test_nothing_of_the_run_is_changed_before_all_ranks_have_agreed() -> None:
    """A rank that leaves at another iteration than the others would be waited for."""
    loop = Loop(iteration=15, consumed=160, length=RunLength(240, 0), exit_interval=25)
    assert loop.before == (5.0, 25, 30) and loop.args.train_iters == 25 and loop.groups[0]["max_lr"] == 1e-3


@pytest.mark.parametrize("marks", [{"default_config": False}, {"is_decoupled_lr": True}])
def test_embeddings_keep_a_rate_of_their_own(marks: dict[str, bool]) -> None:
    """Older Megatrons mark them by is_decoupled_lr alone."""
    loop = Loop(groups=[{"max_lr": 5.0, "min_lr": 5.0, **marks}])
    assert (loop.groups[0]["max_lr"], loop.groups[0]["min_lr"]) == (3e-3, 5.0)


def test_interleaved_stages_take_multiples_of_pp() -> None:
    loop = Loop(pipeline_model_parallel_size=2, virtual_pipeline_model_parallel_size=2)
    assert [batch for batch in range(1, 17) if loop.batch.can_take(batch)] == [4, 8, 12, 16]
    assert (loop.batch.nearest(15), loop.batch.nearest(1)) == (12, 4)


def test_what_can_not_move_is_said() -> None:
    calculator = ConstantNumMicroBatchesCalculator(8, 1)
    assert batch_obstacle(SimpleNamespace(), calculator) == ""
    assert "ramps" in batch_obstacle(SimpleNamespace(), SimpleNamespace())
    for name, value in (
        ("cuda_graph_impl", "local"),
        ("external_cuda_graph", True),
        ("decrease_batch_size_if_needed", True),
        ("perform_rl_step", True),
    ):
        assert batch_obstacle(SimpleNamespace(**{name: value}), calculator)


@pytest.mark.parametrize("text", ["", "{}", "[]", "null", '{"samples": "x", "exit_interval": 0}', '{"samples": null}'])
def test_a_length_that_makes_no_sense_is_not_known(text: str) -> None:
    assert RunLength.parse(text) == RunLength()


def test_the_launchers_length_is_understood() -> None:
    said = batch_arguments.run_length(["--train-iters", "30", "--global-batch-size", "8", "--exit-interval=5"])
    assert RunLength.parse(json.dumps(said)) == RunLength(240, 5, 8)
    assert RunLength.parse(json.dumps(batch_arguments.run_length([]))) == RunLength(None, 0)


def test_history_of_moves_is_what_the_launcher_reads(tmp_path: Path) -> None:
    for iteration, batch in ((0, 8), (10, 16), (12, 32)):
        keep_history(tmp_path, iteration, batch)
    (tmp_path / "latest_checkpointed_iteration.txt").write_text("14")
    assert batch_arguments.read(tmp_path).samples(8) == 80 + 2 * 16 + 2 * 32
    (tmp_path / "latest_checkpointed_iteration.txt").write_text("11")  # an older checkpoint: what came later is lost
    assert batch_arguments.read(tmp_path).samples(8) == 80 + 16


@pytest.mark.parametrize(("rule", "rate", "decay"), [("", 2.0, 2.0), ("linear", 4.0, 1.0), ("none", 1.0, 1.0)])
def test_the_user_says_how_the_rate_follows(
    monkeypatch: pytest.MonkeyPatch, rule: str, rate: float, decay: float
) -> None:
    monkeypatch.setenv(batch_arguments.LR_RULE, rule)
    script = ["--global-batch-size", "8", "--lr", "0.001", "--weight-decay", "0.1", "--train-iters", "30"]
    made = batch_arguments.with_batch(script, 32, batch_arguments.Trained())
    assert float(made[made.index("--lr") + 1]) == pytest.approx(0.001 * rate)
    assert float(made[made.index("--weight-decay") + 1]) == pytest.approx(0.1 * decay)


def test_a_rule_that_there_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(batch_arguments.LR_RULE, "adascale")
    with pytest.raises(
        UsageError, match="SYNERGY_LR_RULE: 'adascale' is no rule for a Megatron-LM script; it may be sqrt"
    ):
        batch_arguments.choose_rule("adam")
