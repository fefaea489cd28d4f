"""The link arbiter's port over real sockets: the protocol, whose turn it is, who may speak."""

from __future__ import annotations

import contextlib
import errno
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from synergy_core.errors import UsageError
from synergy_core.wire import link_protocol
from synergy_core.wire.link_protocol import Hello, MessageEnded, Question, encode_hello, read_hello, read_question
from synergy_core.wire.munge import Credential
from synergy_launch.links import link_gate
from synergy_launch.links.link_gate import LinkGate

from synergyd.daemon.links import arbiter as link_arbiter
from synergyd.daemon.links import sessions
from synergyd.daemon.links.arbiter import LinkArbiter, listen
from synergyd.links.arbiter import ArbiterTerms
from tests.unit.daemon.links.link_arbiter_world import (
    BOUND_S,
    MB,
    MEMBERS,
    InBackground,
    decode,
    encode,
    line_of,
    member,
    raw,
    until,
)

# -- protocol ----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(
    st.builds(
        Hello,
        st.integers(1, 2**32),
        st.integers(0, 10**6),
        st.lists(st.from_regex(r"[a-z0-9][a-z0-9_.\-]{0,20}", fullmatch=True), min_size=1, max_size=5).map(tuple),
        st.integers(0, 4095),
        st.sampled_from(["", "0f" * 8]),
    ),
    st.integers(0, 10**17),
    st.floats(0, 1e9),
    st.floats(0, 86_400),
)
def test_round_trip(hello: Hello, number: int, size: float, seconds: float) -> None:
    assert read_hello(encode_hello(hello)) == hello
    found = read_question(link_protocol.ask_line(Question(number, size, seconds)).rstrip(b"\n"))
    assert isinstance(found, Question) and found.number == number
    assert found.size_mb == pytest.approx(size, abs=1e-6) and found.exposed_s == pytest.approx(seconds, abs=1e-6)
    assert read_question(link_protocol.done_line(number).rstrip(b"\n")) == MessageEnded(number)
    assert link_protocol.read_answer(link_protocol.answer_line("wait", number)) == ("wait", number)
    words = link_protocol.welcome_text(hello, seconds)
    assert link_protocol.read_welcome_bound(words, hello) == pytest.approx(seconds, abs=1e-6)
    assert link_protocol.read_welcome_bound(words, replace(hello, nonce="0" + hello.nonce)) is None
    assert link_protocol.read_welcome(link_protocol.welcome_line("MUNGE:x:")) == "MUNGE:x:"


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=60) | st.from_regex(rb"(ask|done|go) [0-9a-f. \-]{0,40}", fullmatch=True))
def test_no_line_does_worse_than_a_usage_error(line: bytes) -> None:
    with contextlib.suppress(UsageError):
        found = read_question(line)
        assert isinstance(found, MessageEnded) or (0 <= found.size_mb <= 1e9 and 0 <= found.exposed_s <= 86_400)
    with contextlib.suppress(UsageError):
        read_hello(line)
    link_protocol.read_answer(line)
    link_protocol.read_welcome(line)
    assert link_protocol.read_welcome_bound(line, Hello(1, 0, ("a",))) is None


@pytest.mark.parametrize(
    ("payload", "problem"),
    [
        (b"{", "hello: is no JSON"),
        (b"[]", "hello: is a list; expected a Hello"),
        (b'{"nodes": ["a b"], "job_id": 1, "restarts": 0}', "nodes is no list"),
        (b'{"nodes": [], "job_id": 1, "restarts": 0}', "nodes is no list"),
        (b'{"nodes": ["a"], "job_id": true, "restarts": 0}', "job_id is True; expected a whole number"),
        (b'{"nodes": ["a"], "job_id": 1}', "restarts is missing"),
        (
            b'{"nodes": ["a"], "job_id": 1, "restarts": 0, "channel": -1}',
            "channel is -1; expected a whole number from 0 to 4095",
        ),
        (b'{"nodes": ["a"], "job_id": 1, "restarts": 0, "nonce": "x y"}', "nonce is no hexadecimal number"),
    ],
)
def test_a_wrong_hello_is_one_line(payload: bytes, problem: str) -> None:
    with pytest.raises(UsageError, match=problem):
        read_hello(payload)


# -- grants ------------------------------------------------------------------------------------------------------------


def test_without_a_message_on_its_links_it_goes_at_once(gates: Callable[..., LinkGate], arbiter: LinkArbiter) -> None:
    gate, neighbour = gates(1), gates(2)
    assert gate.wait_for_connection(30) and neighbour.wait_for_connection(30)
    for _ in range(30):
        assert gate.begin(10 * MB) < link_gate.ANSWER_S
        gate.end()
    assert (gate.counts.asked, gate.counts.waited, gate.counts.failures) == (30, 0, 0)
    assert until(lambda: arbiter.counts.asked == 30) and arbiter.counts.waited == 0


def test_the_second_on_a_link_waits_for_the_first(gates: Callable[..., LinkGate]) -> None:
    first, second, elsewhere = gates(1), gates(2), gates(3)
    assert first.wait_for_connection(30) and second.wait_for_connection(30) and elsewhere.wait_for_connection(30)
    first.begin(400 * MB)
    began = time.monotonic()
    waiting = InBackground(second, 400 * MB)
    assert elsewhere.begin(400 * MB) < link_gate.ANSWER_S
    time.sleep(0.1)
    assert waiting.is_alive()
    first.end()
    waiting.join(30)
    assert 0.1 <= waiting.waited_s < BOUND_S and time.monotonic() - began < BOUND_S
    assert second.counts.waited == 1


def test_a_small_message_shares_with_a_large_one(gates: Callable[..., LinkGate]) -> None:
    """ada-srsf: up to b/(2(b+h)) = 0.39 of what is left goes at once."""
    large, small = gates(1), gates(2)
    assert large.wait_for_connection(30) and small.wait_for_connection(30)
    large.begin(5000 * MB)
    assert small.begin(100 * MB) < link_gate.ANSWER_S and small.counts.waited == 0


def test_what_messages_took_counts_and_not_what_they_weigh(arbiter: LinkArbiter) -> None:
    """Equal bytes, but one of them was measured to take a hundredth: it shares, as it would not by its bytes."""
    with raw(arbiter, 1) as large, raw(arbiter, 2) as small:
        large.sendall(b"ask 1 500 4.0\n")
        assert line_of(large) == b"go 1\n"
        small.sendall(b"ask 1 500 0.04\n")
        assert line_of(small) == b"go 1\n"
        small.sendall(b"done 1\nask 2 500 4.0\n")
        assert line_of(small) == b"wait 2\n"


def test_no_wait_is_longer_than_the_bound(gates: Callable[..., LinkGate], arbiter: LinkArbiter) -> None:
    first, second = gates(1), gates(2)
    assert first.wait_for_connection(30) and second.wait_for_connection(30)
    first.begin(4000 * MB)
    assert BOUND_S * 0.9 <= second.begin(4000 * MB) <= BOUND_S + link_gate.ANSWER_S
    assert second.counts.failures == 0 and arbiter.counts.bound == 1


def test_a_dead_client_frees_what_it_held(arbiter: LinkArbiter, gates: Callable[..., LinkGate]) -> None:
    second = gates(2)
    assert second.wait_for_connection(30)
    with raw(arbiter, 1) as first:
        first.sendall(b"ask 1 4000 0\n")
        assert line_of(first) == b"go 1\n"
        waiting = InBackground(second, 4000 * MB)
        assert until(lambda: arbiter.counts.waited == 1)
    waiting.join(30)
    assert waiting.waited_s < BOUND_S * 0.9


def test_who_dies_while_it_waits_is_forgotten(arbiter: LinkArbiter, gates: Callable[..., LinkGate]) -> None:
    first = gates(1)
    assert first.wait_for_connection(30)
    first.begin(4000 * MB)
    with raw(arbiter, 2) as second:
        second.sendall(b"ask 1 4000 0\n")
        assert line_of(second) == b"wait 1\n"
    assert until(lambda: 2 not in arbiter._jobs)
    first.end()
    assert first.begin(4000 * MB) < link_gate.ANSWER_S


def test_groups_of_one_job_do_not_wait_for_each_other_and_the_last_one_frees(
    arbiter: LinkArbiter, gates: Callable[..., LinkGate]
) -> None:
    stages, other = [gates(1, 0), gates(1, 4)], gates(2)
    assert all(g.wait_for_connection(30) for g in (*stages, other))
    assert all(stage.begin(4000 * MB) < link_gate.ANSWER_S for stage in stages)
    waiting = InBackground(other, 4000 * MB)
    assert until(lambda: arbiter.counts.waited == 1)
    stages[0].end()
    time.sleep(0.05)
    assert waiting.is_alive()
    stages[1].end()
    waiting.join(30)
    assert waiting.waited_s < BOUND_S * 0.9
    # and both wait together while the other job sends
    for stage in stages:
        stage._took.clear()  # or their short messages would be let in beside the long one
    waits = [InBackground(stage, 4000 * MB) for stage in stages]
    assert until(lambda: arbiter.counts.waited == 3)
    other.end()
    for wait in waits:
        wait.join(30)
        assert wait.waited_s < BOUND_S * 0.9


# -- who may speak -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sent", "said"),
    [
        (encode(encode_hello(Hello(1, 0, ("a", "b"))), "6"), b"no job 1 is not known as a running job of uid 6\n"),
        (encode(encode_hello(Hello(9, 0, ("a", "b")))), b"no job 9 is not known as a running job of uid 5\n"),
        (encode(encode_hello(Hello(1, 1, ("a", "b")))), b"no job 1 is another incarnation here\n"),
        (encode(encode_hello(Hello(1, 0, ("a", "c")))), b"no job 1 is another incarnation here\n"),
        ("hello", b"no munge: Invalid credential\n"),
        (encode(b"{}"), b"no hello: job_id is missing\n"),
    ],
)
def test_a_job_speaks_for_itself_only(arbiter: LinkArbiter, sent: str, said: bytes) -> None:
    with socket.create_connection(("127.0.0.1", arbiter.port), timeout=30) as wire:
        wire.sendall(sent.encode() + b"\n")
        assert line_of(wire) == said and wire.recv(1) == b""


@pytest.mark.parametrize("line", [b"ask 1\n", b"ask 1 nan 0\n", b"ask 1 1e5 0\n", b"go 1\n", b"\xff\n", b"x" * 300])
def test_nonsense_ends_the_connection(arbiter: LinkArbiter, line: bytes) -> None:
    with raw(arbiter, 1) as wire:
        wire.sendall(line)
        assert line_of(wire).startswith(b"no ") and wire.recv(1) == b""
    assert until(lambda: 1 not in arbiter._jobs)


def test_nothing_is_taken_before_the_welcome(arbiter: LinkArbiter) -> None:
    with socket.create_connection(("127.0.0.1", arbiter.port), timeout=30) as wire:
        wire.sendall(encode(encode_hello(Hello(1, 0, ("a", "b")))).encode() + b"\nask 1 1 0\n")
        assert line_of(wire) == b"no more than a credential\n"


def test_a_job_that_left_or_started_anew_is_let_go(arbiter: LinkArbiter, gates: Callable[..., LinkGate]) -> None:
    with raw(arbiter, 1) as one, raw(arbiter, 2) as two:
        arbiter.follow({1: member("a", "b", restarts=1), 2: member("b", "c", left=7.0)})
        assert line_of(one) == b"no job 1 no longer runs as it did\n"
        two.sendall(b"ask 1 1 0\n")
        assert line_of(two) == b"free 1\n"
        assert arbiter._state.members[2].left_s == 7.0 and 1 not in arbiter._state.members
        arbiter.follow({})
        assert line_of(two).startswith(b"no ")


def test_a_second_connection_of_a_group_takes_the_place_of_the_first(arbiter: LinkArbiter) -> None:
    with raw(arbiter, 1) as old:
        old.sendall(b"ask 1 4000 0\n")
        assert line_of(old) == b"free 1\n"
        with raw(arbiter, 1) as new, raw(arbiter, 2) as other:
            assert line_of(old) == b"no connected anew\n"
            other.sendall(b"ask 1 4000 0\n")
            assert line_of(other) == b"go 1\n"
            new.sendall(b"ask 1 4000 0\n")
            assert line_of(new) == b"wait 1\n"


def test_silent_and_too_many_connections_are_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link_arbiter, "MAX_OPEN", 2)
    monkeypatch.setattr(link_arbiter, "HELLO_S", 2.0)
    arbiter = LinkArbiter(listen("127.0.0.1", 0), decode=decode, encode=encode)
    idle = [socket.create_connection(("127.0.0.1", arbiter.port), timeout=30) for _ in range(3)]
    assert idle[2].recv(1) == b""
    assert [line_of(wire) for wire in idle[:2]] == [b"no no credential in time\n"] * 2
    for wire in idle:
        wire.close()
    arbiter.close()


class Full(socket.socket):
    """A listener for which there is no file descriptor at first."""

    tries, fails = 0, True

    def accept(self) -> Any:
        self.tries += 1
        if self.fails:
            raise OSError(errno.EMFILE, "Too many open files")
        return super().accept()


def test_no_file_descriptor_left_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link_arbiter, "_SWEEP_S", 0.2)
    listener = Full(fileno=listen("127.0.0.1", 0).detach())
    arbiter = LinkArbiter(listener, decode=decode, encode=encode)
    with socket.create_connection(("127.0.0.1", arbiter.port), timeout=30) as wire:
        time.sleep(0.6)
        assert 1 <= listener.tries <= 5  # once a sweep, where it would be as fast as the processor is
        listener.fails = False
        wire.sendall(b"x\n")
        assert line_of(wire) == b"no munge: Invalid credential\n"
    arbiter.close()


def test_strangers_leave_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever has not said who it is keeps a few places only; those who have been welcomed have the others."""
    monkeypatch.setattr(link_arbiter, "MAX_UNKNOWN", 2)
    arbiter = LinkArbiter(listen("127.0.0.1", 0), ArbiterTerms(bound_s=BOUND_S), decode=decode, encode=encode)
    arbiter.follow(MEMBERS)
    with contextlib.ExitStack() as held:
        for job_id in MEMBERS:
            held.enter_context(raw(arbiter, job_id))
        idle = [socket.create_connection(("127.0.0.1", arbiter.port), timeout=30) for _ in range(3)]
        assert idle[0].recv(99) == b"no no credential, and others wait\n"  # who has been silent longest makes room
        assert until(lambda: arbiter.connections == 5) and arbiter.counts.refused == 1
        idle[1].close()
        assert until(lambda: arbiter.connections == 4)
        idle.append(held.enter_context(socket.create_connection(("127.0.0.1", arbiter.port), timeout=30)))
        assert until(lambda: arbiter.connections == 5)
        for wire in idle:
            wire.close()
    arbiter.close()


def test_a_job_is_welcomed_beside_a_thousand_silent_strangers(arbiter: LinkArbiter) -> None:
    with contextlib.ExitStack() as held:
        for number in range(1000):
            wire = held.enter_context(socket.create_connection(("127.0.0.1", arbiter.port), timeout=30))
            wire.sendall(b"M")
            if number % 100 == 0:
                job_id = list(MEMBERS)[number // 100 % len(MEMBERS)]
                with raw(arbiter, job_id) as job:
                    job.sendall(b"ask 1 1.0 0\n")
                    assert line_of(job) == b"free 1\n"
        assert until(lambda: arbiter.counts.refused >= 936)


def test_a_job_has_a_connection_for_each_of_its_gpus_at_most(arbiter: LinkArbiter) -> None:
    job_id, gpus = next((i, m.gpus) for i, m in MEMBERS.items())
    with contextlib.ExitStack() as held:
        for channel in range(gpus):
            held.enter_context(raw(arbiter, job_id, channel=channel))
        more = held.enter_context(raw(arbiter, job_id, welcomed=False, channel=gpus))
        assert b"has a connection for each of its GPUs" in line_of(more)


def test_checks_that_fail_in_any_way_leave_room_for_others(
    arbiter: LinkArbiter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threading, "excepthook", lambda _: None)

    def broken(_credential: str) -> Credential:
        raise MemoryError

    arbiter._decode = broken
    for _ in range(2 * link_arbiter.MAX_CHECKS):
        with socket.create_connection(("127.0.0.1", arbiter.port), timeout=30) as wire:
            wire.sendall(b"x\n")
            assert line_of(wire) == b"no the credential can't be checked\n"
    arbiter._decode = decode
    with raw(arbiter, 1):
        pass


def test_a_fault_in_the_loop_is_told(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    failed = threading.Event()
    arbiter = LinkArbiter(listen("127.0.0.1", 0), decode=decode, encode=encode, on_failure=failed.set)
    assert not failed.wait(0.05)
    arbiter.follow(5)  # type: ignore[arg-type]  # dict(5), in its thread
    assert failed.wait(5) and "ended by a fault" in caplog.text
    # the process ends then; here its sockets are closed
    arbiter._thread.join(5)
    arbiter._selector.close()
    for held in (arbiter._listener, arbiter._wake, arbiter._awake):
        held.close()


def test_a_slow_munge_holds_nobody_up(gates: Callable[..., LinkGate], arbiter: LinkArbiter) -> None:
    gate = gates(1)
    assert gate.wait_for_connection(30)
    release = threading.Event()

    def slow(credential: str) -> Credential:
        release.wait(30)
        return decode(credential)

    arbiter._decode = slow
    with raw(arbiter, 2, welcomed=False) as other:
        assert gate.begin(MB) < link_gate.ANSWER_S
        release.set()
        assert line_of(other).startswith(b"hello")


def test_a_port_in_use_is_one_line(arbiter: LinkArbiter) -> None:
    with pytest.raises(UsageError, match=f"LinkArbiterPort: can't listen on port {arbiter.port}"):
        listen("127.0.0.1", arbiter.port)


def test_one_jobs_flood_holds_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock stands still: what one job may send at once is all that is read of its flood. Others ask as ever."""
    monkeypatch.setattr(sessions, "LINES_AT_ONCE", 500.0)
    terms = ArbiterTerms(bound_s=BOUND_S)
    arbiter = LinkArbiter(listen("127.0.0.1", 0), terms, decode=decode, encode=encode, clock=lambda: 100.0)
    arbiter.follow(MEMBERS)
    with raw(arbiter, 3) as quiet:
        for channel in (0, 1):  # also on a second connection, and on one after the first is over
            with raw(arbiter, 1, channel=channel) as flood, contextlib.suppress(OSError):
                flood.setblocking(False)
                for _ in range(500):
                    flood.send(b"ask 1 1 0\ndone 1\n" * 500)
            for number in range(1, 20):
                quiet.sendall(b"ask %d 1 0\n" % number)
                assert line_of(quiet).split()[1] == b"%d" % number
                quiet.sendall(b"done %d\n" % number)
        assert arbiter.counts.asked <= 250 + 2 * 19
        with raw(arbiter, 2) as other:
            other.sendall(b"ask 1 1 0\n")
            assert line_of(other).endswith(b" 1\n")
    arbiter.close()


def test_a_job_sends_so_many_lines_a_second() -> None:
    bound = sessions.LineBound()
    assert sum(bound.take(0.0) for _ in range(10_000)) == sessions.LINES_AT_ONCE
    assert sum(bound.take(0.1) for _ in range(10_000)) == 0.1 * sessions.LINES_S
    assert sum(bound.take(3600.0) for _ in range(10_000)) == sessions.LINES_AT_ONCE
