"""Loss spikes: how they are told from other losses, and the way back past the examples that led to one."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from synergy_core.records import Plan
from synergy_launch.agent import run_folder
from synergy_launch.agent.checkpoint import replace_meta, verify
from synergy_launch.agent.collectives import OneProcess
from synergy_launch.agent.loss_spike import (
    BEFORE_STEPS,
    LASTING_STEPS,
    MOST_RETURNS,
    WINDOW,
    WITHIN_S,
    LossWindow,
    SpikeWatch,
    rank_steps,
)

from tests.unit.launch.agent.agent_rig import Rig

BATCH = 8


def spiky_steps(losses: Iterable[float], batches: Iterable[int] = ()) -> list[int]:
    """The numbers, from 0, of the spiky losses; all others enter the window."""
    window, found = LossWindow(), []
    sizes = iter(batches)
    for number, loss in enumerate(losses):
        batch = next(sizes, BATCH)
        if window.is_spiky(loss, batch):
            found.append(number)
        else:
            window.add(loss, batch)
    return found


def curve(step: int) -> float:
    """A loss that falls as language models' do."""
    return 2.0 + 9.0 * math.pow(1.0 + step / 20.0, -0.7)


def test_the_start_of_a_training_is_no_spike() -> None:
    draw = random.Random(1)
    assert spiky_steps(curve(step) + draw.gauss(0, 0.05) for step in range(4000)) == []


def test_a_warm_up_that_ends_in_a_hump_is_no_spike() -> None:
    draw = random.Random(2)
    hump = [0.6 * math.exp(-(((step - 400) / 60.0) ** 2)) for step in range(2000)]
    assert spiky_steps(curve(step) + hump[step] + draw.gauss(0, 0.05) for step in range(2000)) == []


def test_a_slow_rise_is_no_spike() -> None:
    assert spiky_steps([2.0 + 0.001 * step for step in range(3000)]) == []


@pytest.mark.parametrize("at", [400, 3000])
def test_a_jump_is_one(at: int) -> None:
    draw = random.Random(3)
    losses = [2.5 + draw.gauss(0, 0.05) + (1.5 if at <= step < at + 20 else 0.0) for step in range(at + 100)]
    assert spiky_steps(losses) == list(range(at, at + 20))


def test_a_smaller_batch_with_its_larger_noise_is_none() -> None:
    draw = random.Random(4)
    noise = [0.02] * 500 + [0.2] * 500
    batches = [64] * 500 + [1] * 500
    assert spiky_steps([2.5 + draw.gauss(0, sd) for sd in noise], batches) == []


def test_too_few_losses_are_no_measure() -> None:
    assert spiky_steps([1.0, 1.1] * (BEFORE_STEPS // 2 - 1) + [50.0]) == []


def test_the_sums_are_those_of_the_window() -> None:
    draw, window = random.Random(5), LossWindow()
    losses = [draw.uniform(1, 3) + (1e6 if step < 10 else 0.0) for step in range(3 * WINDOW)]
    for loss in losses:
        window.add(loss, BATCH)
    last = losses[-WINDOW:]
    mean = math.fsum(last) / WINDOW
    sd = math.sqrt(math.fsum((x - mean) ** 2 for x in last) / (WINDOW - 1))
    assert window.mean == pytest.approx(mean, rel=1e-9)
    assert window.is_spiky(mean + 7.01 * sd, BATCH) and not window.is_spiky(mean + 6.99 * sd, BATCH)


@pytest.mark.parametrize("absurd", [1e300, -1e300])
def test_absurd_losses_raise_nothing(absurd: float) -> None:
    window = LossWindow()
    for step in range(3 * WINDOW):
        window.add(absurd if step < 5 else 2.0, BATCH)
        window.is_spiky(absurd, BATCH)
    assert window.mean == 2.0 and window.is_spiky(3.0, BATCH)


def test_the_checkpoint_to_go_back_to() -> None:
    assert rank_steps([800, 850, 1000], 1000) == [850, 800]
    assert rank_steps([850, 950], 1000) == [850, 950], "one as old as PaLM's comes first"
    assert rank_steps([950, 980], 1000) == [950, 980], "else the oldest"
    assert rank_steps([1000, 1010], 1000) == []


# -- the watch -------------------------------------------------------------------------------------------------------------


def watch_at(step: int, first: int = 1, state: object = None) -> SpikeWatch:
    """A watch over a run that has made `step` steps, from `first` on."""
    watch = SpikeWatch(state)
    for number in range(first, step + 1):
        watch.record_step(number, 2.0 + 0.01 * (number % 7), BATCH, finite=True, samples=number * BATCH)
    return watch


def spike(watch: SpikeWatch, first: int, count: int = LASTING_STEPS, loss: float = 9.0) -> None:
    for number in range(first, first + count):
        now = loss + 0.01 * (number - first)
        watch.record_step(number, now, BATCH, finite=math.isfinite(now), samples=number * BATCH)


def go_back(watch: SpikeWatch, checkpoint_step: int, step: int, now_s: float = 0.0) -> SpikeWatch:
    """The watch of the run that starts again."""
    state = watch.state_after_return(checkpoint_step, checkpoint_step * BATCH, watch.state(), step, now_s)
    return SpikeWatch(json.loads(json.dumps(state)))


def test_a_spike_is_known_at_its_first_step_and_due_when_it_lasts() -> None:
    watch = watch_at(300)
    spike(watch, 301, 1)
    assert watch.spike is not None and (watch.spike.step, watch.spike.loss, watch.spike.answer) == (301, 9.0, "new")
    assert watch.is_open and not watch.is_due
    spike(watch, 302, LASTING_STEPS - 1, loss=9.5)
    assert watch.is_due and watch.spike.step == 301


def test_an_odd_step_is_forgotten() -> None:
    watch = watch_at(300)
    spike(watch, 301, LASTING_STEPS - 1)
    watch.record_step(301 + LASTING_STEPS, 2.0, BATCH, finite=True, samples=0)
    assert watch.spike is None and not watch.is_open and "spike" not in watch.state()


def test_a_loss_that_is_no_number_needs_no_measure() -> None:
    watch = watch_at(3)
    spike(watch, 4, loss=math.nan)
    assert watch.is_due and watch.spike is not None and watch.spike.loss is None


def test_the_examples_before_and_during_a_spike_are_skipped() -> None:
    watch = watch_at(300)
    spike(watch, 301)
    watch = go_back(watch, 200, 310)
    assert watch.skipped.ranges == ((200 * BATCH, 400 * BATCH - 1),), (
        "a hundred steps before it, and a hundred from it on"
    )
    spiked = watch.spike
    assert spiked is not None and (spiked.answer, spiked.checkpoint_step) == ("skipped", 200)
    assert (spiked.first_example, spiked.last_example) == watch.skipped.ranges[0]


def test_examples_from_long_before_a_spike_come_again() -> None:
    watch = watch_at(300)
    spike(watch, 301)
    watch = go_back(watch, 20, 310)
    assert watch.skipped.ranges == ((200 * BATCH, 400 * BATCH - 1),)


def test_examples_before_the_checkpoint_are_trained_on_and_stay_so() -> None:
    watch = watch_at(300)
    spike(watch, 301)
    watch = go_back(watch, 280, 310)
    assert watch.skipped.ranges == ((280 * BATCH, 400 * BATCH - 1),)


def test_a_second_spike_skips_by_what_was_trained_on() -> None:
    watch = watch_at(300)
    spike(watch, 301)
    watch = go_back(watch, 200, 310)
    again = watch_at(600, first=201, state=json.loads(json.dumps(watch.state())))
    spike(again, 601)
    assert again.obstacle(1.0) == ""
    again = go_back(again, 500, 610, 1.0)
    gap = 200 * BATCH  # what was skipped before
    assert again.skipped.ranges[1] == (500 * BATCH + gap, 700 * BATCH + gap - 1)


@pytest.mark.parametrize(("first", "answer"), [(301, "same-place"), (411, ""), (250, "same-place"), (200, "")])
def test_a_spike_at_the_same_place_is_not_answered_again(first: int, answer: str) -> None:
    watch = watch_at(300)
    spike(watch, 301)
    watch = go_back(watch, 100, 310)
    again = watch_at(first - 1, first=101, state=watch.state())
    spike(again, first)
    assert again.obstacle(9e9) == answer


def test_three_within_an_hour_are_enough() -> None:
    state: object = None
    for number in range(1, MOST_RETURNS + 2):
        step = 1000 * number
        watch = watch_at(step, first=step - 500, state=state)
        spike(watch, step + 1)
        assert watch.obstacle(100.0 * number) == ("too-often" if number > MOST_RETURNS else "")
        assert watch.obstacle(100.0 * number + WITHIN_S) == ""
        state = go_back(watch, step - 100, step + LASTING_STEPS, 100.0 * number).state()


def test_a_lasting_level_becomes_the_usual_one() -> None:
    watch = watch_at(300)
    spike(watch, 301)
    assert watch.spike is not None
    watch.note_answer(replace(watch.spike, answer="not-allowed"))
    spike(watch, 311, 100)
    assert watch.steps == 0, "which the next spike is judged by"


def test_all_ranks_answer_a_spike_at_the_same_step() -> None:
    """Answering takes collectives: a rank that answered alone would wait for the others without end."""
    first, other, answers = watch_at(300), watch_at(300), 0
    for number in range(301, 340):
        loss = 9.0 + 0.01 * number if number < 320 else 2.0 + 0.01 * (number % 7)
        first.record_step(number, loss, BATCH, finite=True, samples=number * BATCH)
        other.record_step(number, None, BATCH, finite=True, samples=number * BATCH)  # it does not know the loss
        steps = first.steps
        for watch in (first, other):
            watch.agree(steps)
        assert (first.is_due, first.is_open) == (other.is_due, other.is_open), number
        if first.is_due and first.spike is not None:
            answers += 1
            answered = replace(first.spike, answer="not-allowed")
            for watch in (first, other):
                watch.note_answer(answered)
    assert answers == 1


def test_the_losses_are_kept_over_a_restart() -> None:
    kept = json.loads(json.dumps(watch_at(300).state()))
    watch = SpikeWatch(kept)
    spike(watch, 301, 1)
    assert watch.spike is not None and watch.spike.usual == pytest.approx(2.03, rel=1e-3)


def test_a_loss_that_is_logged_every_so_many_steps_counts_once() -> None:
    watch, draw = SpikeWatch(), random.Random(6)
    for log in range(300):
        loss = 2.0 + draw.gauss(0, 0.05)
        for step in range(20):
            watch.record_step(20 * log + step, loss, BATCH, finite=True, samples=None)
            assert watch.spike is None
    for step in range(20):
        watch.record_step(6000 + step, 9.0, BATCH, finite=True, samples=None)
    assert watch.steps == 1 and watch.spike is not None and watch.spike.step == 6000


@pytest.mark.parametrize(
    "state", [None, [], {"losses": "a b"}, {"returns": 3, "spike": [], "batch": "x"}, {"losses": "nan"}]
)
def test_a_state_that_makes_no_sense_is_none(state: object) -> None:
    watch = SpikeWatch(state)
    assert watch.spike is None and watch.returns == () and watch.skipped.ranges == ()


# -- in the agent ----------------------------------------------------------------------------------------------------------


class Saver:
    def __init__(self, rig: Rig) -> None:
        self.rig, self.saved = rig, 0

    def __call__(self, folder: Path) -> dict[str, Any]:
        self.saved += 1
        (folder / "data").write_text("x")
        return {"samples": self.rig.agent.status["step"] * BATCH}


def run(folder: Path, until: int, first: int = 1, *, mended: bool = True, more: dict[str, Any] | None = None) -> Rig:
    """A run at its step `until`, with a checkpoint each 50 steps."""
    rig = Rig(folder, **{"skip_spikes": True, "hold_s": 0, **(more or {})})
    rig.agent.plan = Plan(global_batch=BATCH)
    if mended:
        run_folder.note_mending(rig.run_dir)
    rig.agent.find_checkpoint(None)
    rig.agent.start(first - 1, save=Saver(rig), checkpoint_interval=50)
    for number in range(first, until + 1):
        step(rig, number, 2.0 + 0.01 * (number % 7))
    return rig


def step(rig: Rig, number: int, loss: float, **more: Any) -> None:
    rig.step(number, loss=loss if loss < 5 else loss + 0.001 * number, **{"samples": number * BATCH, **more})


def steps_saved(folder: Path) -> list[int]:
    return sorted(int(path.name[5:]) for path in (folder / "checkpoints").glob("step_*"))


def test_the_run_ends_for_its_checkpoint_from_before_the_spike(tmp_path: Path) -> None:
    rig = run(tmp_path, 245)
    with pytest.raises(SystemExit) as end, rig.agent.watching():
        for number in range(246, 260):
            step(rig, number, 9.0)
            assert rig.status["spike"]["answer"] == "new"
    assert end.value.code == 1 and rig.agent.status["step"] == 255
    assert steps_saved(tmp_path) == [150], "no checkpoint of the spike, and none of shortly before it"
    checkpoint, why = verify(tmp_path / "checkpoints" / "step_00000150")
    assert checkpoint is not None, why
    kept = checkpoint.meta["agent"]["spikes"]
    assert kept["skipped"] == [[150 * BATCH, 345 * BATCH - 1]] and len(kept["losses"].split()) == 150
    told = run_folder.read_noted_spike(rig.run_dir)
    assert told is not None and (told.step, told.answer, told.checkpoint_step) == (246, "skipped", 150)
    assert rig.status["checkpoint_step"] == 150
    assert "without examples 1200 to 2759 of its order" in rig.status["note"] and rig.status["state"] == "failed"
    again = Rig(tmp_path)
    assert again.agent.find_checkpoint(None).checkpoint == checkpoint
    assert again.agent.skipped.ranges == ((1200, 2759),)
    again.agent.start(150, save=Saver(again), checkpoint_interval=0)
    assert again.status["spike"]["answer"] == "skipped"


@pytest.mark.parametrize(
    ("answer", "more"),
    [
        ("not-allowed", {"more": {"skip_spikes": False}}),
        ("no-restart", {"mended": False}),
    ],
)
def test_without_leave_or_a_launcher_the_run_goes_on(tmp_path: Path, answer: str, more: dict[str, Any]) -> None:
    rig = run(tmp_path, 145, **more)
    for number in range(146, 180):
        step(rig, number, 9.0)
    rig.agent.status.write()
    assert rig.status["spike"]["answer"] == answer and rig.status["spike"]["step"] == 146
    assert rig.agent.skipped.ranges == ()
    expected = [100, 150] if answer == "not-allowed" else [100, 155]
    assert steps_saved(tmp_path) == expected, "a checkpoint waits only where the run may go back"


def test_a_loop_with_an_order_of_its_own_is_only_told(tmp_path: Path) -> None:
    rig = Rig(tmp_path, skip_spikes=True)
    run_folder.note_mending(rig.run_dir)
    rig.agent.find_checkpoint(None)
    rig.agent.start(0, save=Saver(rig), checkpoint_interval=50)
    for number in range(1, 180):
        rig.step(number, loss=9.0 + 0.001 * number if number > 145 else 2.0 + 0.01 * (number % 7))
    assert rig.agent.status["spike"]["answer"] == "own-order" and 150 in steps_saved(tmp_path)


def test_a_loss_that_is_no_number_is_left_behind_too(tmp_path: Path) -> None:
    rig = run(tmp_path, 145)
    with pytest.raises(SystemExit):
        for number in range(146, 160):
            step(rig, number, math.nan)
    assert "is not a number from step 146 on" in rig.status["note"]


def test_without_a_checkpoint_from_before_it_goes_on(tmp_path: Path) -> None:
    rig = run(tmp_path, 20)
    for number in range(21, 60):
        step(rig, number, math.nan)
    assert rig.agent.status["spike"]["answer"] == "no-checkpoint" and steps_saved(tmp_path) == [50]


def test_a_loss_that_stays_at_one_value_keeps_no_checkpoint_waiting(tmp_path: Path) -> None:
    rig = run(tmp_path, 145, mended=False)
    for number in range(146, 180):
        rig.step(number, loss=9.0, samples=number * BATCH)
    assert rig.agent.status["spike"]["answer"] == "no-restart" and steps_saved(tmp_path)[-1] > 150


def test_a_checkpoint_waits_on_all_ranks_where_it_waits_on_rank_0(tmp_path: Path) -> None:
    """A node whose launcher has not found the job's plan file does not know of skip_spikes=yes."""

    class SecondRank(OneProcess):
        rank, world = 1, 2

        def maximum(self, values: Sequence[int]) -> list[int]:
            return [*values[:-2], 1, 1]  # rank 0 is in a spike, and may skip examples

    rig = run(tmp_path, 149, more={"skip_spikes": False})
    rig.agent.ranks = SecondRank()
    assert not rig.agent.look(150, loss=None).save


def test_sigterm_in_the_middle_replaces_no_good_checkpoint(tmp_path: Path) -> None:
    rig = run(tmp_path, 145, more={"grace_s": 100})
    step(rig, 146, 9.0)
    rig.agent._on_term(15, None)
    step(rig, 147, 9.0)
    assert steps_saved(tmp_path) == [50, 100]


def test_a_damaged_checkpoint_is_passed_over(tmp_path: Path) -> None:
    rig = run(tmp_path, 245)
    (tmp_path / "checkpoints" / "step_00000150" / "data").write_text("damaged")
    with pytest.raises(SystemExit):
        for number in range(246, 260):
            step(rig, number, 9.0)
    told = run_folder.read_noted_spike(rig.run_dir)
    assert told is not None and told.checkpoint_step == 200
    assert told.first_example == 200 * BATCH, "what the checkpoint was trained on is not left out any more"


def test_a_checkpoint_that_is_due_at_an_odd_step_is_made_up_for(tmp_path: Path) -> None:
    rig = run(tmp_path, 149)
    step(rig, 150, 9.0)
    assert steps_saved(tmp_path) == [50, 100]
    step(rig, 151, 2.0)
    step(rig, 152, 2.0)
    assert steps_saved(tmp_path) == [100, 151]


def test_a_checkpoint_that_does_not_say_where_it_stands_is_passed_over(tmp_path: Path) -> None:
    rig = run(tmp_path, 245)
    good, _ = verify(tmp_path / "checkpoints" / "step_00000150")
    assert good is not None
    replace_meta(good, {**good.meta, "samples": 10**9})
    with pytest.raises(SystemExit):
        for number in range(246, 260):
            step(rig, number, 9.0)
    told = run_folder.read_noted_spike(rig.run_dir)
    assert told is not None and told.checkpoint_step == 200


def test_a_kill_in_the_middle_of_going_back_leaves_a_run_that_can_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The newer checkpoint is of the order before, and the run meets the spike again."""
    rig = run(tmp_path, 245)

    def kill(_folder: Path) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("synergy_launch.agent.checkpoint._remove", kill)
    with pytest.raises(KeyboardInterrupt):
        for number in range(246, 260):
            step(rig, number, 9.0)
    monkeypatch.undo()
    again = run(tmp_path, 245, first=201)
    assert again.agent.skipped.ranges == ()
    with pytest.raises(SystemExit):
        for number in range(246, 260):
            step(again, number, 9.0)
    told = run_folder.read_noted_spike(again.run_dir)
    assert told is not None and (told.checkpoint_step, told.first_example) == (150, 150 * BATCH)
    assert steps_saved(tmp_path) == [150]


def test_where_going_back_fails_the_order_stays_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rig = run(tmp_path, 245)

    def refuse(_folder: Path) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr("synergy_launch.agent.checkpoint._remove", refuse)
    for number in range(246, 260):
        step(rig, number, 9.0)
    assert rig.agent.status["spike"]["answer"] == "no-checkpoint" and rig.agent.skipped.ranges == ()
