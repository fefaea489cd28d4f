"""The side that waits: it imports what a training process imports, and forks one for each request.

A forked process runs the script as if Python had been started with it: as `__main__`, with its own arguments, environment, output and
session, and with other random numbers than the next one. It is forked twice, so that its parent is the process that asked, which takes
orphans for that moment (client.py): signals and exit codes pass as for any child.

A fork copies neither threads nor a CUDA context. Where an import has started either, or where Python's start is customised, nobody is
served, and the launcher starts Python.
"""

from __future__ import annotations

import builtins
import contextlib
import gc
import importlib
import json
import os
import runpy
import signal
import socket
import struct
import sys
import sysconfig
import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType

READY = b"+"
LENGTH = struct.Struct("!I")  # of the request that follows; of a process's id
_DEVICES = ("/dev/nvidia", "/dev/kfd")


@dataclass(frozen=True, kw_only=True)
class Request:
    """What a process is to become. `argv`: the Python command; `descriptors`: its input and outputs, or () for those of the server."""

    argv: tuple[str, ...]
    environment: dict[str, str]
    new_session: bool
    descriptors: tuple[int, ...] = ()


def main(arguments: Sequence[str]) -> None:
    """Import the modules, serve requests from the socket with the descriptor FD, and become what is asked for."""
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)  # as in the processes that the launcher starts
    channel = socket.socket(fileno=int(arguments[0]))
    for name in arguments[1:]:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    if is_customised() or not is_forkable():
        return
    # a collection would copy the pages of all that was imported, in each fork; at its end too, where it takes 1 s (measured)
    gc.collect()
    gc.freeze()
    with contextlib.suppress(OSError):  # the launcher has gone
        channel.sendall(READY)
        if (request := serve(channel)) is not None:
            become(request)


def is_customised() -> bool:
    """Return whether code of the site or the user ran at Python's start, beside a distribution's own.

    By the environment of a rank it may do other things there, and does them before the imports.
    """
    own = [Path(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib")]
    modules = (sys.modules.get(name) for name in ("sitecustomize", "usercustomize"))
    return any(module is not None and Path(str(module.__file__)).parent not in own for module in modules)


def is_forkable() -> bool:
    """Return whether a fork of this process is whole: it has one thread, and no GPU's device file open."""
    own = Path("/proc/self")
    if len(list((own / "task").iterdir())) > 1:
        return False
    for descriptor in (own / "fd").iterdir():
        with contextlib.suppress(OSError):
            if str(descriptor.readlink()).startswith(_DEVICES):
                return False
    return True


def serve(channel: socket.socket) -> Request | None:
    """Fork a process for each request. Return its request in each such process, and None in the server when nobody can ask any more."""
    while (request := _receive(channel)) is not None:
        sys.stdout.flush()
        sys.stderr.flush()
        reader, writer = os.pipe()
        middle = os.fork()
        if middle == 0:
            between = os.getpid()
            if os.fork():
                os._exit(0)
            while os.getppid() == between:
                time.sleep(0.001)
            channel.close()
            os.close(reader)
            if request.new_session:
                os.setsid()
            os.write(writer, LENGTH.pack(os.getpid()))
            os.close(writer)
            return request
        os.close(writer)
        for descriptor in request.descriptors:
            os.close(descriptor)
        os.waitpid(middle, 0)  # from here on the process is the other side's child
        pid = os.read(reader, LENGTH.size)
        os.close(reader)
        channel.sendall(pid)
    return None


def become(request: Request) -> None:
    """Run the request's command in this process; the interpreter's end is left to the caller's."""
    for number, descriptor in enumerate(request.descriptors):
        os.dup2(descriptor, number)
        os.close(descriptor)
    os.environ.clear()
    os.environ.update(request.environment)
    if (random := sys.modules.get("numpy.random")) is not None:
        random.seed()  # Python's own generator is seeded anew by itself
    module, name, arguments = command_of(request.argv)
    sys.modules["__main__"] = main_module = ModuleType("__main__")
    if module:
        sys.argv = ["-m", *arguments]
        if "-P" not in request.argv[: request.argv.index("-m")]:
            sys.path.insert(0, str(Path.cwd()))
        runpy._run_module_as_main(name)  # type: ignore[attr-defined]  # what `python -m` runs
        return
    sys.argv = [name, *arguments]
    sys.path.insert(0, str(Path(name).resolve().parent))
    main_module.__dict__.update(
        __file__=name,
        __builtins__=builtins,
        __spec__=None,
        __cached__=None,
        __loader__=SourceFileLoader("__main__", name),
    )
    exec(compile(Path(name).read_bytes(), name, "exec", dont_inherit=True), main_module.__dict__)


def command_of(argv: Sequence[str]) -> tuple[bool, str, tuple[str, ...]]:
    """Return whether a Python command runs a module, its or the script's name, and the arguments.

    Raises ValueError for options of Python's other than -P and -u, and for scripts that are no source file.
    """
    rest = list(argv[1:])
    while rest and rest[0] in ("-P", "-u"):
        rest.pop(0)
    if len(rest) > 1 and rest[0] == "-m":
        return True, rest[1], tuple(rest[2:])
    if not rest or rest[0].startswith("-") or not rest[0].endswith(".py"):
        raise ValueError(f"{rest[:1]}: not a script")
    return False, rest[0], tuple(rest[1:])


def _receive(channel: socket.socket) -> Request | None:
    """Return the next request; None where the other side has gone, or has begun one that it did not finish."""
    head, descriptors, _, _ = socket.recv_fds(channel, LENGTH.size, 3)
    if len(head) < LENGTH.size:
        return None
    (body_bytes,) = LENGTH.unpack(head)
    body = b""
    while len(body) < body_bytes:
        piece = channel.recv(body_bytes - len(body))
        if not piece:
            return None
        body += piece
    argv, environment, new_session = json.loads(body)
    return Request(argv=tuple(argv), environment=environment, new_session=new_session, descriptors=tuple(descriptors))
