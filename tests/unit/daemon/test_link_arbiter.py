"""The link arbiter's port and a job's gate, over real sockets; munge is replaced by `uid:payload in hex`."""

from __future__ import annotations

import contextlib
import errno
import itertools
import math
import os
import resource
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from synergy_launch.links import link_gate
from synergy_launch.links.link_gate import LinkGate, from_environment

from synergyd.daemon import link_arbiter
from synergyd.daemon.link_arbiter import ArbiterCounts, LinkArbiter, Member, listen
from synergyd.daemon.link_members import left_s, members_of
from synergyd.daemon.link_process import LinkProcess, members_from, members_line
from synergyd.daemon.metrics import PrometheusMetrics
from synergyd.errors import UnavailableError, UsageError
from synergyd.links.arbiter import ArbiterTerms
from synergyd.links.disciplines import discipline_named
from synergyd.records import Job, JobState, Plan, Report, Shape
from synergyd.wire import link_protocol
from synergyd.wire.link_protocol import Asking, Ended, Hello, hello_from, hello_json, question
from synergyd.wire.munge import Credential
from tests.paths import python_path

BOUND_S = 0.3
MB = 1_000_000


def encode(payload: bytes, uid: str = "") -> str:
    return f"{uid or 5}:{payload.hex()}"


def decode(credential: str, _socket: str = "") -> Credential:
    uid, _, text = credential.partition(":")
    try:
        return Credential(bytes.fromhex(text), int(uid), int(uid))
    except ValueError:
        raise UnavailableError("munge", "Invalid credential") from None


def made_gate(port: int, hello: Hello, **changes: Any) -> LinkGate:
    """Whose arbiter is uid 5's."""
    return LinkGate(("127.0.0.1", port), hello, **{"by": 5, "encode": encode, "decode": decode, **changes})


def welcome(credential: bytes, bound_s: float = 0.3, uid: str = "") -> bytes:
    """What the arbiter says to a line with a Hello in it."""
    hello = hello_from(decode(credential.decode().strip()).payload)
    return link_protocol.welcome_line(encode(link_protocol.welcome_words(hello, bound_s), uid))


def member(*nodes: str, restarts: int = 0, left: float = 100.0) -> Member:
    return Member(5, restarts, nodes, 2 * len(nodes), left)


MEMBERS = {1: member("a", "b"), 2: member("b", "c"), 3: member("x", "y")}


@pytest.fixture
def arbiter() -> Iterator[LinkArbiter]:
    terms = ArbiterTerms(discipline_named("ada-srsf"), bound_s=BOUND_S)
    made = LinkArbiter(listen("127.0.0.1", 0), terms, decode=decode, encode=encode)
    made.follow(MEMBERS)
    yield made
    made.close()


@pytest.fixture
def gates(arbiter: LinkArbiter) -> Iterator[Callable[..., LinkGate]]:
    made: list[LinkGate] = []

    def gate(job_id: int, channel: int = 0, **changes: object) -> LinkGate:
        hello = replace(Hello(job_id, 0, MEMBERS[job_id].nodes, channel), **changes)  # type: ignore[arg-type]
        made.append(made_gate(arbiter.port, hello))
        return made[-1]

    yield gate
    for each in made:
        each.close()


class InBackground(threading.Thread):
    """`begin` in a thread; `waited_s` once it has come back."""

    def __init__(self, gate: LinkGate, size_bytes: int) -> None:
        super().__init__(daemon=True)
        self.gate, self.size_bytes, self.waited_s = gate, size_bytes, math.nan
        self.start()

    def run(self) -> None:
        self.waited_s = self.gate.begin(self.size_bytes)


def until(what: Callable[[], bool], timeout_s: float = 5.0) -> bool:
    end = time.monotonic() + timeout_s
    while not what() and time.monotonic() < end:
        time.sleep(0.005)
    return what()


# -- protocol ----------------------------------------------------------------------------------------------------------


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
    assert hello_from(hello_json(hello)) == hello
    found = question(link_protocol.ask_line(Asking(number, size, seconds)).rstrip(b"\n"))
    assert isinstance(found, Asking) and found.number == number
    assert found.size_mb == pytest.approx(size, abs=1e-6) and found.exposed_s == pytest.approx(seconds, abs=1e-6)
    assert question(link_protocol.done_line(number).rstrip(b"\n")) == Ended(number)
    assert link_protocol.answer(link_protocol.answer_line("wait", number)) == ("wait", number)
    words = link_protocol.welcome_words(hello, seconds)
    assert link_protocol.bound_of(words, hello) == pytest.approx(seconds, abs=1e-6)
    assert link_protocol.bound_of(words, replace(hello, nonce="0" + hello.nonce)) is None
    assert link_protocol.welcome_of(link_protocol.welcome_line("MUNGE:x:")) == "MUNGE:x:"


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=60) | st.from_regex(rb"(ask|done|go) [0-9a-f. \-]{0,40}", fullmatch=True))
def test_no_line_does_worse_than_a_usage_error(line: bytes) -> None:
    with contextlib.suppress(UsageError):
        found = question(line)
        assert isinstance(found, Ended) or (0 <= found.size_mb <= 1e9 and 0 <= found.exposed_s <= 86_400)
    with contextlib.suppress(UsageError):
        hello_from(line)
    link_protocol.answer(line)
    link_protocol.welcome_of(line)
    assert link_protocol.bound_of(line, Hello(1, 0, ("a",))) is None


@pytest.mark.parametrize(
    ("payload", "problem"),
    [
        (b"{", "hello: is no JSON"),
        (b"[]", "hello: is no JSON object"),
        (b'{"nodes": ["a b"], "job_id": 1, "restarts": 0}', "nodes is no list"),
        (b'{"nodes": [], "job_id": 1, "restarts": 0}', "nodes is no list"),
        (b'{"nodes": ["a"], "job_id": true, "restarts": 0}', "job_id is no whole number"),
        (b'{"nodes": ["a"], "job_id": 1}', "restarts is no whole number"),
        (b'{"nodes": ["a"], "job_id": 1, "restarts": 0, "channel": -1}', "channel is no whole number"),
        (b'{"nodes": ["a"], "job_id": 1, "restarts": 0, "nonce": "x y"}', "nonce is no hexadecimal number"),
    ],
)
def test_a_wrong_hello_is_one_line(payload: bytes, problem: str) -> None:
    with pytest.raises(UsageError, match=problem):
        hello_from(payload)


# -- grants ------------------------------------------------------------------------------------------------------------


def test_alone_it_goes_at_once(gates: Callable[..., LinkGate], arbiter: LinkArbiter) -> None:
    gate = gates(1)
    assert gate.connected(5)
    for _ in range(30):
        assert gate.begin(10 * MB) < link_gate.ANSWER_S
        gate.end()
    assert (gate.counts.asked, gate.counts.waited, gate.counts.failures) == (30, 0, 0)
    assert until(lambda: arbiter.counts.asked == 30) and arbiter.counts.waited == 0


def test_the_second_on_a_link_waits_for_the_first(gates: Callable[..., LinkGate]) -> None:
    first, second, elsewhere = gates(1), gates(2), gates(3)
    assert first.connected(5) and second.connected(5) and elsewhere.connected(5)
    first.begin(400 * MB)
    began = time.monotonic()
    waiting = InBackground(second, 400 * MB)
    assert elsewhere.begin(400 * MB) < link_gate.ANSWER_S
    time.sleep(0.1)
    assert waiting.is_alive()
    first.end()
    waiting.join(5)
    assert 0.1 <= waiting.waited_s < BOUND_S and time.monotonic() - began < BOUND_S
    assert second.counts.waited == 1


def test_a_small_message_shares_with_a_large_one(gates: Callable[..., LinkGate]) -> None:
    """ada-srsf: up to b/(2(b+h)) = 0.39 of what is left goes at once."""
    large, small = gates(1), gates(2)
    assert large.connected(5) and small.connected(5)
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
    assert first.connected(5) and second.connected(5)
    first.begin(4000 * MB)
    assert BOUND_S * 0.9 <= second.begin(4000 * MB) <= BOUND_S + link_gate.ANSWER_S
    assert second.counts.failures == 0 and arbiter.counts.bound == 1


def test_a_dead_client_frees_what_it_held(arbiter: LinkArbiter, gates: Callable[..., LinkGate]) -> None:
    second = gates(2)
    assert second.connected(5)
    with raw(arbiter, 1) as first:
        first.sendall(b"ask 1 4000 0\n")
        assert line_of(first) == b"go 1\n"
        waiting = InBackground(second, 4000 * MB)
        assert until(lambda: arbiter.counts.waited == 1)
    waiting.join(5)
    assert waiting.waited_s < BOUND_S * 0.9


def test_who_dies_while_it_waits_is_forgotten(arbiter: LinkArbiter, gates: Callable[..., LinkGate]) -> None:
    first = gates(1)
    assert first.connected(5)
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
    assert all(g.connected(5) for g in (*stages, other))
    assert all(stage.begin(4000 * MB) < link_gate.ANSWER_S for stage in stages)
    waiting = InBackground(other, 4000 * MB)
    assert until(lambda: arbiter.counts.waited == 1)
    stages[0].end()
    time.sleep(0.05)
    assert waiting.is_alive()
    stages[1].end()
    waiting.join(5)
    assert waiting.waited_s < BOUND_S * 0.9
    # and both wait together while the other job sends
    for stage in stages:
        stage._took.clear()  # or their short messages would be let in beside the long one
    waits = [InBackground(stage, 4000 * MB) for stage in stages]
    assert until(lambda: arbiter.counts.waited == 3)
    other.end()
    for wait in waits:
        wait.join(5)
        assert wait.waited_s < BOUND_S * 0.9


# -- who may speak -----------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def raw(arbiter: LinkArbiter, job_id: int, welcomed: bool = True, **changes: object) -> Iterator[socket.socket]:
    hello = replace(Hello(job_id, 0, MEMBERS[job_id].nodes), **changes)  # type: ignore[arg-type]
    with socket.create_connection(("127.0.0.1", arbiter.port), timeout=5) as wire:
        said = encode(hello_json(hello)).encode() + b"\n"
        wire.sendall(said)
        if welcomed:
            assert line_of(wire) == welcome(said)
        yield wire


def line_of(wire: socket.socket) -> bytes:
    line = b""
    while not line.endswith(b"\n") and (more := wire.recv(1)):
        line += more
    return line


@pytest.mark.parametrize(
    ("sent", "said"),
    [
        (encode(hello_json(Hello(1, 0, ("a", "b"))), "6"), b"no job 1 is not known as a running job of uid 6\n"),
        (encode(hello_json(Hello(9, 0, ("a", "b")))), b"no job 9 is not known as a running job of uid 5\n"),
        (encode(hello_json(Hello(1, 1, ("a", "b")))), b"no job 1 is another incarnation here\n"),
        (encode(hello_json(Hello(1, 0, ("a", "c")))), b"no job 1 is another incarnation here\n"),
        ("hello", b"no munge: Invalid credential\n"),
        (encode(b"{}"), b"no hello: nodes is no list of node names\n"),
    ],
)
def test_a_job_speaks_for_itself_only(arbiter: LinkArbiter, sent: str, said: bytes) -> None:
    with socket.create_connection(("127.0.0.1", arbiter.port), timeout=5) as wire:
        wire.sendall(sent.encode() + b"\n")
        assert line_of(wire) == said and wire.recv(1) == b""


@pytest.mark.parametrize("line", [b"ask 1\n", b"ask 1 nan 0\n", b"ask 1 1e5 0\n", b"go 1\n", b"\xff\n", b"x" * 300])
def test_nonsense_ends_the_connection(arbiter: LinkArbiter, line: bytes) -> None:
    with raw(arbiter, 1) as wire:
        wire.sendall(line)
        assert line_of(wire).startswith(b"no ") and wire.recv(1) == b""
    assert until(lambda: 1 not in arbiter._jobs)


def test_nothing_is_taken_before_the_welcome(arbiter: LinkArbiter) -> None:
    with socket.create_connection(("127.0.0.1", arbiter.port), timeout=5) as wire:
        wire.sendall(encode(hello_json(Hello(1, 0, ("a", "b")))).encode() + b"\nask 1 1 0\n")
        assert line_of(wire) == b"no more than a credential\n"


def test_a_job_that_left_or_started_anew_is_let_go(arbiter: LinkArbiter, gates: Callable[..., LinkGate]) -> None:
    with raw(arbiter, 1) as one, raw(arbiter, 2) as two:
        arbiter.follow({1: member("a", "b", restarts=1), 2: member("b", "c", left=7.0)})
        assert line_of(one) == b"no job 1 no longer runs as it did\n"
        two.sendall(b"ask 1 1 0\n")
        assert line_of(two) == b"go 1\n"
        assert arbiter._state.members[2].left_s == 7.0 and 1 not in arbiter._state.members
        arbiter.follow({})
        assert line_of(two).startswith(b"no ")


def test_a_second_connection_of_a_group_takes_the_place_of_the_first(arbiter: LinkArbiter) -> None:
    with raw(arbiter, 1) as old:
        old.sendall(b"ask 1 4000 0\n")
        assert line_of(old) == b"go 1\n"
        with raw(arbiter, 1) as new, raw(arbiter, 2) as other:
            assert line_of(old) == b"no connected anew\n"
            other.sendall(b"ask 1 4000 0\n")
            assert line_of(other) == b"go 1\n"
            new.sendall(b"ask 1 4000 0\n")
            assert line_of(new) == b"wait 1\n"


def test_silent_and_too_many_connections_are_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link_arbiter, "MAX_OPEN", 2)
    monkeypatch.setattr(link_arbiter, "HELLO_S", 0.3)
    arbiter = LinkArbiter(listen("127.0.0.1", 0), decode=decode, encode=encode)
    idle = [socket.create_connection(("127.0.0.1", arbiter.port), timeout=5) for _ in range(3)]
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
    with socket.create_connection(("127.0.0.1", arbiter.port), timeout=5) as wire:
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
        idle = [socket.create_connection(("127.0.0.1", arbiter.port), timeout=5) for _ in range(3)]
        assert idle[2].recv(1) == b"" and arbiter.connections == 5
        idle[0].close()
        assert until(lambda: arbiter.connections == 4)
        idle.append(held.enter_context(socket.create_connection(("127.0.0.1", arbiter.port), timeout=5)))
        assert until(lambda: arbiter.connections == 5)
        for wire in idle:
            wire.close()
    arbiter.close()


def test_checks_that_fail_in_any_way_leave_room_for_others(
    arbiter: LinkArbiter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threading, "excepthook", lambda _: None)

    def broken(_credential: str) -> Credential:
        raise MemoryError

    arbiter._decode = broken
    for _ in range(2 * link_arbiter.MAX_CHECKS):
        with socket.create_connection(("127.0.0.1", arbiter.port), timeout=5) as wire:
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


def test_a_slow_munge_holds_nobody_up(gates: Callable[..., LinkGate], arbiter: LinkArbiter) -> None:
    gate = gates(1)
    assert gate.connected(5)
    release = threading.Event()

    def slow(credential: str) -> Credential:
        release.wait(5)
        return decode(credential)

    arbiter._decode = slow
    with raw(arbiter, 2, welcomed=False) as other:
        assert gate.begin(MB) < link_gate.ANSWER_S
        release.set()
        assert line_of(other).startswith(b"hello")


def test_a_port_in_use_is_one_line(arbiter: LinkArbiter) -> None:
    with pytest.raises(UsageError, match=f"LinkArbiterPort: can't listen on port {arbiter.port}"):
        listen("127.0.0.1", arbiter.port)


# -- failing open ------------------------------------------------------------------------------------------------------


def test_an_arbiter_that_is_away_costs_nothing() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    gate = made_gate(port, Hello(1, 0, ("a", "b")))
    assert until(lambda: gate.counts.failures > 0)
    began = time.monotonic()
    for _ in range(1000):
        gate.begin(MB)
        gate.end()
    assert time.monotonic() - began < 0.1
    assert gate.counts.asked == 0 and "refused" in gate.counts.problem
    gate.close()


def test_a_silent_arbiter_is_asked_once_and_then_not_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    """The back-off doubles: 0.1, 0.2, 0.4 ... seconds here."""
    monkeypatch.setattr(link_gate, "FIRST_BACK_OFF_S", 0.1)
    asked_s: list[float] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    wire, _ = listener.accept()
                    wire.sendall(welcome(line_of(wire)))
                    if line_of(wire):
                        asked_s.append(time.monotonic())
                    line_of(wire)  # until the gate hangs up
                    wire.close()

        threading.Thread(target=serve, daemon=True).start()
        gate = made_gate(listener.getsockname()[1], Hello(1, 0, ("a", "b")))
        assert gate.connected(5)
        waits = []
        end = time.monotonic() + 1.5
        while time.monotonic() < end:
            waits.append(gate.begin(MB))
            gate.end()
            time.sleep(0.005)
        gate.close()
    slow = [wait for wait in waits if wait > link_gate.ANSWER_S / 2]
    assert 3 <= len(slow) == len(asked_s) <= 5 and max(slow) < 3 * link_gate.ANSWER_S
    gaps = [after - before for before, after in itertools.pairwise(asked_s)]
    assert gaps[-1] > 1.5 * gaps[0] and gate.counts.problem == "it is slow"


def impostor(listener: socket.socket, uid: str, word: bytes, met: list[bytes], nonce: str = "") -> None:
    """Whoever listens instead: welcomes as `uid`, and answers each question with `word`, or not at all."""
    with contextlib.suppress(OSError):
        while True:
            wire, _ = listener.accept()
            said = line_of(wire)
            if nonce:
                hello = replace(hello_from(decode(said.decode().strip()).payload), nonce=nonce)
                said = encode(hello_json(hello)).encode()
            wire.sendall(welcome(said, 10.0 if uid else BOUND_S, uid))
            while line := line_of(wire):
                met.append(line)
                if word:
                    wire.sendall(word + line.split()[1] + b"\n")
            wire.close()


@pytest.mark.parametrize(("uid", "nonce"), [("6", ""), ("", "0f" * 8)])
def test_an_impostor_on_the_port_is_asked_nothing(uid: str, nonce: str) -> None:
    """Neither one who signs as somebody else nor one who says again what the daemon has said to another connection."""
    met: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=impostor, args=(listener, uid, b"wait ", met, nonce), daemon=True).start()
        gate = made_gate(listener.getsockname()[1], Hello(1, 0, ("a", "b")))
        assert until(lambda: gate.counts.failures > 0) and not gate.connected(0.05)
        assert gate.begin(MB) == 0.0 and met == [] and "not the daemon's" in gate.counts.problem
        gate.close()


def test_who_lets_every_wait_run_out_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """None of them takes longer than the bound, and after a few there are none."""
    monkeypatch.setattr(link_gate, "FIRST_BACK_OFF_S", 0.01)
    monkeypatch.setattr(link_gate, "MAX_BACK_OFF_S", 0.01)
    met: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=impostor, args=(listener, "", b"wait ", met), daemon=True).start()
        gate = made_gate(listener.getsockname()[1], Hello(1, 0, ("a", "b")))
        waits = []
        while gate.connected(0.5):
            waits.append(gate.begin(MB))
        gate.close()
    assert len(waits) == link_gate.MAX_RAN_OUT
    assert all(BOUND_S <= wait <= BOUND_S + link_gate.ANSWER_S + 0.1 for wait in waits)


def test_an_arbiter_that_dies_while_one_waits_lets_it_go(arbiter: LinkArbiter, gates: Callable[..., LinkGate]) -> None:
    first, second = gates(1), gates(2)
    assert first.connected(5) and second.connected(5)
    first.begin(4000 * MB)
    waiting = InBackground(second, 4000 * MB)
    assert until(lambda: arbiter.counts.waited == 1)
    arbiter.close()
    waiting.join(5)
    assert waiting.waited_s < BOUND_S * 0.9
    for gate in (first, second):
        assert gate.begin(MB) < link_gate.ANSWER_S and gate.begin(MB) == 0.0 and gate.counts.failures == 1


def test_a_gate_finds_an_arbiter_that_comes_back(monkeypatch: pytest.MonkeyPatch, arbiter: LinkArbiter) -> None:
    monkeypatch.setattr(link_gate, "FIRST_BACK_OFF_S", 0.02)
    gate = made_gate(arbiter.port, Hello(1, 0, ("a", "b")))
    assert gate.connected(5)
    arbiter.follow({})
    assert until(lambda: not arbiter._jobs)
    gate.begin(MB)
    assert gate.counts.failures == 1
    arbiter.follow(MEMBERS)
    assert gate.connected(5) and gate.begin(MB) < link_gate.ANSWER_S
    gate.close()


@pytest.mark.parametrize("text", [b"hello x\n", b"hello 10\n", b"no way\n", b"\n", b""])
def test_what_is_no_arbiter_is_never_asked(text: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        gate = made_gate(listener.getsockname()[1], Hello(1, 0, ("a", "b")))
        wire, _ = listener.accept()
        line_of(wire)
        wire.sendall(text)
        wire.close()
        assert until(lambda: gate.counts.failures == 1) and gate.begin(MB) < 0.01
        gate.close()


@pytest.mark.parametrize(
    "changes",
    [
        {"SYNERGY_LINK_ARBITER": ""},
        {"SYNERGY_LINK_ARBITER": "nohost"},
        {"SYNERGY_LINK_ARBITER": "h:x"},
        {"SLURM_JOB_ID": "x"},
        {"SLURM_JOB_NODELIST": "n1"},
        {"SLURM_JOB_NODELIST": "n["},
        {"SYNERGY_RESTARTS": "many"},
        {"SYNERGY_LINK_ARBITER_UID": "root"},
    ],
)
def test_an_environment_that_asks_for_no_gate(changes: dict[str, str]) -> None:
    env = {"SYNERGY_LINK_ARBITER": "[::1]:1", "SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n[1-2]"}
    gate = from_environment(env)
    assert gate is not None and gate._hello == Hello(7, 0, ("n1", "n2")) and gate._address == ("::1", 1)
    gate.close()
    told = from_environment({**env, "SYNERGY_LINK_ARBITER_UID": "64030"})
    assert told is not None and told._trusted == {0, os.getuid(), 64030}
    told.close()
    assert from_environment({**env, **changes}) is None


# -- whom it hears -----------------------------------------------------------------------------------------------------


def test_members_are_running_jobs_on_several_nodes() -> None:
    shape = Shape("a100", 2, 4)
    job = Job(7, "j", "u", 5, "gpu", JobState.RUNNING, "", 0.0, 0.0, None, 1, shape, shape, ("a", "b"))
    report = Report(7, 1, 10, step_s=2.0, plan=Plan(dp=8, global_batch=16), done=100.0, total=260.0)
    assert members_of([job], {7: report}) == {7: Member(5, 1, ("a", "b"), 8, 20.0)}
    assert left_s(job, replace(report, restarts=0)) == left_s(job, replace(report, total=None)) == math.inf
    assert left_s(job, None) == math.inf
    alone, waits = replace(job, node_names=("a",)), replace(job, state=JobState.PENDING)
    assert members_of([alone], {}) == members_of([waits], {}) == {}


# -- as a process ------------------------------------------------------------------------------------------------------


def test_members_go_to_the_process_as_they_are() -> None:
    members = {**MEMBERS, 9: member("n1", "n2", left=math.inf)}
    line = members_line(members)
    assert members_from(line) == members and line.count(b"\n") == 1 and members_from(members_line({})) == {}


def test_the_process_answers_ends_with_the_daemon_and_is_started_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("synergyd.daemon.link_process._RESTART_S", 0.2)
    process = LinkProcess("127.0.0.1", 0, "srsf-1", 0.3)
    process.follow(MEMBERS)
    try:
        for _ in range(2):
            with socket.create_connection(("127.0.0.1", process.port), timeout=10) as wire:
                wire.sendall(b"hello\n")
                assert line_of(wire).startswith(b"no munge: ")  # it is there, and knows a credential from none
            child = process.child
            child.kill()
            assert until(lambda child=child: process.child is not child)  # type: ignore[misc]
    finally:
        process.close()
    assert process.child.poll() is not None
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", process.port), timeout=5)


def test_the_process_tells_what_it_counted_and_starts_again_after_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its loop breaks by a line of jobs that is none of ours; the counts go on where they were. It may open many files."""
    monkeypatch.setattr("synergyd.daemon.link_process._RESTART_S", 0.1)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    started: list[float] = []
    start = LinkProcess._start

    def short_of_processes(self: LinkProcess) -> Any:
        started.append(time.monotonic())
        if len(started) == 2:
            raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")
        return start(self)

    monkeypatch.setattr(LinkProcess, "_start", short_of_processes)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 256), hard))
    try:
        process = LinkProcess("127.0.0.1", 0, "srsf-1", 0.3)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    try:
        for number in (1, 2):
            with socket.create_connection(("127.0.0.1", process.port), timeout=10) as wire:
                assert until(lambda: process.counts()[1] == 1)
                wire.sendall(b"hello\n")
                assert line_of(wire).startswith(b"no munge: ")
            assert until(lambda number=number: process.counts() == (ArbiterCounts(refused=number), 0))  # type: ignore[misc]
            child = process.child
            assert resource.prlimit(child.pid, resource.RLIMIT_NOFILE) == (hard, hard) or number == 2
            if number == 1:
                assert child.stdin is not None
                child.stdin.write(b'[[1, 5, 0, ["a"], "x", 0], [1]]\n')
                child.stdin.flush()
                assert until(lambda child=child: process.child is not child)  # type: ignore[misc]
        assert len(started) == 3
    finally:
        process.close()


def test_a_process_whose_loop_ends_by_a_fault_ends(tmp_path: Path) -> None:
    """It would be alive, and deaf."""
    script = tmp_path / "faulty.py"
    script.write_text(
        "import sys\n"
        "from synergyd.daemon import link_arbiter, link_process\n"
        "link_arbiter.LinkArbiter._accept = lambda self: 1 // 0\n"
        "sys.exit(link_process.main(sys.argv[1:]))\n"
    )
    with listen("127.0.0.1", 0) as listener:
        numbers = [listener.fileno(), os.memfd_create("counts")]
        command = [sys.executable, str(script), *map(str, numbers), "srsf-1", "0.3", "10gbe"]
        environment = {**os.environ, "PYTHONPATH": python_path()}
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stderr=subprocess.PIPE, pass_fds=numbers, env=environment
        ) as process:
            with socket.create_connection(listener.getsockname(), timeout=5):
                assert process.wait(20) == 1
            assert process.stderr is not None and b"ended by a fault" in process.stderr.read()
        os.close(numbers[1])


def test_counts_go_to_prometheus() -> None:
    metrics = PrometheusMetrics(0)
    metrics.links(ArbiterCounts(10, 3, 1, 2), 4)
    metrics.links(ArbiterCounts(15, 4, 1, 2), 3)
    said = {s.name: s.value for c in metrics._links.values() for m in c.collect() for s in m.samples}
    shown = {name: value for name, value in said.items() if name.endswith("_total")}
    assert shown == {
        "synergy_link_asks_total": 15,
        "synergy_link_at_once_total": 11,
        "synergy_link_waited_total": 4,
        "synergy_link_timed_out_total": 1,
        "synergy_link_refused_total": 2,
    }
    assert [s.value for m in metrics._connections.collect() for s in m.samples] == [3]


def test_a_process_without_a_daemon_ends() -> None:
    process = LinkProcess("127.0.0.1", 0, "srsf-1", 0.3)
    assert process.child.stdin is not None
    process.child.stdin.close()
    assert process.child.wait(10) == 0
    process.close()


def test_a_rule_that_is_none_is_one_line() -> None:
    with pytest.raises(UsageError, match="no discipline 'fifo'"):
        LinkProcess("127.0.0.1", 0, "fifo", 0.3)
