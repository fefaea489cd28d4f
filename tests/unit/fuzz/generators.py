"""Inputs near to valid ones: seeded mutations of examples, with the values at which readers break most often."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable, Iterator, Sequence
from random import Random
from typing import Any

LONGEST = 6000  # bytes of a mutated input; larger ones: test_large_inputs.py
NUMBERS = (
    *("0", "-0", "1", "-1", "2", "7", "08", "+5", "1.5", "1e3", "1e308", "1e309", "-1e999", "nan", "inf", "-inf", "Infinity"),
    *("NaN", "1_000", "0x10", "1.", ".5", "5e-324", "9" * 9, "9" * 12, "9" * 19, "9" * 400, "9" * 5000, "1." + "3" * 400),
    *("65535", "65536", "4294967296", "100000000", "100000001", "16777217", "\u0663", "\u00b2", "true", "null"),
)  # fmt: skip
WORDS = (
    *("", " ", "\t", "\n", "\r\n", "\v", "\f", "\x00", "\x7f", "\x1b[31m", "\u00e9", "\u2028", "\u202e", "\ufeff", "\U0001f600"),
    *("=", "==", ":", ",", ",,", "|", " | ", "#", "\\", "/", "..", "%", "%41", "%4", "%zz", "'", '"', "$(id)", "`id`", "~", "-"),
    *("--", "*", "?", "[", "]", "[]", "[1-3]", "[1-", "n[1-2]r[3-4]", "{", "}", "{}", "(null)", "None", "\x85", "\u3000"),
    *("yes", "no", "none", "2026-12-01T12:00", "2026-02-30T00:00Z", "9999-12-31T23:59:59+14:00", "0001-01-01T00:00:00"),
    *("x" * 70, "y" * 300, "#SYNERGY ", "include ", "MUNGE:", "a" * 5000),
)  # fmt: skip
RAW = (b"\xff", b"\xc3", b"\xed\xa0\x80", b"\xf8\x88\x80\x80", b"\x80", b"\xc0\xaf", b"\xff\xfe")
_SPICE = (*(text.encode() for text in (*NUMBERS, *WORDS)), *RAW)
_NUMBER = re.compile(rb"[0-9]+(?:\.[0-9]+)?")
_TOKEN = re.compile(rb"[A-Za-z0-9_.+-]+")

Step = Callable[[Random, bytes, Sequence[bytes]], bytes]


def mutations(examples: Sequence[bytes], count: int, seed: int) -> Iterator[bytes]:
    """`count` inputs, each one of `examples` after one to six random steps."""
    random = Random(seed)
    for _ in range(count):
        content = random.choice(examples)
        for _ in range(random.choice((1, 1, 1, 1, 2, 2, 3, 6))):
            content = random.choice(_STEPS)(random, content, examples)[:LONGEST]
        yield content


def json_mutations(examples: Sequence[object], count: int, seed: int) -> Iterator[bytes]:
    """`count` JSON texts: of each five four with values and names changed inside the tree, one with bytes changed."""
    random = Random(seed)
    texts = [json.dumps(example).encode() for example in examples]
    for number, content in enumerate(mutations(texts, count, seed)):
        if number % 5 == 0:
            yield content
            continue
        tree = copy.deepcopy(random.choice(examples))
        for _ in range(random.choice((1, 1, 1, 2, 3))):
            tree = _changed(random, tree)
        yield json.dumps(tree).encode()[:LONGEST]


def _span(random: Random, content: bytes) -> tuple[int, int]:
    first = random.randrange(len(content) + 1)
    return first, min(len(content), first + random.choice((1, 1, 2, 4, 16, 64)))


def _insert(random: Random, content: bytes, _: Sequence[bytes]) -> bytes:
    at = random.randrange(len(content) + 1)
    return content[:at] + random.choice(_SPICE) + content[at:]


def _delete(random: Random, content: bytes, _: Sequence[bytes]) -> bytes:
    first, last = _span(random, content)
    return content[:first] + content[last:]


def _repeat(random: Random, content: bytes, _: Sequence[bytes]) -> bytes:
    first, last = _span(random, content)
    return content[:last] + content[first:last] * random.choice((1, 1, 2, 40)) + content[last:]


def _flip(random: Random, content: bytes, _: Sequence[bytes]) -> bytes:
    at = random.randrange(len(content) + 1)
    return content[:at] + bytes([random.randrange(256)]) + content[at + 1 :]


def _other_number(random: Random, content: bytes, _: Sequence[bytes]) -> bytes:
    return _put(random, content, _NUMBER, random.choice(NUMBERS).encode())


def _other_word(random: Random, content: bytes, _: Sequence[bytes]) -> bytes:
    return _put(random, content, _TOKEN, random.choice(_SPICE))


def _put(random: Random, content: bytes, pattern: re.Pattern[bytes], new: bytes) -> bytes:
    found = list(pattern.finditer(content))
    if not found:
        return content + new
    match = random.choice(found)
    return content[: match.start()] + new + content[match.end() :]


def _small_number(random: Random, content: bytes, _: Sequence[bytes]) -> bytes:
    """A wrong number that looks right: the rules between numbers are met so."""
    return _put(random, content, _NUMBER, b"%d" % random.choice((0, 1, 2, 3, 4, 8, 12, 16, 64, 100)))


def _splice(random: Random, content: bytes, examples: Sequence[bytes]) -> bytes:
    other = random.choice(examples)
    return content[: random.randrange(len(content) + 1)] + other[random.randrange(len(other) + 1) :]


_STEPS: tuple[Step, ...] = (
    _insert, _delete, _repeat, _flip, _other_number, _other_number, _other_word, _small_number, _small_number, _splice
)  # fmt: skip
_VALUES: tuple[object, ...] = (
    *(None, True, False, 0, 1, -1, 2, 3, 0.5, 1e308, float("inf"), float("-inf"), float("nan"), 10**400, -(10**400)),
    *(10**4299, 100_000_000, 100_000_001, 2**63, 2**64, "", "inf", "nan", "1", "x" * 300, "\x00", "\x1b[2J", "\ud800"),
    *([], {}, [[]], [1, 2], {"a": 1}, [None], "bf16", "full", [[[[[[[[]]]]]]]], {"": {"": {}}}),
)  # fmt: skip


def _changed(random: Random, tree: Any) -> Any:
    """`tree` with one node, at random, replaced, dropped, doubled or wrapped."""
    if isinstance(tree, dict) and tree and random.random() < 0.9:
        name = random.choice(list(tree))
        match random.randrange(8):
            case 0:
                del tree[name]
            case 1:
                tree[random.choice(WORDS)] = tree[name]
            case _:
                tree[name] = _changed(random, tree[name])
        return tree
    if isinstance(tree, list) and tree and random.random() < 0.8:
        at = random.randrange(len(tree))
        match random.randrange(6):
            case 0:
                del tree[at]
            case 1:
                tree.append(tree[at])
            case _:
                tree[at] = _changed(random, tree[at])
        return tree
    match random.randrange(10):
        case 0:
            return [tree]
        case 1:
            return {"x": tree}
        case 2 if isinstance(tree, int):
            return tree + random.choice((-2, -1, 1, 2))
        case _:
            return copy.deepcopy(random.choice(_VALUES))
