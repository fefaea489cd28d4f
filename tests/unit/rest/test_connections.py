"""Connections of the service: silent ones without an account keep nobody out, neither on the port nor on the Unix socket."""

from __future__ import annotations

import http.client
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import uvicorn

from synergyd.rest import server
from synergyd.rest.app import application
from synergyd.rest.connections import ConnectionPool, network_source
from synergyd.store.store import open_store
from tests.unit.rest.test_service import OPEN, FixedRights, NamedIdentity

A_SOURCE = server.CONNECTIONS_A_SOURCE


@dataclass(eq=False)
class FakeConnection:
    waits_for_client: bool = True
    aborted: bool = field(default=False)

    def abort(self) -> None:
        self.aborted = True


@pytest.mark.parametrize(
    ("address", "source"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("nonsense", ""),
    ],
)
def test_a_source_is_an_ipv4_address_or_an_ipv6_network(address: str, source: str) -> None:
    assert network_source(address) == source


def test_the_longest_quiet_of_the_same_source_makes_room() -> None:
    pool, mine = ConnectionPool(10, 3), [FakeConnection() for _ in range(4)]
    other = FakeConnection()
    assert pool.admit(other, "b") and all(pool.admit(c, "a") for c in mine[:3])
    pool.touch(mine[0], "a")  # it has asked since
    assert pool.admit(mine[3], "a")
    assert [c.aborted for c in (*mine, other)] == [False, True, False, False, False] and len(pool) == 4
    for each in mine:
        each.waits_for_client = False
    assert not pool.admit(FakeConnection(), "a") and len(pool) == 4  # all are being answered


def test_the_source_with_most_connections_makes_room_for_others() -> None:
    pool = ConnectionPool(6, 5)
    greedy, modest = [FakeConnection() for _ in range(4)], [FakeConnection() for _ in range(2)]
    assert all(pool.admit(c, "modest") for c in modest) and all(pool.admit(c, "greedy") for c in greedy)
    late = FakeConnection()
    assert pool.admit(late, "late")
    assert [c.aborted for c in (*greedy, *modest)] == [True, *[False] * 5]
    pool.discard(greedy[0], "greedy")  # its loss is heard of later
    assert len(pool) == 6
    for each in (*greedy, *modest):
        each.waits_for_client = False
    assert pool.admit(FakeConnection(), "later") and late.aborted  # whatever waits, where the largest does not
    assert all(pool.admit(FakeConnection(waits_for_client=False), 0) for _ in range(9))  # root


@contextmanager
def serving(folder: Path) -> Iterator[tuple[int, Path]]:
    """The service on a port and a Unix socket."""
    path = folder / "rest.sock"
    with ExitStack() as opened:
        store = opened.enter_context(open_store(f"sqlite:///{folder / 's.db'}", create=True))
        sockets = [opened.enter_context(server.unix_socket(path)), opened.enter_context(server.tcp_socket(0))]
        running = uvicorn.Server(server.uvicorn_config(application(store, NamedIdentity(), FixedRights(OPEN))))
        thread = threading.Thread(target=running.run, kwargs={"sockets": sockets})
        thread.start()
        try:
            yield sockets[1].getsockname()[1], path
        finally:
            running.should_exit = True
            thread.join(30)


def ask(wire: socket.socket) -> int:
    """The status of a request on a connection."""
    wire.settimeout(120)
    wire.sendall(b"GET /v1/status HTTP/1.1\r\nHost: x\r\nX-Test-User: ann\r\n\r\n")
    answer = http.client.HTTPResponse(wire)
    answer.begin()
    answer.read()
    return answer.status


def ask_port(port: int, host: str = "127.0.0.1", source: str = "127.0.0.1") -> int:
    with socket.create_connection((host, port), 120, (source, 0)) as wire:
        return ask(wire)


def ask_socket(path: Path) -> int:
    with socket.socket(socket.AF_UNIX) as wire:
        wire.settimeout(120)
        wire.connect(str(path))
        return ask(wire)


@contextmanager
def silence(port: int, count: int, source: str, said: bytes = b"") -> Iterator[list[socket.socket]]:
    """`count` connections from `source` that say nothing, or `said` and nothing more."""
    with ExitStack() as opened:
        held = []
        for _ in range(count):
            wire = opened.enter_context(socket.create_connection(("127.0.0.1", port), 60, (source, 0)))
            if said:
                wire.sendall(said)
            held.append(wire)
        yield held


SAID = {
    "nothing": b"",
    "half a head": b"GET /v1/sta",
    "half a body": b"PUT /v1/jobs/1/steering HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\nhalf",
}


@pytest.mark.parametrize("said", SAID.values(), ids=SAID.keys())
def test_one_address_shuts_nobody_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: bytes) -> None:
    monkeypatch.setattr(server, "FIRST_REQUEST_S", 300.0)  # they stay
    monkeypatch.setattr("synergyd.rest.app.BODY_S", 300.0)
    with serving(tmp_path) as (port, path), silence(port, A_SOURCE + 5, "127.0.0.1", said):
        assert ask_port(port) == 200  # of the same address
        assert ask_port(port, source="127.0.0.2") == 200
        if socket.has_dualstack_ipv6():
            assert ask_port(port, "::1", "::1") == 200
        assert ask_socket(path) == 200


@pytest.mark.slow
def test_many_addresses_shut_nobody_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "FIRST_REQUEST_S", 300.0)
    monkeypatch.setattr(server, "CONNECTION_S", 300.0)
    hosts = -(-server.MAX_CONNECTIONS // A_SOURCE) + 1
    with serving(tmp_path) as (port, path), ExitStack() as held:
        for host in range(hosts):
            held.enter_context(silence(port, A_SOURCE, f"127.0.1.{host + 1}"))
        assert hosts * A_SOURCE > server.MAX_CONNECTIONS
        assert ask_port(port) == 200
        assert ask_port(port, source="127.0.1.1") == 200
        assert ask_socket(path) == 200


def test_a_request_in_the_works_is_not_closed_for_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "CONNECTIONS_A_SOURCE", 3)
    with serving(tmp_path) as (port, _), socket.create_connection(("127.0.0.1", port), 60) as wire:
        wire.sendall(b"GET /v1/status HTTP/1.1\r\nHost: x\r\nX-Test-User: ann\r\n\r\n")
        first = http.client.HTTPResponse(wire)
        first.begin()
        first.read()
        etag = first.getheader("etag") or ""
        wait = f"GET /v1/status?wait=3 HTTP/1.1\r\nHost: x\r\nX-Test-User: ann\r\nIf-None-Match: {etag}\r\n\r\n"
        wire.sendall(wait.encode())
        time.sleep(1.0)  # it is in the works
        with silence(port, 9, "127.0.0.1"):
            second = http.client.HTTPResponse(wire)
            second.begin()
            assert second.status == 304
