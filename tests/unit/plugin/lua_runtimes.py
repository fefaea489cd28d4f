"""Running slurm_plugins/synergy.lua as slurmctld would.

The `lua5.3` program where it is installed, and lupa's Lua 5.1 (the one that Debian's Slurm links), 5.3 and 5.4 in this
process."""

from __future__ import annotations

import importlib
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
PLUGIN = ROOT / "slurm_plugins" / "synergy.lua"
DRIVER = Path(__file__).with_name("lua_driver.lua")
Checker = Callable[[list[bytes]], list[bytes]]


def literal(value: object) -> bytes:
    """A Python value as a Lua expression; None is nil."""
    match value:
        case None:
            return b"nil"
        case bool():
            return b"true" if value else b"false"
        case int() | float():
            return repr(value).encode()
        case str():
            return literal(value.encode("utf-8", "surrogateescape"))
        case bytes():
            return (
                b'"' + b"".join(b"\\%03d" % byte if not chr(byte).isalnum() else bytes([byte]) for byte in value) + b'"'
            )
        case dict():
            return b"{" + b",".join(b"[%s]=%s" % (literal(k), literal(v)) for k, v in value.items()) + b"}"
        case list() | tuple():
            return b"{" + b",".join(literal(v) for v in value) + b"}"
    raise TypeError(type(value))


def runtime(name: str) -> Any:
    """A fresh Lua state of lupa's module `name` that takes and gives bytes; None where it is not installed."""
    try:
        module = importlib.import_module(f"lupa.{name}")
    except ImportError:
        return None
    return module.LuaRuntime(encoding=None, unpack_returned_tuples=True)


def program(cases: list[bytes]) -> list[bytes]:
    """What check() says of each script, from one process of the lua5.3 program."""
    told = b"return " + literal(cases)
    ran = subprocess.run(["lua5.3", str(DRIVER), str(PLUGIN)], input=told, capture_output=True, check=True, timeout=60)
    return ran.stdout.split(b"\n")[:-1]


def in_process(name: str) -> Checker | None:
    """The same through lupa."""
    state = runtime(name)
    if state is None:
        return None
    check = state.execute(b"return dofile(" + literal(str(PLUGIN)) + b").check")

    def run(cases: list[bytes]) -> list[bytes]:
        answers = []
        for case in cases:
            answer = check(case)
            answers.append(answer if isinstance(answer, bytes) else answer[0] + b" " + answer[1])
        return answers

    return run


def checkers() -> dict[str, Checker]:
    """Every Lua there is on this machine."""
    found: dict[str, Checker] = {}
    if shutil.which("lua5.3"):
        found["lua5.3 program"] = program
    for name in ("lua51", "lua53", "lua54"):
        checker = in_process(name)
        if checker:
            found[f"lupa {name}"] = checker
    return found
