"""What is written for one user's eyes."""

from __future__ import annotations

import errno
import os
import resource
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from synergyd.slurm.owner_file import allow_user, write_for_user

pytestmark = pytest.mark.skipif(os.getuid() != 0, reason="only root becomes other users")


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """Others can't enter pytest's own."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


def reads(uid: int, path: Path) -> bool:
    done = subprocess.run(["cat", path], user=uid, group=uid, extra_groups=[], capture_output=True, check=False)
    return done.stdout == b"a plan\n"


@pytest.mark.parametrize("writer", [0, 65534])
def test_its_owner_alone_reads_it(open_folder: Path, writer: int) -> None:
    os.chown(open_folder, writer, writer)
    path = open_folder / "7.sh"
    child = os.fork()
    if child == 0:
        os.setgid(writer)
        os.setuid(writer)
        try:
            for _ in range(2):  # it replaces what is there
                write_for_user(path, "a plan\n", 5)
        finally:
            os._exit(not path.exists())
    assert os.waitpid(child, 0)[1] == 0
    assert reads(5, path) and not reads(6, path)


@pytest.mark.parametrize(("writer", "acls"), [(0, True), (0, False), (65534, True)])
def test_an_open_file_is_shown_to_one_user(
    open_folder: Path, monkeypatch: pytest.MonkeyPatch, writer: int, acls: bool
) -> None:
    def refused(*_: object) -> None:
        raise OSError(95, "Operation not supported")

    if not acls:
        monkeypatch.setattr(os, "setxattr", refused)
    os.chown(open_folder, writer, writer)
    path = open_folder / "7.json"
    child = os.fork()
    if child == 0:
        os.setgid(writer)
        os.setuid(writer)
        try:
            for _ in range(2):  # its writer can write it anew
                with path.open("w") as file:
                    file.write("a plan\n")
                    allow_user(file.fileno(), 5, is_secret=False)
        finally:
            os._exit(not path.exists())
    assert os.waitpid(child, 0)[1] == 0
    assert reads(5, path) and not reads(6, path)
    assert path.stat().st_uid == (writer if acls else 5), "an owner could change it"


def test_nothing_is_left_where_it_can_not_be_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 65534)

    def refused(*_: object) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(os, "setxattr", refused)
    with pytest.raises(OSError, match="not supported"):
        write_for_user(tmp_path / "7.sh", "a plan\n", 5)
    assert not list(tmp_path.iterdir())


def test_nothing_is_left_where_the_last_bytes_find_no_room(tmp_path: Path) -> None:
    path, (_, most) = tmp_path / "7.sh", resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(
        resource.RLIMIT_FSIZE, (4, most)
    )  # refused as late as on a full disk: when the buffer is written
    try:
        with pytest.raises(OSError, match=str(path)) as caught:
            write_for_user(path, "a plan\n", 0)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
    assert caught.value.errno == errno.EFBIG and not list(tmp_path.iterdir())
