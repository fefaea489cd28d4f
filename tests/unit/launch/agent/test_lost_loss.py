"""A loss that stops being a number at a batch that has grown."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from synergy_core.records import Plan
from synergy_launch.agent import lost_loss
from synergy_launch.agent.lost_loss import LOST_STEPS, LostLoss
from synergy_launch.agent.run_folder import propose_batch

from tests.unit.launch.agent.agent_rig import Rig

GROWN = Plan(micro_batch=4, global_batch=32)


def lose(rig: Rig, first: int, count: int = LOST_STEPS, **figures: float | bool) -> None:
    for number in range(first, first + count):
        rig.step(number, loss=math.nan, **figures)


def grown(folder: Path, base: int = 8, **more: object) -> Rig:
    """A run at batch 8 that was told 32, with a checkpoint of its second step."""
    rig = Rig(folder, **more)
    rig.agent.plan = Plan(micro_batch=4, global_batch=8)
    rig.start(base_batch=base)
    rig.step(1)
    rig.request(1)
    propose_batch(rig.run_dir, GROWN)
    rig.step(2)
    assert rig.agent.take_batch() == GROWN and rig.save.saved == 1
    return rig


def test_the_run_ends_for_its_checkpoint_and_keeps_a_bound(tmp_path: Path) -> None:
    rig = grown(tmp_path, hold_s=0)
    lose(rig, 3, LOST_STEPS - 1)
    with pytest.raises(SystemExit) as end, rig.agent.watching():
        lose(rig, 2 + LOST_STEPS, 1)
    assert end.value.code == 1
    status = rig.status
    assert status["state"] == "failed" and status["batch_bound"] == 8
    assert "no number for 10 steps at global batch 32" in status["note"] and "step 2" in status["note"]
    assert lost_loss.read(tmp_path / "checkpoints") == 8


def test_nothing_is_saved_while_it_is_lost(tmp_path: Path) -> None:
    rig = grown(tmp_path, hold_s=0)
    rig.request(2)
    lose(rig, 3, 2)
    assert rig.save.saved == 1 and rig.status["checkpoint_requests"] == 1
    rig.step(5)  # it was one bad batch of data
    assert rig.save.saved == 2 and rig.status["checkpoint_requests"] == 2


def test_a_gradient_that_is_no_number_is_not_saved_either(tmp_path: Path) -> None:
    """The parameters are ruined by the step whose own loss was still a number."""
    rig = grown(tmp_path, hold_s=0)
    rig.request(2)
    rig.step(3, finite=False)
    assert rig.save.saved == 1
    rig.step(4)
    assert rig.save.saved == 2


def test_a_save_at_sigterm_does_not_replace_the_good_one(tmp_path: Path) -> None:
    rig = grown(tmp_path, hold_s=0, grace_s=100)
    lose(rig, 3, 1)
    rig.agent._on_term(15, None)
    assert not rig.step(4, loss=math.nan)
    assert rig.save.saved == 1 and "last checkpoint: step 2" in rig.status["note"]


def test_the_next_run_stays_below_whatever_it_is_told(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").mkdir()
    lost_loss.write(tmp_path / "checkpoints", 8)
    rig = Rig(tmp_path)
    rig.agent.plan = GROWN  # of a plan file that is older than the loss
    rig.start(base_batch=4)
    propose_batch(rig.run_dir, GROWN)
    rig.step(1)
    plan = rig.agent.take_batch()
    assert plan is not None and plan.global_batch == 8
    rig.step(2)
    assert rig.agent.take_batch() is None and rig.agent.plan.global_batch == 8
    assert rig.status["batch_bound"] == 8


def test_its_own_choice_stays_below(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").mkdir()
    lost_loss.write(tmp_path / "checkpoints", 4)
    rig = Rig(tmp_path, batch_range=(1, 64))
    rig.start(base_batch=1)
    for number in range(1, 200):
        rig.step(number, 1.0 + 0.01 * rig.agent.plan.global_batch, noise_scale=1e4)
        rig.agent.take_batch()
    assert rig.agent.plan.global_batch == 4


@pytest.mark.parametrize("base", [32, None])
def test_at_its_own_batch_a_lost_loss_is_the_scripts_affair(tmp_path: Path, base: int | None) -> None:
    rig = Rig(tmp_path)
    rig.agent.plan = GROWN
    rig.start(base_batch=base)
    lose(rig, 1, 3 * LOST_STEPS)
    rig.request(1)
    rig.step(99, loss=math.nan)
    assert rig.save.saved == 1 and not (tmp_path / "checkpoints" / lost_loss.FILE).exists()


def test_without_a_checkpoint_it_only_goes_back_to_a_smaller_batch(tmp_path: Path) -> None:
    """There is nothing to go back to: the script decides what it does."""
    rig = Rig(tmp_path)
    rig.agent.plan = GROWN
    rig.start(base_batch=8)
    lose(rig, 1)
    lose(rig, 1 + LOST_STEPS, 1)
    plan = rig.agent.take_batch()
    assert plan is not None and plan.global_batch == 8


def test_the_bound_is_the_largest_batch_that_was_borne(tmp_path: Path) -> None:
    rig = grown(tmp_path, base=4, hold_s=0)  # 8 for two steps only
    for number in range(3, 3 + lost_loss.BORNE_STEPS):
        rig.step(number)
    propose_batch(rig.run_dir, Plan(micro_batch=4, global_batch=64))
    rig.step(90)
    assert rig.agent.take_batch() is not None
    with pytest.raises(SystemExit):
        lose(rig, 91)
    assert lost_loss.read(tmp_path / "checkpoints") == 32


def test_a_script_keeps_its_own_batch_above_another_run_s_bound(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").mkdir()
    lost_loss.write(tmp_path / "checkpoints", 8)
    rig = Rig(tmp_path)
    rig.agent.plan = GROWN
    rig.agent.find_checkpoint(None)
    assert rig.agent.find_bounded_plan(32) == GROWN
    rig.start(base_batch=32)
    rig.step(1)
    assert rig.agent.take_batch() is None and rig.status["batch_bound"] == 32
    assert LostLoss(16, 8).bound == 16 and LostLoss(None, 8).bound is None


def test_the_first_step_after_it_is_below_already(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").mkdir()
    lost_loss.write(tmp_path / "checkpoints", 8)
    rig = Rig(tmp_path)
    rig.agent.plan = GROWN
    rig.agent.find_checkpoint(None)
    assert rig.agent.find_bounded_plan(4).global_batch == 8 == rig.agent.plan.global_batch


def test_the_bound_is_read_once_at_a_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that all ranks have the same one: rank 0's, whatever a shared folder shows the others later."""
    (tmp_path / "checkpoints").mkdir()
    lost_loss.write(tmp_path / "checkpoints", 8)
    reads: list[Path | None] = []
    real = lost_loss.read

    def read(folder: Path | None) -> int | None:
        reads.append(folder)
        return real(folder)

    monkeypatch.setattr(lost_loss, "read", read)
    rig = Rig(tmp_path)
    rig.agent.plan = GROWN
    rig.agent.find_checkpoint(None)
    assert rig.agent.find_bounded_plan(4).global_batch == 8
    lost_loss.write(tmp_path / "checkpoints", 16)
    rig.start(base_batch=4)
    assert rig.status["batch_bound"] == 8 and len(reads) == 1
    other = Rig(tmp_path)  # of an adapter that has asked for no bound before
    other.start(base_batch=4)
    assert other.status["batch_bound"] == 16 and len(reads) == 2


def test_a_batch_that_went_down_meanwhile_is_not_acquitted(tmp_path: Path) -> None:
    """The parameters are ruined since a larger batch: they are saved no more than before."""
    rig = grown(tmp_path, hold_s=0)
    lose(rig, 3, 2)
    propose_batch(rig.run_dir, Plan(micro_batch=4, global_batch=8))
    lose(rig, 5, 1)
    assert rig.agent.take_batch() is not None and rig.agent.plan.global_batch == 8
    rig.request(2)
    with pytest.raises(SystemExit):
        lose(rig, 6, LOST_STEPS)
    assert rig.save.saved == 1 and lost_loss.read(tmp_path / "checkpoints") == 8


def test_requests_are_answered_where_there_is_nothing_to_go_back_to(tmp_path: Path) -> None:
    rig = Rig(tmp_path, hold_s=0)
    rig.agent.plan = GROWN
    rig.start(base_batch=8)
    rig.request(1)
    lose(rig, 1, LOST_STEPS - 1)
    assert rig.save.saved == 0
    lose(rig, LOST_STEPS, 2)
    assert rig.save.saved == 1 and rig.status["checkpoint_requests"] == 1


def test_steps_that_another_rank_saw_lost_are_not_borne() -> None:
    lost = LostLoss(base=4)
    for _ in range(lost_loss.BORNE_STEPS):
        lost.record_step(True)
        lost.record_lost_steps(1, 8)
    lost.record_lost_steps(LOST_STEPS, 32)
    assert lost.is_lost_for_good and lost.tighten_bound() == 4


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"batch": 0}', '{"batch": "8"}', '{"batch": true}', "9" * 5000])
def test_a_bound_that_makes_no_sense_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / lost_loss.FILE).write_text(text)
    assert lost_loss.read(tmp_path) is None
