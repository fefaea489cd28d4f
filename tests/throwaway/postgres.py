"""A PostgreSQL server for tests: made in a temporary folder, started in seconds, gone without traces.

    with Postgres() as server:
        url = server.database()     # a fresh, empty database
        server.stop()               # the database is away (like kill -9 of its machine)
        server.start()              # and back, on the same port with the same data

Never touches a PostgreSQL that is installed and in use: own folder, own free port, own user, a password of its own.
"""

from __future__ import annotations

import os
import pwd
import random
import re
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

MISSING = "PostgreSQL's server programs are not installed (Debian: apt-get install postgresql); looked in PATH and {}"
USER = "synergy"


class PostgresMissing(RuntimeError):
    """initdb and postgres are not on this machine."""


def programs(root: Path = Path("/usr/lib/postgresql")) -> Path:
    """The folder that holds initdb and postgres, of the newest version. Raises PostgresMissing with one line."""
    folders = sorted(
        root.glob("*/bin"), key=lambda p: [int(n) for n in re.findall(r"\d+", p.parent.name)], reverse=True
    )
    on_path = shutil.which("initdb")
    for folder in [*folders, *([Path(on_path).resolve().parent] if on_path else [])]:
        if (folder / "initdb").exists() and (folder / "postgres").exists():
            return folder
    raise PostgresMissing(MISSING.format(root))


def _version(folder: Path) -> list[int]:
    return [int(n) for n in re.findall(r"\d+", folder.parent.name)]


def server_user() -> pwd.struct_passwd | None:
    """Whom to run as: PostgreSQL refuses root. None: as we are."""
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        try:
            return pwd.getpwnam(name)
        except KeyError:
            continue
    raise PostgresMissing("run as root, and there is neither a user postgres nor nobody to run PostgreSQL as")


class Postgres:
    """One server; `start` and `stop` it again and again. `close` (or leaving the `with` block) removes it."""

    def __init__(self) -> None:
        self._bin = programs()
        self._user = server_user()
        self._process: subprocess.Popen[bytes] | None = None
        self._made = 0
        self.password = secrets.token_urlsafe(12)
        # /tmp whatever TMPDIR says: a Unix socket's path has room for 107 characters
        self.folder = Path(tempfile.mkdtemp(prefix="synergy-pg-", dir="/tmp"))
        self.port = _free_port()
        try:
            self._initdb()
            self.start()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Postgres:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def log(self) -> Path:
        return self.folder / "log"

    def url(self, database: str = "postgres", *, socket: bool = False) -> str:
        """SQLAlchemy's URL, over TCP on 127.0.0.1 or the Unix socket."""
        if socket:
            return f"postgresql+psycopg://{USER}:{self.password}@/{database}?host={self.folder}&port={self.port}"
        return f"postgresql+psycopg://{USER}:{self.password}@127.0.0.1:{self.port}/{database}"

    def database(self) -> str:
        """Makes a fresh empty database and returns its URL."""
        self._made += 1
        name = f"test_{self._made}"
        self.run(f'CREATE DATABASE "{name}"')
        return self.url(name)

    def run(self, statement: str, database: str = "postgres") -> list[tuple[object, ...]]:
        """Runs one statement as the server's owner, outside a transaction; returns its rows, if it has any."""
        import psycopg

        with psycopg.connect(
            host="127.0.0.1", port=self.port, user=USER, password=self.password, dbname=database, autocommit=True
        ) as connection:
            cursor = connection.execute(statement.encode())
            return list(cursor.fetchall()) if cursor.description else []

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int | None:
        """Of the server, None where it does not run."""
        return self._process.pid if self._process is not None and self.running else None

    def start(self, timeout_s: float = 30.0) -> None:
        """Starts and waits until it answers."""
        if self.running:
            return
        (self.folder / "data" / "postmaster.pid").unlink(missing_ok=True)  # left by `stop`
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [str(self._bin / "postgres"), "-D", str(self.folder / "data")],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.folder,
                start_new_session=True,  # Ctrl-C is for pytest, which then stops the server in order
                **self._identity(),
            )
        end = time.monotonic() + timeout_s
        while time.monotonic() < end and self._process.poll() is None:
            if self._ready():
                return
            time.sleep(0.05)
        raise RuntimeError(f"PostgreSQL did not start: {self._log_tail()}")

    def stop(self, *, clean: bool = False, timeout_s: float = 20.0) -> None:
        """Stops it: at once, as a crash would (open connections break, nothing is tidied up), or in order."""
        if self._process is None:
            return
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGINT if clean else signal.SIGQUIT)
            try:
                self._process.wait(timeout_s)
            except subprocess.TimeoutExpired:
                os.killpg(self._process.pid, signal.SIGKILL)  # its own session: the server and its children alone
                self._process.wait()
        self._process = None

    def close(self) -> None:
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _initdb(self) -> None:
        secret = self.folder / "password"
        secret.write_text(self.password + "\n")
        if self._user is not None:
            os.chown(self.folder, self._user.pw_uid, self._user.pw_gid)
            os.chown(secret, self._user.pw_uid, self._user.pw_gid)
        arguments = [
            f"--username={USER}",
            f"--pwfile={secret}",
            "--auth=scram-sha-256",
            "--encoding=UTF8",
            "--locale=C",
        ]
        done = subprocess.run(
            [str(self._bin / "initdb"), "--pgdata", str(self.folder / "data"), *arguments, "--no-sync"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd=self.folder,
            text=True,
            check=False,
            **self._identity(),
        )
        if done.returncode:
            raise RuntimeError(f"initdb failed: {done.stdout[-2000:]}")
        settings = {
            "listen_addresses": "127.0.0.1",
            "port": self.port,
            "unix_socket_directories": self.folder,
            "fsync": "off",  # the machine will not crash; commits stay synchronous, so that they outlive `stop`
            "full_page_writes": "off",
            "max_connections": 30,
            "shared_buffers": "16MB",
            "logging_collector": "off",
        }
        with (self.folder / "data" / "postgresql.conf").open("a") as conf:
            conf.writelines(f"{name} = '{value}'\n" for name, value in settings.items())

    def _identity(self) -> dict[str, Any]:
        if self._user is None:
            return {}
        return {"user": self._user.pw_uid, "group": self._user.pw_gid, "extra_groups": []}

    def _ready(self) -> bool:
        ready = [str(self._bin / "pg_isready"), "-q", "-h", str(self.folder), "-p", str(self.port)]
        return subprocess.run(ready, stdin=subprocess.DEVNULL, check=False).returncode == 0

    def _log_tail(self) -> str:
        return self.log.read_text(errors="replace")[-2000:] if self.log.exists() else "no log"


def _free_port() -> int:
    """Below the ports that the kernel gives to outgoing connections: it stays free while the server is away."""
    for port in random.SystemRandom().sample(range(10_000, 20_000), 100):
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise RuntimeError("no free port between 10000 and 20000")
