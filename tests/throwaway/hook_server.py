"""A webhook's receiver: real HTTP, with or without TLS, that can be told to fail."""

from __future__ import annotations

import json
import ssl
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any


@dataclass
class HookServer:
    """`taken`: (headers, body) of each request that was answered with 204; `status`: what the next ones are answered with."""

    port: int = 0
    status: int = 204
    location: str = ""
    asked: int = 0
    taken: list[tuple[dict[str, str], bytes]] = field(default_factory=list)

    def notices(self) -> list[dict[str, Any]]:
        return [json.loads(body) for _, body in self.taken]


@contextmanager
def hook_server(certificate: Path | None = None) -> Iterator[HookServer]:
    """On a free port of 127.0.0.1. `certificate`: a PEM file with key and certificate, for TLS."""
    state = HookServer()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            state.asked += 1
            if state.status == 204:
                state.taken.append((dict(self.headers), body))
            self.send_response(state.status)
            if state.location:
                self.send_header("Location", state.location)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    if certificate is not None:
        secure = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        secure.load_cert_chain(certificate)
        server.socket = secure.wrap_socket(server.socket, server_side=True)
    state.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield state
    finally:
        server.shutdown()
        server.server_close()


def make_certificate(folder: Path) -> Path:
    """Key and certificate of localhost in one PEM file, by openssl."""
    key, certificate, both = (folder / name for name in ("hook.key", "hook.crt", "hook.pem"))
    words = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    words += ["-addext", "subjectAltName=DNS:localhost", "-keyout", str(key), "-out", str(certificate)]
    subprocess.run(words, check=True, capture_output=True)
    both.write_bytes(key.read_bytes() + certificate.read_bytes())
    return both
