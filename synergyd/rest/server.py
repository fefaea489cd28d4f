"""The run of the service: a Unix socket and a port, uvicorn on both, connections that end.

Starlette and uvicorn are the smallest pair of well-kept libraries that hold hundreds of long polls in one process. The records and
the codec do already what FastAPI adds (validation, OpenAPI).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import resource
import signal
import socket
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import uvicorn
from starlette.applications import Starlette
from synergy_core.errors import NoSchemaError, UnavailableError, UsageError
from uvicorn.protocols.http.h11_impl import H11Protocol

from synergyd.rest.app import application
from synergyd.rest.connections import ConnectionPool, Source, network_source
from synergyd.rest.identity import Identity
from synergyd.rest.slurm_rights import RightsReader, jwt_key
from synergyd.rest.what_if import WhatIfs
from synergyd.settings import Settings
from synergyd.store.store import Store, open_store

log = logging.getLogger("synergyrestd")
MAX_CONNECTIONS = 4096  # at once: of the port and of the Unix socket
UNIX_CONNECTIONS = 1024  # of them, kept for the Unix socket
CONNECTIONS_A_USER = 64  # over the Unix socket, root excepted
CONNECTIONS_A_SOURCE = 768  # of one address over the port: many users' login node, or a proxy
FIRST_REQUEST_S = 5.0  # a connection whose first request has not begun by then is closed
CONNECTION_S = 120.0  # every connection ends after so long, however slowly its client reads
KEEP_ALIVE_S = 30
MAX_HEADER_BYTES = 32 * 1024
BACKLOG = 512
GRACE_S = 3  # long polls are not waited for at the end


@dataclass(frozen=True)
class ConnectionPools:
    """The connections of one service."""

    unix: ConnectionPool
    port: ConnectionPool


class BoundedConnection(H11Protocol):
    """A connection that a client can hold open neither before its first request nor for ever, nor at the cost of other clients."""

    pools: ClassVar[ConnectionPools]
    source: Source = ""

    @property
    def waits_for_client(self) -> bool:
        """Return whether a request, the rest of one, or the reading of an answer is to come."""
        cycle = self.cycle
        return cycle is None or cycle.response_complete or cycle.more_body or self.flow.write_paused

    @property
    def pool(self) -> ConnectionPool:
        """Return the pool that this connection is or was in."""
        return self.pools.unix if isinstance(self.source, int) else self.pools.port

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.source = find_source(transport.get_extra_info("socket"))
        if not self.pool.admit(self, self.source):
            transport.abort()
            return
        self.loop.call_later(FIRST_REQUEST_S, self._close_silent)
        self.loop.call_later(CONNECTION_S, transport.abort)

    def handle_events(self) -> None:
        cycle = self.cycle
        super().handle_events()
        if self.cycle is not cycle:
            self.pool.touch(self, self.source)

    def on_response_complete(self) -> None:
        self.pool.touch(self, self.source)
        super().on_response_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        self.pool.discard(self, self.source)
        super().connection_lost(exc)

    def abort(self) -> None:
        self.transport.abort()

    def _close_silent(self) -> None:
        if self.cycle is None:
            self.transport.abort()


def bounded_connections(most: int = MAX_CONNECTIONS) -> type[BoundedConnection]:
    """Return the protocol of one service's connections: at most `most` at once."""
    unix = min(UNIX_CONNECTIONS, most // 4)

    class ServiceConnection(BoundedConnection):
        pools = ConnectionPools(
            unix=ConnectionPool(unix, CONNECTIONS_A_USER), port=ConnectionPool(most - unix, CONNECTIONS_A_SOURCE)
        )

    return ServiceConnection


def find_source(wire: socket.socket) -> Source:
    """Return who connects: the uid over a Unix socket, else the source of the address."""
    if wire.family == socket.AF_UNIX:
        size = struct.calcsize("3i")
        _, uid, _ = struct.unpack("3i", wire.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))
        return int(uid)
    try:
        return network_source(wire.getpeername()[0])
    except OSError:  # gone already
        return ""


def run(settings: Settings, conf: Path | None = None) -> int:
    """Serve until SIGTERM or SIGINT.

    `conf`: the slurm.conf of the settings, if one was named. Raises UsageError for a port, socket or key that can't be used.
    """
    rights = RightsReader()
    identity = Identity(jwt_key(rights.config), rights.rights().slurm_user)
    path = settings.rest_socket()
    with _open_store(settings) as store, contextlib.ExitStack() as resources:
        sockets = [resources.enter_context(unix_socket(path))]
        resources.callback(path.unlink, missing_ok=True)
        if settings.rest_port:
            sockets.append(resources.enter_context(tcp_socket(settings.rest_port)))
        app = application(store, identity, rights, WhatIfs(settings, conf))
        config = uvicorn_config(app, raise_file_limit())
        log.info("serves on %s%s", path, f" and port {settings.rest_port}" if settings.rest_port else "")
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(
                number, lambda *_: None
            )  # uvicorn raises what ended it once more, before the socket is removed
        uvicorn.Server(config).run(sockets=sockets)
    return 0


def _open_store(settings: Settings) -> Store:
    """Open the store.

    Raises UnavailableError for a database that the daemon is still to make or the admin to upgrade: systemd tries again.
    """
    try:
        return open_store(settings.database_url())
    except NoSchemaError as error:
        raise UnavailableError(error.where, error.what, error.right) from None


def raise_file_limit() -> int:
    """Raise this process's limit on open files as far as it may, and return how many connections there is room for."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            soft = hard
    return MAX_CONNECTIONS if soft == resource.RLIM_INFINITY else max(8, min(MAX_CONNECTIONS, soft // 2))


def uvicorn_config(app: Starlette, most: int = MAX_CONNECTIONS) -> uvicorn.Config:
    """Return uvicorn's configuration: bounds on connections (`most` at once), headers and waiting.

    Nothing of the caller's is trusted (no proxy headers).
    """
    return uvicorn.Config(
        app,
        http=bounded_connections(most),
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        limit_concurrency=2 * MAX_CONNECTIONS,  # the pools are full long before
        backlog=BACKLOG,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=GRACE_S,
        h11_max_incomplete_event_size=MAX_HEADER_BYTES,
        proxy_headers=False,
    )


def unix_socket(path: Path) -> socket.socket:
    """Return a listening socket that every user of this host may connect to.

    Replace one that nobody listens on any more. Raises UsageError.
    """
    listener = socket.socket(socket.AF_UNIX)
    try:
        if path.is_socket():
            with socket.socket(socket.AF_UNIX) as probe:
                if probe.connect_ex(str(path)) == 0:
                    raise UsageError(str(path), "another synergyrestd serves here", "one a StateDir is enough")
            path.unlink()
        listener.bind(str(path))
        path.chmod(0o666)  # who a caller is, each request says
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise UsageError(str(path), f"can't be listened on: {error.strerror or error}", "check StateDir") from None
    except UsageError:
        listener.close()
        raise
    return listener


def tcp_socket(port: int) -> socket.socket:
    """Return a socket that listens on all addresses, IPv6 if there is any. Raises UsageError."""
    try:
        return socket.create_server(
            ("", port),
            family=socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET,
            dualstack_ipv6=socket.has_dualstack_ipv6(),
            backlog=BACKLOG,
        )
    except OSError as error:
        raise UsageError(f"RestPort {port}", f"can't be listened on: {error.strerror}", "name a free port") from None
