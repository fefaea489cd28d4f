"""Steps that stop, nodes that hold others up, jobs that fall silent."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from synergy_core.job_report import Report
from synergy_core.wire.report import from_json, status_to_report, to_json
from synergy_launch.agent import straggler
from synergy_launch.agent.collectives import OneProcess
from synergy_launch.agent.straggler import WINDOW, Place, Stragglers, slow_places
from synergy_launch.launcher.failures.stall_detector import StallDetector, stall_limit_s

from synergyd.control.state.health import SILENT_S, warnings
from tests.unit.daemon.daemon_world import SCRIPT, Site

TRAINING = {"state": "training", "step": 10, "step_s": 2.0, "checkpoint_requests": 0}


def test_a_stall_is_told_after_ten_steps_and_again_in_strides() -> None:
    stall = StallDetector(0.0)
    told = [stall.check({**TRAINING, "step_s": 12.0}, float(now)) for now in range(0, 500, 10)]
    assert told[:12] == [None] * 12  # up to 110 s
    assert sorted({t for t in told if t is not None}) == [120.0, 150.0, 190.0, 240.0, 300.0, 380.0, 480.0]
    assert stall.check({**TRAINING, "step_s": 12.0, "step": 11}, 500.0) is None


def test_time_in_which_the_launcher_did_not_look_is_no_stall() -> None:
    stall = StallDetector(0.0)
    for now in range(0, 60, 10):
        assert stall.check(TRAINING, float(now)) is None
    assert stall.check(TRAINING, 5050.0) is None  # it was suspended
    assert stall.check(TRAINING, 5055.0) is None
    assert stall.check(TRAINING, 5060.0) == 60.0


@pytest.mark.parametrize(
    ("change", "limit"),
    [
        ({}, 60.0), ({"step_s": 30.0}, 300.0), ({"step_s": None}, 1800.0), ({"step_s": True}, 1800.0),
        ({"state": "checkpointing"}, 3600.0), ({"state": "waiting"}, None), ({"state": "done"}, None),
        ({"state": "starting", "step_s": None}, 1800.0),
    ],
)  # fmt: skip
def test_how_long_a_state_may_last(change: dict[str, Any], limit: float | None) -> None:
    assert stall_limit_s({**TRAINING, **change}) == limit


class World(OneProcess):
    """All ranks' times at once, as rank 0 of several sees them."""

    def __init__(self, nodes: Sequence[str], times: Sequence[float], peers: Sequence[int]) -> None:
        self.world, self.nodes, self.times, self.peers = len(nodes), nodes, times, peers

    def gather(self, value: Any) -> list[Any]:
        return list(zip(self.nodes, self.peers, strict=True))

    def total(self, values: Sequence[float]) -> list[float]:
        return [values[0], *self.times[1:]]


def watched(nodes: Sequence[str], times: Sequence[float], peers: Sequence[int], windows: int = 2) -> Stragglers:
    found = Stragglers(World(nodes, times, peers), 0)
    for _ in range(windows * WINDOW):
        found.add(times[0])
    return found


def test_a_node_that_is_slow_twice_is_named() -> None:
    nodes, times = ["n1", "n1", "n2", "n2", "n3", "n3"], [1.0, 1.02, 1.5, 1.45, 0.99, 1.0]
    assert watched(nodes, times, [0] * 6, 1).slow == {}
    slow = watched(nodes, times, [0] * 6).slow
    assert set(slow) == {"n2"} and 1.4 < slow["n2"] < 1.5
    assert straggler.format_slow_nodes(slow).startswith("slow: n2 takes 1.4")
    assert straggler.format_slow_nodes({}) == ""


def test_stages_with_more_work_are_not_slow_nodes() -> None:
    assert watched(["n1", "n1", "n2", "n2"], [1.0, 1.0, 3.0, 3.0], [0, 0, 1, 1]).slow == {}


@given(times=st.lists(st.floats(0.9, 1.1), min_size=1, max_size=32), each=st.integers(1, 8))
def test_nodes_of_like_speed_are_never_named(times: list[float], each: int) -> None:
    places = [Place(f"n{i // each}", 0) for i in range(len(times))]
    assert slow_places(places, [t if t < 1.07 else 1.0 for t in times]) == {}


def test_one_node_alone_is_not_slow() -> None:
    assert slow_places([Place("n1", 0), Place("n1", 0)], [1.0, 9.0]) == {}


def test_reports_carry_it_and_names_that_are_none_are_left_out() -> None:
    status = {"step": 3, "stalled_s": 70.0, "slow_nodes": ["n1", "a b", "$(x)", 5, "n-2.x"]}
    made = status_to_report(status, 7, 0)
    assert (made.stalled_s, made.slow_nodes) == (70.0, ("n1", "n-2.x"))
    assert from_json(to_json(made)) == made


def test_what_is_said_of_it() -> None:
    said = {w.kind: w.text for w in warnings(Report(1, 0, 120, step_s=1.5, stalled_s=600.0), 0.0, 1e6)}
    assert said == {"stalled": "no step since step 120, for 10 min; a step usually takes 1.5 s: it may hang"}
    said = {w.kind: w.text for w in warnings(Report(1, 0, 5, slow_nodes=("n2",)), 0.0, SILENT_S + 1)}
    assert set(said) == {"slow n2", "silent"} and "5 min" in said["silent"] and "n2" in said["slow n2"]
    assert warnings(Report(1, 0, 5, step_s=100.0), 0.0, 1999.0) == ()


def test_the_daemon_tells_once_and_again_when_it_comes_back(tmp_path: Path) -> None:
    site = Site(tmp_path / "state")
    site.slurm.submit(1, SCRIPT.replace("max_gpus=4", "resize=no"))
    site.slurm.runs(1, "n1")
    site.epoch()
    for stalled in (70.0, 140.0, None, 75.0):
        site.report(1, stalled_s=stalled, slow_nodes=("n1",))
        site.epoch(60)
    story = site.story(1)
    assert story.count("no step since step 10") == 2 and story.count("its other nodes wait for n1") == 1
    for _ in range(3):
        site.epoch(SILENT_S)
    assert site.story(1).count("no report for") == 0  # it was the stall that was told last
