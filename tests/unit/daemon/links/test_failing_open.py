"""A job's gate where the arbiter is away, silent, dead or an impostor: it costs little, and training goes on."""

from __future__ import annotations

import contextlib
import itertools
import os
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import replace

import pytest
from synergy_core.wire.link_protocol import Hello, encode_hello, read_hello
from synergy_launch.links import link_gate
from synergy_launch.links.link_gate import LinkGate, from_environment

from synergyd.daemon.links.arbiter import LinkArbiter
from tests.unit.daemon.links.link_arbiter_world import (
    BOUND_S,
    MB,
    MEMBERS,
    InBackground,
    decode,
    encode,
    line_of,
    made_gate,
    until,
    welcome,
)


def test_an_arbiter_that_is_away_costs_nothing() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    gate = made_gate(port, Hello(1, 0, ("a", "b")))
    assert until(lambda: gate.counts.failures > 0)
    began = time.monotonic()
    for _ in range(1000):
        gate.begin(MB)
        gate.end()
    assert time.monotonic() - began < 2.0  # a fraction of what waiting for answers would take
    assert gate.counts.asked == 0 and "refused" in gate.counts.problem
    gate.close()


def test_a_silent_arbiter_is_asked_once_and_then_not_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    """The back-off doubles: 0.1, 0.2, 0.4 ... seconds here."""
    monkeypatch.setattr(link_gate, "FIRST_BACK_OFF_S", 0.1)
    monkeypatch.setattr(link_gate, "ANSWER_S", 0.3)  # so that no pause of a busy machine looks like one
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
        assert gate.wait_for_connection(30)
        waits = []
        end = time.monotonic() + 3.0
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
                hello = replace(read_hello(decode(said.decode().strip()).payload), nonce=nonce)
                said = encode(encode_hello(hello)).encode()
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
        assert until(lambda: gate.counts.failures > 0) and not gate.wait_for_connection(0.05)
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
        while gate.wait_for_connection(3.0):
            waits.append(gate.begin(MB))
        gate.close()
    assert len(waits) == link_gate.MAX_RAN_OUT
    assert all(BOUND_S <= wait <= BOUND_S + link_gate.ANSWER_S + 1.0 for wait in waits)


def test_an_arbiter_that_dies_while_one_waits_lets_it_go(arbiter: LinkArbiter, gates: Callable[..., LinkGate]) -> None:
    first, second = gates(1), gates(2)
    assert first.wait_for_connection(30) and second.wait_for_connection(30)
    first.begin(4000 * MB)
    waiting = InBackground(second, 4000 * MB)
    assert until(lambda: arbiter.counts.waited == 1)
    arbiter.close()
    waiting.join(30)
    assert waiting.waited_s < BOUND_S * 0.9
    for gate in (first, second):
        assert gate.begin(MB) < link_gate.ANSWER_S and gate.begin(MB) == 0.0 and gate.counts.failures == 1


def test_a_gate_finds_an_arbiter_that_comes_back(monkeypatch: pytest.MonkeyPatch, arbiter: LinkArbiter) -> None:
    monkeypatch.setattr(link_gate, "FIRST_BACK_OFF_S", 0.02)
    gate = made_gate(arbiter.port, Hello(1, 0, ("a", "b")))
    assert gate.wait_for_connection(30)
    arbiter.follow({})
    assert until(lambda: not arbiter._jobs)
    gate.begin(MB)
    assert gate.counts.failures == 1
    arbiter.follow(MEMBERS)
    assert gate.wait_for_connection(30) and gate.begin(MB) < link_gate.ANSWER_S
    gate.close()


@pytest.mark.parametrize("text", [b"hello x\n", b"hello 10\n", b"no way\n", b"\n", b""])
def test_what_is_no_arbiter_is_never_asked(text: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        gate = made_gate(listener.getsockname()[1], Hello(1, 0, ("a", "b")))
        wire, _ = listener.accept()
        line_of(wire)
        wire.sendall(text)
        wire.close()
        assert until(lambda: gate.counts.failures == 1) and gate.begin(MB) < 0.5
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
