from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from synergy_launch.agent.agent import Agent, StepTimer
from synergy_launch.agent.collectives import OneProcess
from synergy_launch.agent.run_folder import propose_batch
from synergy_launch.agent.settings import AgentSettings, check_degrees, check_plan, parse_plan

from synergyd.errors import UsageError
from synergyd.records import ModelSpec, Plan

ROOT = Path(__file__).parents[4]


class Clock:
    """Time that passes only when somebody sleeps."""

    def __init__(self) -> None:
        self.now = 100.0
        self.on_sleep: Callable[[], None] = lambda: None

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.on_sleep()


class Saver:
    def __init__(self) -> None:
        self.saved = 0
        self.fails = False

    def __call__(self, folder: Path) -> Mapping[str, Any]:
        if self.fails:
            raise OSError("no space left")
        self.saved += 1
        (folder / "data").write_text("x")
        return {}


class Rig:
    def __init__(self, folder: Path, **more: Any) -> None:
        self.run_dir = folder / "run"
        self.run_dir.mkdir(exist_ok=True)
        self.clock = Clock()
        self.settings = AgentSettings(
            run_dir=self.run_dir, step_log=folder / "steps.jsonl", checkpoint_dir=folder / "checkpoints", **more
        )
        self.agent = Agent(
            self.settings, Plan(), OneProcess(), clock=self.clock, monotonic=self.clock, sleep=self.clock.sleep
        )
        self.save = Saver()

    def start(self, **more: Any) -> None:
        assert self.agent.find_checkpoint(None).checkpoint is None
        self.agent.start(0, save=self.save, **more)

    def step(self, number: int, seconds: float = 1.0, **more: Any) -> bool:
        self.clock.now += seconds
        return self.agent.after_step(number, **{"loss": 1.0 / number, **more})

    def request(self, number: int) -> None:
        (self.run_dir / "checkpoint-request").write_text(str(number))

    @property
    def status(self) -> dict[str, Any]:
        content = json.loads((self.run_dir / "status.json").read_text())
        assert isinstance(content, dict)
        return content


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path)


def test_status_says_what_is_going_on(rig: Rig, tmp_path: Path) -> None:
    assert rig.status["state"] == "starting"
    spec = ModelSpec("m", 2, 8, 2, 2, 32, 256, 16)
    rig.start(resharding=True, model=spec)
    for number in range(1, 6):
        assert rig.step(number, seconds=float(10 if number <= 2 else number), tokens=7 * number, noise_scale=3.5)
    status = rig.status
    assert status["state"] == "training"
    assert (status["step"], status["tokens"], status["noise_scale"]) == (5, 35, 3.5)
    assert status["step_s"] == 4.0  # of 3, 4, 5: the first two are dropped
    assert status["plan"]["tp"] == 1 and status["model"]["layers"] == 2 and status["resharding"] is True
    log = [json.loads(line) for line in (tmp_path / "steps.jsonl").read_text().splitlines()]
    assert [entry["step"] for entry in log] == [1, 2, 3, 4, 5]
    assert set(log[0]) == {"step", "loss", "restarts", "tp", "pp", "dp", "global_batch", "time"}


def test_status_is_written_at_most_twice_a_second(rig: Rig) -> None:
    rig.start()
    rig.step(1, seconds=0.3)
    assert rig.status["step"] == 0
    rig.step(2, seconds=0.3)
    assert rig.status["step"] == 2


@pytest.mark.parametrize("value", [math.nan, math.inf, None])
def test_what_json_cannot_hold_becomes_null(rig: Rig, value: float | None) -> None:
    rig.start()
    rig.step(1, loss=value, noise_scale=value)
    assert rig.status["loss"] is None and rig.status["noise_scale"] is None


def test_request_is_saved_acknowledged_held_and_training_goes_on(rig: Rig) -> None:
    rig.start()
    rig.step(1)
    rig.request(1)
    seen: list[dict[str, Any]] = []
    rig.clock.on_sleep = lambda: seen.append(rig.status)
    before = rig.clock.now
    assert rig.step(2)
    assert rig.save.saved == 1
    assert seen[0]["state"] == "waiting" and seen[0]["checkpoint_requests"] == 1 and seen[0]["checkpoint_step"] == 2
    assert rig.clock.now - before == pytest.approx(1.0 + 20.0, abs=0.3)
    assert rig.status["state"] == "training"
    assert rig.step(3) and rig.save.saved == 1  # the same request is not served twice


def test_the_hold_is_no_step_time(rig: Rig) -> None:
    rig.start()
    for number in range(1, 6):
        rig.step(number)
    rig.request(1)
    rig.step(6)
    rig.step(7)
    assert rig.status["step_s"] == pytest.approx(1.0)


def test_newer_request_while_held_needs_no_second_save(rig: Rig) -> None:
    rig.start()
    rig.request(1)
    rig.clock.on_sleep = lambda: rig.request(2)
    rig.step(1)
    assert rig.save.saved == 1 and rig.status["checkpoint_requests"] == 2


def test_signals_alone_count_requests(rig: Rig) -> None:
    rig.start()
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGUSR2)}
    try:
        rig.agent.install_signals()
        os.kill(os.getpid(), signal.SIGUSR2)
        assert rig.step(1) and rig.status["checkpoint_requests"] == 1
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGTERM)  # a second one changes nothing
        assert not rig.step(2)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    assert rig.save.saved == 2
    assert rig.status["note"] == "stopped by SIGTERM at step 2, last checkpoint: step 2"
    assert rig.status["state"] == "waiting"


def test_signal_with_a_file_is_one_request(rig: Rig) -> None:
    rig.start()
    rig.request(4)
    rig.agent._on_usr2(0, None)
    rig.step(1)
    assert rig.status["checkpoint_requests"] == 4
    rig.agent._on_usr2(0, None)  # late: the file still says 4
    rig.step(2)
    assert rig.status["checkpoint_requests"] == 4 and rig.save.saved == 1


def test_sigterm_while_held_ends_at_once_without_a_second_save(rig: Rig) -> None:
    rig.start()
    rig.request(1)
    rig.clock.on_sleep = lambda: rig.agent._on_term(15, None)
    before = rig.clock.now
    assert not rig.step(1)
    assert rig.save.saved == 1 and rig.clock.now - before < 2


def test_no_save_is_begun_that_would_outlast_the_grace(tmp_path: Path) -> None:
    rig = Rig(tmp_path, grace_s=5.0, hold_s=0.0)
    slow = rig.save

    def save(folder: Path) -> Mapping[str, Any]:
        rig.clock.now += 6.0
        return slow(folder)

    rig.agent.find_checkpoint(None)
    rig.agent.start(0, save=save)
    rig.request(1)
    rig.step(1)
    rig.agent._on_term(15, None)
    assert not rig.step(2)
    assert slow.saved == 1 and "stopped by SIGTERM at step 2, last checkpoint: step 1" in rig.status["note"]


def test_failed_save_is_said_not_acknowledged_and_training_goes_on(rig: Rig) -> None:
    rig.start()
    rig.save.fails = True
    rig.request(1)
    assert rig.step(1)
    status = rig.status
    assert status["checkpoint_requests"] == 0 and status["checkpoint_step"] is None
    assert "no space left" in status["note"] and status["state"] == "training"
    rig.save.fails = False
    rig.request(2)
    assert rig.step(2) and rig.status["checkpoint_requests"] == 2


def test_checkpoint_at_each_interval_and_at_the_end(rig: Rig) -> None:
    rig.start(checkpoint_interval=2)
    for number in range(1, 6):
        rig.step(number)
    assert rig.save.saved == 2 and rig.status["checkpoint_step"] == 4
    rig.agent.finish()
    assert rig.save.saved == 3 and rig.status["state"] == "done" and rig.status["checkpoint_step"] == 5


def test_without_a_checkpoint_folder_a_request_is_answered_with_a_note(tmp_path: Path) -> None:
    clock = Clock()
    settings = AgentSettings(run_dir=tmp_path)
    agent = Agent(settings, Plan(), monotonic=clock, sleep=clock.sleep)
    agent.find_checkpoint(None)
    agent.start(0)
    (tmp_path / "checkpoint-request").write_text("1")
    assert agent.after_step(1, loss=1.0)
    status = json.loads((tmp_path / "status.json").read_text())
    assert status["checkpoint_requests"] == 0 and "no checkpoint folder" in status["note"]


@pytest.mark.parametrize("text", ["", "one", "-1"])
def test_a_request_file_being_written_is_no_request(rig: Rig, text: str) -> None:
    rig.start()
    (rig.run_dir / "checkpoint-request").write_text(text)
    assert rig.step(1) and rig.save.saved == 0


class TwoRanks(OneProcess):
    """Rank 0 of two; the other one answers `other` to each question."""

    world = 2

    def __init__(self, other: Callable[[], Sequence[int]]) -> None:
        self._other = other

    def maximum(self, values: Sequence[int]) -> list[int]:
        other = list(self._other()) + [0] * len(values)
        return [max(pair) for pair in zip(values, other, strict=False)]


def test_a_request_that_only_another_rank_knows_of_is_served(tmp_path: Path) -> None:
    rig = Rig(tmp_path, hold_s=0.0)
    other = [0]
    rig.agent.ranks = TwoRanks(lambda: other[:1])
    rig.start()
    rig.step(1)
    other[0] = 3
    rig.agent.checkpoints.ranks = OneProcess()  # type: ignore[union-attr]
    rig.step(2)
    assert rig.status["checkpoint_requests"] == 3 and rig.save.saved == 1


def test_sigterm_that_only_another_rank_got_stops_this_one(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    rig.start()
    rig.agent.ranks = TwoRanks(lambda: [0, 1])
    assert not rig.step(1)
    assert rig.save.saved == 1


def test_failure_is_left_in_the_status(rig: Rig, capsys: pytest.CaptureFixture[str]) -> None:
    rig.start()
    with pytest.raises(ZeroDivisionError), rig.agent.watching():
        _ = 1 / 0
    assert rig.status["state"] == "failed" and "division by zero" in rig.status["note"]
    with pytest.raises(SystemExit) as end, rig.agent.watching():
        raise UsageError("here", "wrong", "this is right")
    assert end.value.code == 2
    assert capsys.readouterr().err.splitlines() == ["synergy: here: wrong; this is right"]


def test_lost_peers_while_stopping_are_no_traceback(rig: Rig) -> None:
    rig.start()
    rig.agent._on_term(15, None)
    with pytest.raises(SystemExit), rig.agent.watching():
        raise RuntimeError("Connection closed by peer")
    assert "stopped by SIGTERM" in rig.status["note"]


def test_settings_from_the_environment(tmp_path: Path) -> None:
    settings = AgentSettings.from_environment(
        {
            "SYNERGY_RUN_DIR": str(tmp_path),
            "SYNERGY_PLAN_JSON": '{"tp": 2, "dp": 2, "global_batch": 8}',
            "SYNERGY_RESTARTS": "3",
            "SYNERGY_HOLD_S": "1.5",
            "WORLD_SIZE": "4",
            "RANK": "1",
        }
    )
    assert settings.plan == Plan(tp=2, dp=2, global_batch=8)
    assert (settings.restarts, settings.hold_s, settings.rank, settings.world) == (3, 1.5, 1, 4)
    assert settings.step_log == tmp_path.parent / "steps.jsonl"
    assert AgentSettings.from_environment({}).plan is None


@pytest.mark.parametrize(
    ("environment", "said"),
    [
        ({"SYNERGY_RUN_DIR": "/nowhere/here"}, "is not a folder"),
        ({"SYNERGY_HOLD_S": "soon"}, "is not a number"),
        ({"SYNERGY_RESTARTS": "-1"}, "is not a number of 0 or more"),
        ({"SYNERGY_HOLD_S": "nan"}, "is not a number"),
        ({"SYNERGY_PLAN_JSON": "{"}, "not JSON"),
        ({"SYNERGY_PLAN_JSON": "[1]"}, "not an object"),
        ({"SYNERGY_PLAN_JSON": '{"gpus": 2}'}, "unknown field gpus"),
        ({"SYNERGY_PLAN_JSON": '{"tp": 0}'}, "tp=0 can't be used"),
        ({"SYNERGY_PLAN_JSON": '{"tp": true}'}, "tp=True can't be used"),
        ({"SYNERGY_PLAN_JSON": '{"tp": 2}'}, "needs 2 processes, there are 1"),
        ({"SYNERGY_PLAN_JSON": '{"micro_batch": 2}'}, "can't be cut into micro-batches"),
    ],
)
def test_wrong_settings_are_one_clear_line(environment: dict[str, str], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        AgentSettings.from_environment(environment)


def test_plan_must_fit() -> None:
    assert parse_plan('{"pp": 2, "global_batch": 4}', 2).pp == 2
    with pytest.raises(UsageError, match="multiple of dp"):
        check_plan(Plan(dp=2, global_batch=3), 2)


def test_a_plan_without_a_shared_optimizer_can_be_run() -> None:
    assert parse_plan('{"dp": 2, "global_batch": 2, "zero_stage": 0}', 2).zero_stage == 0
    with pytest.raises(UsageError, match="zero_stage=-1"):
        parse_plan('{"zero_stage": -1}', 1)


def test_a_script_refuses_degrees_that_it_cannot_take() -> None:
    plan = Plan(tp=2, pp=2, dp=2, global_batch=2)
    assert check_degrees(plan, ("tp", "pp")) is plan
    with pytest.raises(UsageError, match=r"cp=2 was given to a script that can't .* can change tp, pp, dp only"):
        check_degrees(replace(plan, cp=2), ("tp", "pp"))
    with pytest.raises(UsageError, match="vpp=2"):
        check_degrees(replace(plan, vpp=2), ("tp", "pp"))
    with pytest.raises(UsageError, match=r"tp=2 .* can change dp only"):
        check_degrees(plan, ())


def test_step_timer_takes_the_median_of_the_recent() -> None:
    timer = StepTimer(window=3)
    assert timer.median_s is None
    for seconds in (50.0, 40.0, 9.0, 1.0, 2.0, 30.0):
        timer.add(seconds)
    assert timer.median_s == 2.0


def test_the_agent_needs_neither_torch_nor_the_server() -> None:
    code = "import sys, launch, synergy_launch.agent.agent; print([m for m in sys.modules if m in ('torch', 'numpy', 'sqlalchemy')])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.strip() == "[]"


# -- batch and checkpoint interval ------------------------------------------------------------------------------------


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


def test_without_an_interval_checkpoints_come_as_often_as_loses_least(rig: Rig) -> None:
    rig.start(checkpoint_interval=None)
    number = 0
    while rig.save.saved == 0:
        number += 1
        rig.step(number, 10.0)
    assert number == 30  # five minutes, to learn what one takes

    real = rig.save.__call__

    def slow(folder: Path) -> Mapping[str, Any]:
        rig.clock.now += 20.0
        return real(folder)

    rig.agent._save = slow
    rig.request(1)
    rig.step(number + 1, 1.0)
    assert ": one takes 20 s, a failure is expected every" in rig.status["note"]
    chosen = rig.agent._cadence.every
    assert chosen is not None and chosen.save_s == 20.0
    assert not rig.agent._due()
    rig.clock.now += chosen.every_s
    assert rig.agent._due()


def test_failures_are_counted_from_checkpoints_that_nobody_asked_for(tmp_path: Path) -> None:
    def incarnation(number: int) -> Rig:
        rig = Rig(tmp_path)
        found = rig.agent.find_checkpoint(None)
        rig.agent.start(found.checkpoint.step if found.checkpoint else 0, save=rig.save, checkpoint_interval=2)
        for step in range(2 * number + 1, 2 * number + 3):
            rig.step(step, 5.0)
        return rig

    for number in range(3):
        killed = incarnation(number)
    assert killed.agent._cadence.history(True)["failures"] == 2
    assert killed.agent._cadence.history(True)["run_s"] == pytest.approx(30.0)
    killed.agent._checkpoint(6)  # there already
    killed.step(7)
    killed.request(1)
    killed.step(8)
    following = incarnation(4)
    assert following.agent._cadence.history(True)["failures"] == 2


def incarnation(folder: Path, until: int, *, ends: str, every: int = 4) -> tuple[int, int]:
    """One life of a run that saves each `every` steps: (failures that it counted, step that it began from)."""
    rig = Rig(folder)
    found = rig.agent.find_checkpoint(None).checkpoint
    first = found.step if found else 0
    failures = rig.agent._cadence.failures
    rig.agent.start(first, save=rig.save, checkpoint_interval=every)
    for step in range(first + 1, until + 1):
        if ends == "SIGTERM" and step == until:
            rig.agent._on_term(signal.SIGTERM, None)
        if not rig.step(step):
            break
    return failures, first


def test_a_clean_end_at_a_step_that_was_just_saved_is_no_failure(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    rig.start(checkpoint_interval=4)
    for step in range(1, 5):
        assert rig.step(step)
    rig.agent._on_term(signal.SIGTERM, None)
    rig.agent._end(4)  # SIGTERM came while the checkpoint of step 4 was written
    assert incarnation(tmp_path, 6, ends="SIGTERM") == (0, 4)
    assert incarnation(tmp_path, 9, ends="SIGKILL") == (0, 6)
    assert incarnation(tmp_path, 9, ends="SIGKILL") == (1, 8)


def test_two_deaths_from_the_same_checkpoint_are_two_failures(tmp_path: Path) -> None:
    incarnation(tmp_path, 5, ends="SIGKILL")
    assert incarnation(tmp_path, 6, ends="SIGKILL") == (1, 4)
    assert incarnation(tmp_path, 7, ends="SIGKILL") == (2, 4)
    assert incarnation(tmp_path, 7, ends="SIGTERM") == (3, 4)
    assert incarnation(tmp_path, 9, ends="SIGKILL") == (3, 7)
    (tmp_path / "checkpoints" / "synergy-endings.json").write_text("nonsense")
    assert incarnation(tmp_path, 9, ends="SIGKILL") == (4, 8)


def test_a_library_that_saves_by_itself_is_told_to_in_between(rig: Rig) -> None:
    """`look` says that a checkpoint is wanted; it is acknowledged by `act` alone, and what it took is counted."""
    rig.start()
    boundary = rig.agent.look(1, loss=1.0)
    assert not boundary.save and rig.agent.act(boundary)
    rig.request(1)
    rig.clock.now += 1.0
    boundary = rig.agent.look(2, loss=1.0)
    assert boundary.save and rig.save.saved == 0 and rig.status["checkpoint_requests"] == 0
    rig.clock.now += 7.0
    assert rig.agent.act(boundary, 7.0)
    assert rig.save.saved == 1 and rig.status["checkpoint_requests"] == 1
    assert rig.agent._cadence.save_s == pytest.approx(7.0)
    rig.agent._stop = True
    boundary = rig.agent.look(3, loss=1.0)
    assert boundary.stop and boundary.save and not rig.agent.act(boundary)
    assert rig.status["checkpoint_step"] == 3


def test_a_library_is_not_told_to_save_where_the_grace_is_too_short(tmp_path: Path) -> None:
    rig = Rig(tmp_path, grace_s=5.0)
    rig.start()
    rig.agent._cadence.save_s = 4.5
    rig.agent._stop = True
    boundary = rig.agent.look(1, loss=1.0)
    assert boundary.stop and not boundary.save and not rig.agent.act(boundary)
    assert rig.save.saved == 0
