"""The REST client where the service may run on any of several hosts."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from synergy_core.errors import UnavailableError
from synergy_core.wire import munge

from synergyd.cli.shared.context import Context
from synergyd.cli.shared.rest_client import RestClient


@contextmanager
def service(asked: list[str], *, answers: bool = True) -> Iterator[int]:
    """Its port. One that does not answer hangs up in the middle."""

    class Handler(BaseHTTPRequestHandler):
        def _take(self) -> None:
            asked.append(f"{self.command} {self.path}")
            if not answers:
                self.connection.close()
                return
            body = json.dumps({"ok": True}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_POST = _take

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def nobodys() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


@pytest.fixture(autouse=True)
def _no_munge(monkeypatch: pytest.MonkeyPatch) -> None:
    encode: Callable[[bytes], str] = lambda _payload: "a-credential"  # noqa: E731
    monkeypatch.setattr(munge, "encode", encode)


def test_the_next_host_is_asked_where_one_is_away() -> None:
    asked: list[str] = []
    with service(asked) as port:
        client = RestClient(("127.0.0.1", nobodys()), ("127.0.0.1", port))
        assert client.ask("GET", "/v1/jobs")[1] == {"ok": True}
        assert client.ask("POST", "/v1/jobs/7/pause")[1] == {"ok": True}
    assert asked == ["GET /v1/jobs", "POST /v1/jobs/7/pause"]


def test_a_request_that_was_sent_is_not_sent_to_another_host() -> None:
    first: list[str] = []
    second: list[str] = []
    with service(first, answers=False) as one, service(second) as other:
        client = RestClient(("127.0.0.1", one), ("127.0.0.1", other))
        with pytest.raises(UnavailableError, match=f"127.0.0.1:{one}"):
            client.ask("POST", "/v1/jobs/7/pause")
    assert first == ["POST /v1/jobs/7/pause"] and second == []


def test_all_hosts_are_named_where_none_answers() -> None:
    one, other = nobodys(), nobodys()
    with pytest.raises(UnavailableError, match=f"127.0.0.1:{one}.*127.0.0.1:{other}"):
        RestClient(("127.0.0.1", one), ("127.0.0.1", other)).ask("GET", "/v1/jobs")


def test_the_hosts_are_those_of_slurm_conf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    with service(asked) as port:
        # the second one of 127.0.0.0/8 refuses, where the service listens on 127.0.0.1 alone
        (tmp_path / "slurm.conf").write_text(
            "SlurmctldHost=a(127.0.0.2)\nSlurmctldHost=b(127.0.0.1)\n"
            f"#SYNERGY RestPort={port} ReportPort=0 StateDir={tmp_path}/none\n"
        )
        with Context(tmp_path / "slurm.conf").backend() as backend:
            backend.set_paused(7, True)
    assert asked == ["POST /v1/jobs/7/pause"]


def test_a_name_that_is_no_hosts_is_one_line() -> None:
    with pytest.raises(UnavailableError, match=r"a\.\.b:80"):
        RestClient(("a..b", 80)).ask("GET", "/v1/jobs")
