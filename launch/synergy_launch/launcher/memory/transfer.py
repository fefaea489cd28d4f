"""The parts of memory checkpoints on their way between two launchers of one job.

The launcher that asks sends a line that the job's secret signs, and the list of files where it brings a part; the other one answers with
signed lines. The bytes of the files follow as they are: each is no longer than the list says, and its digest must be the list's. Nobody
who does not know the secret can store, fetch or replace anything.

    store: line, list ->  <- "send" or "no REASON"; files ->  <- "held" or "no REASON"
    fetch: line ->        <- size and digest of the list, list, files
"""

from __future__ import annotations

import contextlib
import hashlib
import shutil
import socket
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from synergy_core.errors import SynergyError, UsageError
from synergy_core.wire import job_key
from synergy_core.wire.job_key import JobKey, SignedReport

from synergy_launch.agent.checkpoint import file_fault
from synergy_launch.agent.memory_folder import Part, is_file_name, parse_part, read_part, write_part
from synergy_launch.launcher.group.lobby import Lobby, Visitor
from synergy_launch.launcher.group.meeting import bind_first_free, random_ports

#: without a byte: longer than the 8 s after which the kernel calls a node without power silent (launcher_group.LOST_S)
SILENT_S = 10.0
#: of a whole transfer, besides SILENT_S: a sixth of gigabit Ethernet. What comes slower comes faster from most disks
LEAST_BYTES_PER_S = 20e6
_LIST_BYTES = 16 << 20
_LINE_BYTES = 4096
_PIECE_BYTES = 1 << 20
_SENT_BYTES = 64 << 20  # at once, of a file
_LOOK_S = 0.2
_WHERE = "memory checkpoint"


@dataclass(frozen=True, kw_only=True)
class PartName:
    """The part of `node` in the memory checkpoint of run `run` and `step`."""

    run: int
    step: int
    node: str

    def text(self) -> str:
        return f"{self.run} {self.step} {self.node}"


class Shelf(Protocol):
    """Where the parts of a node lie."""

    def find(self, name: PartName) -> Path | None:
        """Return the folder of the part, or None where it is not here."""

    def obstacle(self, part: Part) -> str:
        """Return why a neighbour's part can't be held here, or ""."""

    def place(self, name: PartName) -> Path:
        """Return the folder for a neighbour's part."""


class PartServer:
    """The answers to other launchers of the job, on a port of its own, in threads, until it is closed.

    Raises SynergyError where no port is free.
    """

    def __init__(self, key: JobKey, secret: bytes, shelf: Shelf) -> None:
        self._key, self._secret, self._shelf = key, secret, shelf
        self._listener = bind_first_free(random_ports(), listens=True)
        self.port: int = self._listener.getsockname()[1]
        self._signatures: set[str] = set()  # of lines that were answered
        self._is_closed = threading.Event()
        threading.Thread(target=self._run, name="memory checkpoints", daemon=True).start()

    def close(self) -> None:
        """Take no more requests."""
        self._is_closed.set()

    def _run(self) -> None:
        lobby = Lobby(self._listener)
        while not self._is_closed.wait(_LOOK_S):
            for visitor in lobby.poll():
                threading.Thread(target=self._answer, args=(visitor,), name="memory checkpoint", daemon=True).start()
        lobby.close()

    def _answer(self, visitor: Visitor) -> None:
        with visitor.connection as connection, contextlib.suppress(OSError, SynergyError):
            connection.settimeout(SILENT_S)
            wire = _Wire(connection, visitor.rest)
            signed, payload = job_key.open_line(visitor.line or "", self._secret, time.time())
            if signed.key != self._key or signed.signature in self._signatures:
                raise UsageError(_WHERE, "the sender is no launcher of this job")
            self._signatures.add(signed.signature)
            verb, *words = payload.decode("ascii", "replace").split(" ")
            name = _read_name(words[:3])
            if verb == "store":
                self._store(wire, signed, name, words[3:])
            elif verb == "fetch":
                self._hand_out(wire, signed, name)

    def _store(self, wire: _Wire, signed: SignedReport, name: PartName, words: list[str]) -> None:
        part = wire.receive_list(words)
        if part.step != name.step:
            raise UsageError(_WHERE, "its list is of another step")
        why = self._shelf.obstacle(part)
        wire.say(_answer_line(signed, f"no {why}" if why else "send"))
        if why:
            return
        folder = self._shelf.place(name)
        try:
            receive_part(wire, folder, part)
        except OSError as error:
            why = error.strerror or type(error).__name__
        except UsageError as error:
            why = error.what
        wire.say(_answer_line(signed, f"no {why}" if why else "held"))

    def _hand_out(self, wire: _Wire, signed: SignedReport, name: PartName) -> None:
        folder = self._shelf.find(name)
        part = read_part(folder) if folder is not None else None
        if folder is None or part is None:
            wire.say(_answer_line(signed, "no it is not there"))
            return
        text = part.text().encode()
        wire.say(_answer_line(signed, _describe_list(text)))
        wire.connection.sendall(text)
        wire.send_files(folder, part)


def send_part(address: tuple[str, int], key: JobKey, name: PartName, folder: Path, part: Part) -> None:
    """Have the launcher at `address` hold the part in `folder`; return when it does.

    Raises UsageError with its reason if it can't, OSError if the connection or a file breaks off.
    """
    text = part.text().encode()
    line, request = job_key.sign_report(key, f"store {name.text()} {_describe_list(text)}".encode(), time.time())
    with socket.create_connection(address, timeout=SILENT_S) as connection:
        wire = _Wire(connection)
        wire.say(line)
        connection.sendall(text)
        wire.expect(request, "send")
        wire.send_files(folder, part)
        wire.expect(request, "held", part.size_bytes)


def fetch_part(
    address: tuple[str, int], key: JobKey, name: PartName, folder: Path, check: Callable[[Part], object]
) -> Part:
    """Return the part `name`, whose files the launcher at `address` has sent into `folder`.

    `check` is called before the files come, and may raise. Raises UsageError if the part is not there or not as it was saved, OSError if
    the connection or a file breaks off.
    """
    line, request = job_key.sign_report(key, f"fetch {name.text()}".encode(), time.time())
    with socket.create_connection(address, timeout=SILENT_S) as connection:
        wire = _Wire(connection)
        wire.say(line)
        part = wire.receive_list(wire.hear(request).split(" "))
        if part.step != name.step:
            raise UsageError(_WHERE, "its list is of another step")
        check(part)
        wire.receive_files(folder, part)
    return part


def receive_part(wire: _Wire, folder: Path, part: Part) -> None:
    """Write the files of `part` as they come, and make them the whole part in `folder`, which may be received twice at once.

    Raises UsageError where a file is not as it was saved, OSError.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    incoming = Path(tempfile.mkdtemp(prefix="incoming-", dir=folder.parent))
    try:
        wire.receive_files(incoming, part)
        write_part(incoming, part)
        shutil.rmtree(folder, ignore_errors=True)
        incoming.rename(folder)
    except BaseException:
        shutil.rmtree(incoming, ignore_errors=True)
        raise


class _Wire:
    """A connection, and what came with the first line. Its methods raise TimeoutError where the other side is silent or too slow."""

    def __init__(self, connection: socket.socket, rest: bytes = b"") -> None:
        self.connection, self._rest = connection, rest
        self._silent_s = SILENT_S
        self._due_s = time.monotonic() + SILENT_S

    def _allow(self, size_bytes: int, *, silently: bool = False) -> None:
        """Allow the time for so many bytes from now on, of which the other side reads all before it answers if `silently`."""
        allowed_s = SILENT_S + size_bytes / LEAST_BYTES_PER_S
        self._due_s = time.monotonic() + allowed_s
        self._silent_s = allowed_s if silently else SILENT_S

    def _limit_wait(self) -> None:
        remaining_s = self._due_s - time.monotonic()
        if remaining_s <= 0:
            raise TimeoutError("the other launcher is too slow")
        self.connection.settimeout(min(self._silent_s, remaining_s))

    def say(self, line: str) -> None:
        self.connection.sendall(line.encode() + b"\n")

    def expect(self, request: SignedReport, word: str, checked_bytes: int = 0) -> None:
        """Read the answer to `request`, before which the other side checks so many bytes. Raises UsageError if it is not `word`."""
        if (text := self.hear(request, checked_bytes)) != word:
            raise UsageError(_WHERE, text.removeprefix("no ")[:200])

    def hear(self, request: SignedReport, checked_bytes: int = 0) -> str:
        """Return the other side's signed answer to `request`. Raises UsageError for any other line, and for a refusal."""
        self._allow(checked_bytes, silently=True)
        while b"\n" not in self._rest and len(self._rest) <= _LINE_BYTES:
            self._rest += self._receive(_LINE_BYTES)
        line, _, self._rest = self._rest.partition(b"\n")
        text = request.verify_answer(line.decode("ascii", "replace")).decode("utf-8", "replace")
        if text.startswith("no "):
            raise UsageError(_WHERE, text[3:203])
        return text

    def receive_list(self, words: list[str]) -> Part:
        """Return the list of files that comes next, of the size and digest in `words`. Raises UsageError for any other."""
        if len(words) != 2 or not words[0].isdecimal() or len(words[0]) > 9 or int(words[0]) > _LIST_BYTES:
            raise UsageError(_WHERE, "its list of files is too long")
        size = int(words[0])
        self._allow(size)
        while len(self._rest) < size:
            self._rest += self._receive(_PIECE_BYTES)
        text, self._rest = self._rest[:size], self._rest[size:]
        if hashlib.blake2b(text, digest_size=16).hexdigest() != words[1]:
            raise UsageError(_WHERE, "its list of files is not the sender's")
        return parse_part(text.decode("utf-8", "replace"))

    def send_files(self, folder: Path, part: Part) -> None:
        self._allow(part.size_bytes)
        for file in part.files:
            with (folder / file.name).open("rb") as stream:
                sent_bytes = 0
                while sent_bytes < file.size_bytes:
                    self._limit_wait()
                    count = min(_SENT_BYTES, file.size_bytes - sent_bytes)
                    piece_bytes = self.connection.sendfile(stream, offset=sent_bytes, count=count)
                    if not piece_bytes:
                        raise OSError(f"{file.name} has changed")
                    sent_bytes += piece_bytes

    def receive_files(self, folder: Path, part: Part) -> None:
        """Write each file as long as the list says, and check it. Raises UsageError where its content is another, OSError."""
        self._allow(part.size_bytes)
        for file in part.files:
            missing_bytes = file.size_bytes
            (folder / file.name).unlink(missing_ok=True)  # from a node that has broken off
            with (folder / file.name).open("xb") as stream:
                while missing_bytes:
                    piece = self._rest[:missing_bytes] or self._receive(min(missing_bytes, _PIECE_BYTES))
                    self._rest = self._rest[len(piece) :]
                    stream.write(piece)
                    missing_bytes -= len(piece)
            if fault := file_fault(folder / file.name, file.name, file.size_bytes, file.digest):
                raise UsageError(_WHERE, fault)

    def _receive(self, most: int) -> bytes:
        self._limit_wait()
        piece = self.connection.recv(most)
        if not piece:
            raise ConnectionResetError("the other launcher has closed the connection")
        return piece


def _describe_list(text: bytes) -> str:
    return f"{len(text)} {hashlib.blake2b(text, digest_size=16).hexdigest()}"


def _answer_line(signed: SignedReport, text: str) -> str:
    return signed.answer(text.encode(), time.time())


def _read_name(words: list[str]) -> PartName:
    """Return the part that a request names. Raises UsageError for words that are none."""
    if len(words) != 3 or not all(w.isdecimal() and len(w) < 10 for w in words[:2]) or not is_file_name(words[2]):
        raise UsageError(_WHERE, "the request names none")
    return PartName(run=int(words[0]), step=int(words[1]), node=words[2])
