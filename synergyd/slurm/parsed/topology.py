"""Leaf switches out of `scontrol show topology`. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from synergyd.errors import UsageError
from synergyd.wire.hostlist import expand


def leaf_switches(lines: Iterable[str]) -> tuple[dict[str, str], tuple[str, ...]]:
    """(node name -> its leaf, what was not understood, a line each): the switches of level 0 (topology/tree), or the blocks
    (topology/block). A leaf whose nodes are not understood is passed over: the others hold."""
    found: dict[str, str] = {}
    problems: list[str] = []
    for line in lines:
        words = dict(word.partition("=")[::2] for word in line.split())
        leaf = words.get("BlockName") or (words.get("Level") == "0" and words.get("SwitchName"))
        if not leaf:
            continue
        try:
            found.update(dict.fromkeys(expand(words.get("Nodes", ""), f"leaf {leaf}"), leaf))
        except UsageError as error:
            problems.append(f"{error}; its nodes count as under no leaf")
    return found, tuple(problems)
