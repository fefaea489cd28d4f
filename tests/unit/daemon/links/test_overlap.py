"""The look-ahead where compute goes on while gradients are on their way: the jobs of tests/benchmarks/shaped_links.py in virtual time."""

from __future__ import annotations

import logging
import statistics
from dataclasses import replace

import pytest
from synergy_core.wire.link_protocol import Question

from synergyd.daemon.links import chooser
from synergyd.daemon.links.chooser import JobObservations
from synergyd.links.arbiter import ArbiterState, JobJoined, link_share, make_terms, step
from synergyd.links.model import Topology, make_link
from tests.benchmarks.shaped_links import CASES, PAIRS
from tests.unit.daemon.links.overlapped_jobs import Played

TOPOLOGY = Topology(nic=make_link("10gbe@41.92+0"))


def ratio(case: str, rule: str, times: int = 1) -> float:
    """Mean finish time over that with nobody gated; of so many times the case's steps."""
    loads = [replace(load, steps=load.steps * times) for load in CASES[case]]
    gated, open_ = (statistics.fmean(Played(loads, PAIRS, name, TOPOLOGY).run()) for name in (rule, "none"))
    return gated / open_


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("times", [1, 3])
def test_no_job_ends_later_for_the_look_ahead(case: str, times: int) -> None:
    assert ratio(case, "look-ahead", times) < 1.002


def test_a_fixed_rule_keeps_overlapped_messages_apart() -> None:
    assert ratio("medium+overlap", "srsf-1") > 1.1
    assert ratio("mixed+overlap", "srsf-1", 3) > 1.3


@pytest.mark.parametrize(("case", "most"), [("medium", 0.91), ("large", 0.95), ("medium+overlap", 0.99)])
def test_what_turns_bring(case: str, most: float) -> None:
    """After the steps that are left alone, and those in which turns are tried."""
    assert ratio(case, "look-ahead", 3) < most


def test_where_the_forecast_is_wrong_the_guard_ends_the_turns(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A forecast that takes each message for bytes alone."""
    monkeypatch.setattr(chooser, "link_share", lambda *_: 1.0)
    loads = [replace(load, steps=6 * load.steps) for load in CASES["medium+overlap"]]
    with caplog.at_level(logging.WARNING):
        played = Played(loads, PAIRS, "look-ahead", TOPOLOGY)
        played.run()
    assert caplog.text.count("jobs 1, 2, 3, 4, 5 made") == 1 and "not gated for 3600 s" in caplog.text
    turns = [n for n, names in enumerate(played.chosen) if names not in ("", "srsf-10000")]
    assert len(turns) <= 6 and turns[-1] - turns[0] == len(turns) - 1  # once, and not when jobs leave the group


def test_the_share_of_a_link_that_a_message_takes() -> None:
    assert link_share(5.0, 5.0, 2) == 1.0
    assert link_share(5.0, 10.0, 2) == 0.5
    assert link_share(5.0, 10.0, 4) == 0.75  # a ring of four sends 1.5 times its bytes through each node
    assert link_share(5.0, 4.0, 2) == 1.0  # a link that is faster than its figure
    assert link_share(5.0, 0.0, 2) == link_share(0.0, 5.0, 2) == link_share(5.0, 10.0, 1) == 1.0


def test_a_message_is_known_by_its_time_alone() -> None:
    """Where nobody waits, all that a job reports may have shared its links."""
    seen = JobObservations()
    assert seen.least_mb(1, 5.0, 0.0, alone=True) == 5.0  # not measured yet
    assert seen.least_mb(1, 5.0, 9.0, alone=False) == 5.0
    assert seen.least_mb(1, 5.0, 8.0, alone=True) == 5.0  # beside others that were under way when turns began
    assert seen.is_time_unknown([1])
    assert seen.least_mb(1, 5.0, 7.0, alone=True) == 7.0
    assert not seen.is_time_unknown([1]) and seen.is_time_unknown([1, 2])
    assert seen.least_mb(1, 5.0, 9.0, alone=False) == 7.0
    assert seen.least_mb(1, 5.0, 0.0, alone=False) == 7.0  # connected anew
    assert [seen.least_mb(1, 5.0, 9.0, alone=True) for _ in range(20)] == [7.0] * 19 + [9.0]  # it does take longer now
    assert seen.least_mb(1, 6.0, 8.0, alone=False) == 6.0  # another message


def test_a_job_that_tells_no_times_is_not_waited_for() -> None:
    seen = JobObservations()
    assert [(seen.least_mb(1, 5.0, 0.0, alone=True), seen.is_time_unknown([1])) for _ in range(5)] == [
        (5.0, n < 3) for n in range(5)
    ]
    assert seen.least_mb(1, 5.0, 7.0, alone=True) == 7.0 and not seen.is_time_unknown([1])


def test_the_papers_rules_take_a_message_for_bytes_alone() -> None:
    for rule, share, size_mb in (("srsf-1", 1.0, 10.0), ("ada-srsf", 1.0, 10.0), ("look-ahead", 0.5, 10.0)):
        terms = make_terms(rule, TOPOLOGY)
        state, _ = step(ArbiterState(), JobJoined(1, ("a", "b"), 2, 9.0), 0.0, terms)
        seen, asking = JobObservations(), Question(1, 5.0, 10.0 * 0.04192)
        _, asked = (seen.question(1, asking, state, terms) for _ in range(2))
        assert asked.share == pytest.approx(share) and asked.size_mb == pytest.approx(size_mb)
    assert JobObservations().question(2, Question(1, 5.0, 1.0), state, terms).share == 1.0  # it has just gone


def test_a_job_on_trial_is_asked_each_step() -> None:
    seen = JobObservations()
    seen.on_trial = frozenset({1})
    assert not seen.can_be_dismissed(1, shares=False)
    seen.on_trial = frozenset()
    assert seen.can_be_dismissed(1, shares=False)
