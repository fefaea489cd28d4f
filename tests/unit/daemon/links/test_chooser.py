"""What the arbiter has seen of each job, and the thread that chooses by it."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Mapping
from dataclasses import replace
from itertools import count

import pytest
from synergy_core.wire.link_protocol import FREE_S, Hello

from synergyd.daemon.links import chooser as link_chooser
from synergyd.daemon.links.arbiter import LinkArbiter, Member, listen
from synergyd.daemon.links.chooser import SHARE, ChoiceTimer, JobObservations, LinkChooser
from synergyd.links.arbiter import ArbiterState, ArbiterTerms, JobLeft, SendAsked, SendDone, make_terms
from synergyd.links.disciplines import Discipline, Srsf
from tests.unit.daemon.links.link_arbiter_world import decode, encode, made_gate, until


def test_what_is_seen_of_a_job() -> None:
    seen = JobObservations()
    seen.note(SendAsked(1, 20.0), 0.0)
    assert seen.senders(0.0) == {}  # its compute is not known yet
    for n, compute_s in enumerate((0.3, 0.3, 9.0)):  # the last step waited for a checkpoint
        seen.note(SendDone(1), float(n) + 0.5)
        seen.note(SendAsked(1, 20.0), float(n) + 0.5 + compute_s)
    (sender,) = seen.senders(20.0).values()
    assert sender.compute_s == pytest.approx(0.3) and sender.message_mb == 20.0
    seen.note(SendDone(1), 20.0)
    assert seen.senders(20.1)[1].due_s == pytest.approx(20.3)
    assert seen.senders(25.0)[1].due_s == 25.0
    # it takes a checkpoint, or has ended and not left
    assert seen.idle_jobs([1], 21.0) == set() and seen.idle_jobs([1], 23.0) == {1}
    seen.note(JobLeft(1), 26.0)
    assert seen.senders(26.0)[1].compute_s == pytest.approx(0.3)  # it may have lost its connection alone
    seen.note(SendAsked(1, 20.0), 90.0)
    assert len(seen.jobs[1].compute_s) == 3  # the time between is no step
    seen.forget(1)
    assert seen.senders(26.0) == {}


def test_others_do_not_wait_for_long_for_a_job_that_shows_nothing_of_itself() -> None:
    """Until a group is seen its jobs take turns: one that has joined and loads its data must not keep the others at that."""
    seen = JobObservations()
    assert seen.idle_jobs([1], 0.0) == {1}
    seen.note(SendAsked(1, 20.0), 0.0)
    assert seen.idle_jobs([1], 100.0) == set()  # it waits, or sends
    seen.note(SendDone(1), 100.0)
    assert seen.idle_jobs([1], 109.0) == set() and seen.idle_jobs([1], 111.0) == {1}


def test_what_a_job_does_while_it_need_not_ask_is_not_counted() -> None:
    seen = JobObservations()
    for at_s in (0.0, 1.0):
        seen.note(SendAsked(1, 20.0), at_s)
        seen.note(SendDone(1), at_s + 0.5)
    seen.note(SendAsked(1, 20.0), 2.0)
    assert not seen.can_be_dismissed(1, shares=True)  # 2 steps are little
    assert seen.can_be_dismissed(1, shares=False)
    seen.note(SendDone(1), 2.5)
    seen.note(SendAsked(1, 20.0), 14.0)
    assert list(seen.jobs[1].compute_s) == [0.5, 0.5]


def test_a_job_that_shares_no_link_is_asked_to_ask_less(monkeypatch: pytest.MonkeyPatch) -> None:
    members = {1: Member(5, 0, ("a", "b"), 2, 1.0), 2: Member(5, 0, ("c", "d"), 2, 1.0)}
    arbiter = LinkArbiter(listen("127.0.0.1", 0), make_terms("srsf-1"), decode=decode, encode=encode)
    arbiter.follow(members)  # before the gate asks: who is not known is refused
    now = [0.0]
    gate = made_gate(arbiter.port, Hello(1, 0, ("a", "b")), monotonic=lambda: now[0])
    try:
        assert gate.wait_for_connection(30)
        for _ in range(5):
            gate.begin(1000)
            gate.end()
        assert gate.counts.asked == 1 and not gate.counts.failures
        now[0] = FREE_S + 1
        gate.begin(1000)
        gate.end()
        assert gate.counts.asked == 2
    finally:
        gate.close()
        arbiter.close()


def test_the_arbiter_chooses_by_what_it_has_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link_chooser, "FIRST_S", 0.02)
    members = {n: Member(5, 0, ("a", "b"), 2, math.inf) for n in (1, 2)}
    arbiter = LinkArbiter(listen("127.0.0.1", 0), make_terms("look-ahead"), decode=decode, encode=encode)
    gates = [made_gate(arbiter.port, Hello(n, 0, ("a", "b"))) for n in members]
    try:
        arbiter.follow(members)
        assert all(gate.wait_for_connection(30) for gate in gates)

        def step_and_look() -> bool:
            for gate in gates:
                gate.begin(10_000_000)
                time.sleep(0.005)
                gate.end()
            return set(arbiter.terms.disciplines) == {1, 2}

        assert until(step_and_look)
        arbiter.follow({1: members[1]})
        assert until(lambda: not arbiter.terms.disciplines)
    finally:
        for gate in gates:
            gate.close()
        arbiter.close()


def test_a_fault_ends_the_choosing_alone(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """What was chosen last would otherwise hold for ever."""
    monkeypatch.setattr(link_chooser, "FIRST_S", 0.001)

    def broken(*_: object, **__: object) -> Mapping[int, Discipline]:
        raise ZeroDivisionError

    monkeypatch.setattr(link_chooser, "chosen_disciplines", broken)
    terms = replace(make_terms("look-ahead"), disciplines={1: Discipline(Srsf(10_000))})
    put: list[Mapping[int, Discipline]] = []
    with caplog.at_level(logging.ERROR):
        made = LinkChooser(lambda: (ArbiterState(), terms), JobObservations(), put.append, lambda: 1.0)
        assert until(lambda: bool(put) and "nobody waits" in caplog.text)
    made.close()
    assert put == [{}]


def test_changes_do_not_make_it_take_more_of_a_core() -> None:
    timer = ChoiceTimer()
    timer.note_choice(10.0, spent_s=2.0, same=False)
    timer.choose_soon()
    assert not timer.is_due(10.0 + 2.0 / SHARE - 0.1) and timer.is_due(10.0 + 2.0 / SHARE)
    timer.note_choice(100.0, spent_s=0.0, same=True)
    assert not timer.is_due(101.0)
    timer.choose_soon()
    assert timer.is_due(101.0)


def test_remaining_times_that_change_are_no_reason_to_choose_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link_chooser, "FIRST_S", 0.001)
    looks, choices, now = [0], [0], count()

    def look() -> tuple[ArbiterState, ArbiterTerms]:
        looks[0] += 1
        return ArbiterState(links={1: ("a", "b")}), make_terms("look-ahead")

    def choose(*_: object, **__: object) -> list[dict[int, Discipline]]:
        choices[0] += 1
        return []

    monkeypatch.setattr(link_chooser, "chosen_disciplines", choose)
    made = LinkChooser(look, JobObservations(), lambda _: None, lambda: float(next(now)))
    assert until(lambda: looks[0] > 300)
    made.close()
    assert 1 <= choices[0] < 60
