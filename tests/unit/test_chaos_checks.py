"""The chaos runner's checks, each against a history in which what it looks for has happened; and its schedule."""

from __future__ import annotations

import itertools
import socket
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from typing import Any

import pytest

from tests.throwaway.chaos import schedule
from tests.throwaway.chaos_checks import (
    Epoch,
    JobSeen,
    changed_words,
    longest_gap_s,
    of_job,
    taken_over_s,
    two_leaders,
)
from tests.throwaway.chaos_faults import KINDS
from tests.throwaway.ledger import Line
from tests.throwaway.proxy import Proxy

NOW_S, PARK_S = 1000.0, 60.0
ROW: dict[str, Any] = {
    "name": "train1", "job_state": "RUNNING", "state_reason": "None", "priority": 100, "eligible_time": 900, "restart_cnt": 0,
    "comment": "", "admin_comment": "", "required_nodes": "", "excluded_nodes": "", "features": "", "dependency": "",
    "tres_per_node": "gres:gpu:2", "tasks": 1, "time_limit": None, "nice": None, "requeue": True, "partition": "main",
}  # fmt: skip
START = Line("start", 0, 0, 901.0)
JOB = JobSeen(job_id=1, managed=True, at_sbatch=ROW, last=ROW, here=True, ledger=(START,))
PLAIN = replace(JOB, managed=False)


def row(**changes: Any) -> dict[str, Any]:
    return {**ROW, **changes}


def found(job: JobSeen) -> list[str]:
    return of_job(job, NOW_S, PARK_S)


def test_nothing_is_wrong_with_jobs_that_run_wait_or_have_ended() -> None:
    done = Line("done", 1, 60, 950.0)
    resized = (START, Line("saved", 0, 20, 910.0), Line("end", 0, 20, 911.0), Line("start", 1, 20, 915.0), done)
    ours = row(admin_comment="synergy:1", required_nodes="n1", tres_per_node="gres:gpu:4", eligible_time=1060)
    for job in (
        JOB,
        replace(JOB, ledger=resized, here=False),
        replace(JOB, ledger=resized, last=row(job_state="COMPLETED")),
        replace(JOB, last={**ours, "job_state": "PENDING"}),
        replace(JOB, last=row(job_state="PENDING", priority=0), acts=frozenset({"hold"})),
        replace(JOB, last=row(job_state="CANCELLED"), here=False, acts=frozenset({"cancel"})),
        replace(PLAIN, last=row(time_limit=525600, nodes="n1")),
        replace(PLAIN, last=row(restart_cnt=1, eligible_time=950)),
        replace(PLAIN, last=row(job_state="PENDING", restart_cnt=1, eligible_time=NOW_S + 110)),
    ):
        assert found(job) == []


def test_a_lost_job_is_found() -> None:
    assert found(replace(JOB, here=False)) == ["lost: it left the queue, last seen RUNNING (None)"]
    failed = replace(JOB, last=row(job_state="FAILED", state_reason="NonZeroExitCode"))
    assert found(failed) == ["lost: it left the queue, last seen FAILED (NonZeroExitCode)"]
    assert found(replace(PLAIN, last=row(job_state="CANCELLED"), acts=frozenset({"hold"})))


def test_a_job_that_ran_twice_at_once_is_found() -> None:
    assert found(replace(JOB, ledger=(START, Line("overlap", 1, 0, 905.0)))) == ["two incarnations ran at once"]
    assert found(replace(PLAIN, ledger=(START, Line("overlap", 1, 0, 905.0))))


def test_more_than_an_interval_lost_is_found() -> None:
    saved = tuple(Line("saved", 0, step, 900.0 + step) for step in (20, 40, 60))
    # one that was killed in the middle of its last save goes on from the one before
    assert found(replace(JOB, ledger=(START, *saved, Line("start", 1, 40, 990.0)))) == []
    lost = found(replace(JOB, ledger=(START, *saved, Line("start", 1, 20, 990.0))))
    assert lost == ["restart 1 began at step 20, the last checkpoint was 60"]
    ended = (START, *saved, Line("end", 0, 60, 980.0), Line("start", 1, 40, 990.0))
    assert found(replace(JOB, ledger=ended)) == ["restart 1 began at step 40, the last checkpoint was 60"]


def test_a_held_job_is_found() -> None:
    assert found(replace(JOB, last=row(job_state="PENDING", priority=0, state_reason="JobHeldAdmin"))) == [
        "held: priority 0 (JobHeldAdmin)"
    ]
    away = row(job_state="PENDING", eligible_time=NOW_S + 900)
    assert found(replace(JOB, last=away)) == ["held: it may not start for 900 s"]
    assert "held: a plain job is put off" in found(replace(PLAIN, last={**away, "eligible_time": NOW_S + 30}))


@pytest.mark.parametrize(
    ("name", "value"),
    [("admin_comment", "synergy:1"), ("comment", "x"), ("required_nodes", "n1"), ("tres_per_node", "gres:gpu:4"),
     ("tasks", 2), ("requeue", False), ("time_limit", 60), ("eligible_time", 960)],
)  # fmt: skip
def test_a_plain_job_that_was_written_to_is_found(name: str, value: object) -> None:
    before = row(time_limit=30)
    told = f"written to: {name} was {before[name]!r}, is {value!r}"
    assert found(replace(PLAIN, at_sbatch=before, last={**before, name: value})) == [told]


def test_a_user_s_word_that_was_overwritten_is_found() -> None:
    assert changed_words({"comment": "mine"}, row(comment="mine")) == []
    assert changed_words({"comment": "mine"}, row(comment="")) == ["its user's comment was 'mine', is ''"]
    assert changed_words({"time_limit": 30}, row(time_limit=29)) == []
    for other in (31, None, 0):
        assert changed_words({"time_limit": 30}, row(time_limit=other)) == [f"its user's time_limit was 30, is {other}"]


def epochs(text: str) -> list[Epoch]:
    """`a1 b2 a-3`: a acts at 1 s, b at 2 s, a completes an epoch at 3 s and only looks."""
    return [Epoch(w[0], abs(float(w[1:])), not w[1:].startswith("-")) for w in text.split()]


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("a1 a2 b-2 a3 b-3", ""),
        ("a1 b-1 b5 b6 a-7 b7", ""),  # a was away, and saw that it leads no more
        ("a1 b5 a-6 b-7 a8", ""),  # given back
        ("a1 b5 a9 b10", "two leaders: a completed an epoch 4.0 s after b had begun to act"),
        ("a1 b2 a-3 b4 a5 b6 b-7", "two leaders: b completed an epoch 1.0 s after a had begun to act"),
    ],
)
def test_two_that_act_at_once_are_found(text: str, wrong: str) -> None:
    assert two_leaders(epochs(text), 0.0) == ([wrong] if wrong else [])
    assert two_leaders(epochs(text), 20.0) == []


def test_gaps_and_take_overs() -> None:
    seen = epochs("a1 a2 b-5 b9 b10")
    assert longest_gap_s(seen, 0.0, 11.0) == 7.0  # an epoch that only looked is none
    assert longest_gap_s(seen, 2.5, 20.0) == 10.0  # up to the end, too
    assert taken_over_s(seen, 2.5) == 6.5 and taken_over_s(seen, 10.0) is None


def test_a_seed_is_a_schedule_with_every_kind_in_turn() -> None:
    names = list(KINDS)
    first, again = ([*itertools.islice(schedule(7, names), 60)] for _ in range(2))
    assert first == again != [*itertools.islice(schedule(8, names), 60)]
    drawn = [k for planned in first for k in planned.kinds]
    assert sorted(drawn[: len(names)]) == sorted(names)
    pairs = [p.kinds for p in first if len(p.kinds) == 2]
    assert 10 < len(pairs) < 50 and all(a.split("-")[0] != b.split("-")[0] for a, b in pairs)


# -- the network that can be cut ---------------------------------------------------------------------------------------


@contextmanager
def echo() -> Iterator[int]:
    """A server that sends back what it gets: its port."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            while True:
                try:
                    wire, _ = listener.accept()
                except OSError:
                    return
                with closing(wire):
                    while data := wire.recv(100):
                        wire.sendall(data)

        threading.Thread(target=serve, daemon=True).start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)


def test_a_network_is_open_silent_or_cut() -> None:
    with (
        echo() as port,
        closing(Proxy(port)) as proxy,
        socket.create_connection(("127.0.0.1", proxy.port), timeout=10) as wire,
    ):
        wire.sendall(b"one")
        assert wire.recv(100) == b"one"
        proxy.mode = "silent"
        wire.sendall(b"two")
        wire.settimeout(0.5)
        with pytest.raises(TimeoutError):
            wire.recv(100)
        proxy.mode = "open"
        wire.settimeout(10)
        assert wire.recv(100) == b"two"
        proxy.mode = "cut"
        with pytest.raises(ConnectionError):
            assert not wire.recv(100), "bytes passed"
            raise ConnectionResetError("it was closed in order")


def test_the_hold_of_a_launch_that_has_just_failed_is_none_yet() -> None:
    held_row = {**ROW, "job_state": "PENDING", "priority": 0}
    for held_s, told in ((1.0, False), (30.0, True)):
        assert any("priority 0" in x for x in of_job(replace(JOB, last=held_row, held_s=held_s), 0.0, 60.0)) is told
