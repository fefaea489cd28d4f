"""Parts of memory checkpoints between two launchers, over real sockets, and what strangers can do."""

from __future__ import annotations

import contextlib
import errno
import json
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from synergy_core.errors import UsageError
from synergy_core.wire import job_key
from synergy_launch.agent.memory_folder import PART, Part, parse_part, read_part, seal_part
from synergy_launch.launcher.job.job_secret import key_of_incarnation
from synergy_launch.launcher.memory import transfer as memory_transfer
from synergy_launch.launcher.memory.transfer import PartName, PartServer, fetch_part, send_part

SECRET = b"0123456789abcdef"
KEY = key_of_incarnation(SECRET, 9, 0)
NAME = PartName(run=1, step=20, node="n1")


class OneShelf:
    """A folder for everything."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.why = folder, ""

    def find(self, name: PartName) -> Path | None:
        path = self.place(name)
        return path if path.exists() else None

    def obstacle(self, part: Part) -> str:
        return self.why

    def place(self, name: PartName) -> Path:
        return self.folder / name.node / f"step_{name.step:08d}"


@pytest.fixture
def shelf(tmp_path: Path) -> OneShelf:
    return OneShelf(tmp_path / "shelf")


@pytest.fixture
def address(shelf: OneShelf) -> Iterator[tuple[str, int]]:
    server = PartServer(KEY, SECRET, shelf)
    yield "127.0.0.1", server.port
    server.close()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A node's part."""
    path = tmp_path / "own" / "step_00000020"
    path.mkdir(parents=True)
    (path / "__0_0.distcp").write_bytes(b"weights" * 300_000)
    (path / "random_0.pt").write_bytes(b"")
    (path / ".metadata").write_bytes(b"m")
    seal_part(path, 20, {"kind": "test"})
    return path


def part_in(folder: Path) -> Part:
    part = read_part(folder)
    assert part is not None
    return part


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_a_part_arrives_as_it_was_and_comes_back(
    address: tuple[str, int], shelf: OneShelf, folder: Path, tmp_path: Path
) -> None:
    send_part(address, KEY, NAME, folder, part_in(folder))
    assert content(shelf.place(NAME)) == content(folder)
    back = tmp_path / "back"
    back.mkdir()
    part = fetch_part(address, KEY, NAME, back, lambda part: None)
    assert part == part_in(folder)
    assert content(back) == {name: data for name, data in content(folder).items() if name != PART}


def test_a_part_is_not_held_without_room(address: tuple[str, int], shelf: OneShelf, folder: Path) -> None:
    shelf.why = "they would take too much"
    with pytest.raises(UsageError, match="they would take too much"):
        send_part(address, KEY, NAME, folder, part_in(folder))
    assert not shelf.folder.exists()


@pytest.mark.parametrize("change", ["content", "shorter"])
def test_a_file_that_changed_is_not_held(address: tuple[str, int], shelf: OneShelf, folder: Path, change: str) -> None:
    part = part_in(folder)
    data = bytearray((folder / "__0_0.distcp").read_bytes())
    data[5] ^= 1
    (folder / "__0_0.distcp").write_bytes(data if change == "content" else data[:-1])
    with pytest.raises((UsageError, OSError)):
        send_part(address, KEY, NAME, folder, part)
    with pytest.raises(UsageError, match="not there"):
        fetch_part(address, KEY, NAME, folder, lambda part: None)
    assert read_part(shelf.place(NAME)) is None


def test_a_part_that_fills_the_memory_is_refused_and_removed(
    address: tuple[str, int], shelf: OneShelf, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write_part(folder: Path, part: Part) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(memory_transfer, "write_part", write_part)
    with pytest.raises(UsageError, match="No space left on device"):
        send_part(address, KEY, NAME, folder, part_in(folder))
    assert not shelf.place(NAME).exists()


def test_what_was_truncated_here_is_not_handed_out(
    address: tuple[str, int], shelf: OneShelf, folder: Path, tmp_path: Path
) -> None:
    send_part(address, KEY, NAME, folder, part_in(folder))
    with (shelf.place(NAME) / "__0_0.distcp").open("r+b") as stream:
        stream.truncate(100)
    with pytest.raises(UsageError, match="not there"):
        fetch_part(address, KEY, NAME, tmp_path, lambda part: None)


def test_a_launcher_that_sends_a_byte_now_and_then_is_given_up(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory_transfer, "SILENT_S", 0.4)
    part = part_in(folder)
    large = replace(part, files=tuple(file for file in part.files if file.size_bytes > 1000))
    text, is_over = large.text().encode(), threading.Event()
    listener = socket.create_server(("127.0.0.1", 0))

    def trickle() -> None:
        connection, _ = listener.accept()
        with connection:
            signed, _ = job_key.open_line(connection.recv(4096).decode().strip(), SECRET, time.time())
            connection.sendall(
                signed.answer(memory_transfer._describe_list(text).encode(), time.time()).encode() + b"\n"
            )
            connection.sendall(text)
            with contextlib.suppress(OSError):
                while not is_over.wait(0.1):
                    connection.send(b"w")

    thread = threading.Thread(target=trickle, daemon=True)
    thread.start()
    with listener, pytest.raises(OSError, match=r"too slow|timed out"):
        fetch_part(listener.getsockname(), KEY, NAME, tmp_path, lambda part: None)
    is_over.set()
    thread.join(10)


def test_another_jobs_launcher_gets_no_answer(address: tuple[str, int], shelf: OneShelf, folder: Path) -> None:
    for other in (key_of_incarnation(b"another secret..", 9, 0), key_of_incarnation(SECRET, 8, 0)):
        with pytest.raises(OSError):
            send_part(address, other, NAME, folder, part_in(folder))
        with pytest.raises(OSError):
            fetch_part(address, other, NAME, folder, lambda part: None)
    assert not shelf.folder.exists()


def test_a_line_is_answered_once(address: tuple[str, int], shelf: OneShelf, folder: Path) -> None:
    send_part(address, KEY, NAME, folder, part_in(folder))
    line, _ = job_key.sign_report(KEY, f"fetch {NAME.text()}".encode(), time.time())
    sizes = []
    for _ in range(2):
        with socket.create_connection(address, timeout=30) as wire:
            wire.sendall(line.encode() + b"\n")
            sizes.append(len(wire.recv(100)))
    assert sizes[0] > 0 and sizes[1] == 0


def test_an_answer_of_somebody_else_is_not_believed(folder: Path) -> None:
    """A stranger who listens in the neighbour's place says that it holds the part."""
    with socket.create_server(("127.0.0.1", 0)) as stranger:

        def answer() -> None:
            connection, _ = stranger.accept()
            with connection:
                connection.sendall(b"send\nheld\n")
                while connection.recv(1 << 16):
                    pass

        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(UsageError):
            send_part(stranger.getsockname(), KEY, NAME, folder, part_in(folder))
        thread.join()


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{", "can't be read"),
        ('{"step": 1}', "can't be read"),
        (json.dumps({"step": 1, "files": [["../x", 1, "d"]], "meta": None}), "no part has"),
        (json.dumps({"step": 1, "files": [["..", 1, "d"]], "meta": None}), "no part has"),
        (json.dumps({"step": 1, "files": [["part", 1, "d"]], "meta": None}), "no part has"),
        (json.dumps({"step": 1, "files": [["x", -1, "d"]], "meta": None}), "no part has"),
        (json.dumps({"step": 1, "files": [], "meta": [1]}), "can't be read"),
    ],
)
def test_a_list_that_no_launcher_writes_is_refused(text: str, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        parse_part(text)


def test_a_node_name_is_no_path(address: tuple[str, int], shelf: OneShelf, folder: Path) -> None:
    with pytest.raises(OSError):
        send_part(address, KEY, replace(NAME, node="../../n1"), folder, part_in(folder))
    assert not shelf.folder.exists()
