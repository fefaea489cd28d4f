"""The client of the REST service, over its Unix socket or its port, in the name of this user by munge."""

from __future__ import annotations

import gzip
import http.client
import json
import os
import socket
import zlib
from pathlib import Path
from typing import Any

from synergy_core.errors import SynergyError, UnavailableError, UsageError, one_line
from synergy_core.wire import munge
from synergy_core.wire.munge import request_digest

MAX_ANSWER_BYTES = 256 * 2**20
ANSWER_S = 40.0  # above the service's longest long poll
START_SERVICE = "ask the cluster's admin to start synergyrestd"
CONNECT_S = 5.0  # to a host beside which there are others


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=ANSWER_S)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(ANSWER_S)
        self.sock.connect(str(self._path))


class RestClient:
    """A client in the name of this user. `addresses`: the service's Unix socket, or (host, port) of each host where it may run.

    The first that can be connected to is asked.
    """

    def __init__(self, *addresses: Path | tuple[str, int]) -> None:
        self._addresses = addresses
        self.where = " ".join(map(_format_address, addresses))

    def ask(
        self, method: str, target: str, value: object = None, *, etag: str = "", match: str = ""
    ) -> tuple[str, Any]:
        """Return (the answer's ETag, its JSON); None for "nothing new since `etag`".

        Raises UsageError for what the service refuses, UnavailableError if it does not answer.
        """
        body = b"" if value is None else json.dumps(value).encode()
        headers = {
            "Authorization": f"Munge {munge.encode(request_digest(method, target, body))}",
            "Accept-Encoding": "gzip",
            **({"Content-Type": "application/json"} if body else {}),
            **({"If-None-Match": etag} if etag else {}),
            **({"If-Match": match} if match else {}),
        }
        connection, where = self._connect()
        try:
            connection.request(method, target, body, headers)
            answer = connection.getresponse()
            read = answer.read(MAX_ANSWER_BYTES + 1)
            if len(read) > MAX_ANSWER_BYTES:
                raise _away(where, "its answer is too long")
            if answer.getheader("Content-Encoding") == "gzip":
                read = gzip.decompress(read)
            problem = json.loads(read) if read else None
        except (OSError, http.client.HTTPException, ValueError, EOFError, zlib.error) as error:
            raise _away(where, one_line(str(error) or type(error).__name__, 200)) from None
        finally:
            connection.close()
        if answer.status >= 400:
            raise _refusal(answer.status, problem if isinstance(problem, dict) else {}, where)
        return answer.getheader("ETag") or "", problem

    def _connect(self) -> tuple[http.client.HTTPConnection, str]:
        """Return a connection and its address for messages. Nothing is sent before: a request to one host is never sent to another."""
        problem = ""
        for address in self._addresses:
            if isinstance(address, Path):
                connection: http.client.HTTPConnection = _UnixConnection(address)
            else:
                connection = http.client.HTTPConnection(
                    *address, timeout=CONNECT_S if len(self._addresses) > 1 else ANSWER_S
                )
            try:
                connection.connect()
            except (OSError, UnicodeError) as error:  # a name that is no host's
                problem = one_line(str(error) or type(error).__name__, 200)
                connection.close()
                continue
            connection.sock.settimeout(ANSWER_S)
            return connection, _format_address(address)
        raise _away(self.where, problem)


def _format_address(address: Path | tuple[str, int]) -> str:
    return str(address) if isinstance(address, Path) else f"{address[0]}:{address[1]}"


def _away(where: str, what: str) -> UnavailableError:
    right = "see: systemctl status synergyrestd" if os.geteuid() == 0 else START_SERVICE
    return UnavailableError(where, f"Synergy's REST service does not answer ({what})", right)


def _refusal(status: int, answer: dict[str, Any], where: str) -> SynergyError:
    words = [str(answer.get(key, "")) for key in ("where", "title", "right")]
    if not words[1]:
        words = [where, f"answered {status}", ""]
    return UnavailableError(*words) if status >= 500 or status in (408, 429) else UsageError(*words)
