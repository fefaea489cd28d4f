"""A batch that changes while a run goes on: the daemon's proposal, or the run's own choice."""

from __future__ import annotations

from pathlib import Path

import pytest
from synergy_core.records import Plan
from synergy_launch.agent.run_folder import propose_batch

from tests.unit.launch.agent.agent_rig import Rig


def test_a_proposed_batch_is_offered_once_and_only_to_who_takes_it(rig: Rig) -> None:
    rig.start(base_batch=4)
    assert rig.step(1) and rig.agent.take_batch() is None
    propose_batch(rig.run_dir, Plan(micro_batch=2, global_batch=8))
    assert rig.step(2)
    changed = rig.agent.take_batch()
    assert changed == Plan(micro_batch=2, global_batch=8) == rig.agent.plan
    assert rig.status["rebatching"] is True
    assert rig.step(3) and rig.agent.take_batch() is None
    rig.clock.now += 1
    rig.step(4)
    assert rig.status["plan"]["global_batch"] == 8


def test_a_batch_is_not_offered_to_who_never_asks(rig: Rig) -> None:
    rig.start()
    propose_batch(rig.run_dir, Plan(micro_batch=2, global_batch=8))
    assert rig.step(1) and rig.agent.take_batch() is None
    assert rig.status["rebatching"] is False


@pytest.mark.parametrize("text", ["", "{", "[]", '{"global_batch": 8}', '{"global_batch": 8, "micro_batch": true}'])
def test_a_proposal_that_makes_no_sense_is_none(rig: Rig, text: str) -> None:
    rig.start(base_batch=4)
    (rig.run_dir / "batch").write_text(text)
    assert rig.step(1) and rig.agent.take_batch() is None


def test_a_batch_that_does_not_divide_is_refused_with_a_note(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    rig.agent.plan = Plan(dp=3, global_batch=3)
    rig.start(base_batch=3)
    propose_batch(rig.run_dir, Plan(micro_batch=2, global_batch=8))
    assert rig.step(1) and rig.agent.take_batch() is None
    assert rig.agent.plan.global_batch == 3 and "does not divide on dp=3" in rig.status["note"]


def test_the_agent_chooses_a_batch_in_its_range(tmp_path: Path) -> None:
    rig = Rig(tmp_path, batch_range=(1, 8))
    rig.start(base_batch=1)
    number, batches = 0, []
    while number < 200:
        number += 1
        rig.step(number, 1.0 + 0.01 * rig.agent.plan.global_batch, noise_scale=1e4)
        rig.agent.take_batch()
        batches.append(rig.agent.plan.global_batch)
    assert sorted(set(batches)) == [1, 2, 4, 8] and batches == sorted(batches)


def test_the_agent_takes_a_batch_back_at_which_the_loss_does_worse(tmp_path: Path) -> None:
    """Above 4 each step makes the loss worse; 4 itself does not."""
    rig = Rig(tmp_path, batch_range=(4, 64))
    rig.agent.plan = Plan(micro_batch=4, global_batch=4)
    rig.start(base_batch=4)
    loss, batches, notes = 3.0, [], set()
    for number in range(1, 400):
        loss += 0.2 if rig.agent.plan.global_batch > 4 else 0.0
        rig.step(number, 1.0 + 0.01 * rig.agent.plan.global_batch, loss=loss + 0.05 * (number % 3), noise_scale=1e4)
        rig.agent.take_batch()
        batches.append(rig.agent.plan.global_batch)
        notes.add(rig.status["note"])
    assert max(batches) > 4 and batches[-200:] == [4] * 200
    assert any("is taken back to 4: the loss does worse" in note for note in notes)


@pytest.mark.parametrize(("told", "taken"), [(31, 16), (8, 16), (3, 16), (39, 32), (48, 48)])
def test_one_that_moves_in_multiples_never_takes_more_than_planned(tmp_path: Path, told: int, taken: int) -> None:
    """What is planned may be the most that its user allows. The daemon plans multiples; an older one does not."""
    rig = Rig(tmp_path)
    rig.agent.plan = Plan(micro_batch=4, global_batch=64)
    rig.start(base_batch=16)
    propose_batch(rig.run_dir, Plan(micro_batch=1, global_batch=told))
    assert rig.step(1)
    changed = rig.agent.take_batch(16)
    assert changed is not None and changed.global_batch == taken
