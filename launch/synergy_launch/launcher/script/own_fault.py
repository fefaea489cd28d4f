"""Failures that no plan can cause: the script itself is wrong, whatever it is run with. Pure."""

from __future__ import annotations

import re

#: exceptions of a program that would end it so on any number of GPUs
_OWN = frozenset({"SyntaxError", "IndentationError", "TabError", "NameError", "UnboundLocalError"})
#: those that another number of processes may cause (a file for each rank), or another degree (a library that context parallelism needs)
_OWN_AT_ASKED_SIZE = frozenset(
    {
        "ImportError",
        "ModuleNotFoundError",
        "FileNotFoundError",
        "NotADirectoryError",
        "IsADirectoryError",
        "PermissionError",
    }
)
_LINE = re.compile(rb"^(?:\[rank\d+\]: ?)?([A-Za-z_][\w.]*(?:Error|Exception|Warning|Exit))(?::|\s*$)", re.MULTILINE)
_OF_TORCHRUN = frozenset({"ChildFailedError"})
_USAGE = re.compile(rb"^[^\s:]+: error: ", re.MULTILINE)
_EXIT_2 = re.compile(rb"exitcode\s*: 2\b")


def script_mistake(code: int, error_output: bytes, *, same_degrees: bool, adds_options: bool) -> str:
    """Return what the script itself did wrong, or "" where a plan may have caused its end.

    `error_output` is the end of the error output. `same_degrees`: the plan has the size asked for and splits the model as little as the
    script does. `adds_options`: the plan is handed over as options of the script, which an older script may not know.
    """
    names = [match[1].decode().rpartition(".")[2] for match in _LINE.finditer(error_output)]
    last = next((name for name in reversed(names) if name not in _OF_TORCHRUN), "")
    if last in _OWN or (last in _OWN_AT_ASKED_SIZE and same_degrees):
        return last
    wrong_usage = _USAGE.search(error_output) and (code == 2 or _EXIT_2.search(error_output))
    return "wrong options" if wrong_usage and not adds_options else ""


def has_refused_options(error_output: bytes) -> bool:
    """Return whether the script has ended because it does not take an option that it was given."""
    return _USAGE.search(error_output) is not None
