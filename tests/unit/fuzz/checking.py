"""What holds for every reader and every input: accepted, or one documented error of one line; and soon."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterable
from itertools import chain
from typing import TypeVar

from synergy_core.errors import UsageError

from tests.paths import ROOT

T = TypeVar("T")
LONGEST_ERROR = 1600  # characters: three parts of 500, as errors.one_line cuts them
SLOWEST_S = 1.0
TRACED = 5.0  # times as slow, at most, where coverage looks on


def corpus(reader: str) -> list[bytes]:
    """What ever failed in `reader`: tests/cases/fuzz/READER.json, texts of one character a byte; [text, N] is repeated."""
    path = ROOT / "tests" / "cases" / "fuzz" / f"{reader}.json"
    cases = json.loads(path.read_text(encoding="utf-8")) if path.exists() else []
    return [whole(case["input"]) for case in cases]


def whole(parts: str | list[str | tuple[str, int]]) -> bytes:
    """An input of the corpus."""
    several = [parts] if isinstance(parts, str) else parts
    return "".join(part if isinstance(part, str) else part[0] * part[1] for part in several).encode("latin-1")


def refused(read: Callable[[T], object], given: T, errors: tuple[type[Exception], ...] = (UsageError,)) -> str:
    """The error's text, "" where `given` is accepted. Anything else is a failure of the reader."""
    began_s = time.process_time()
    try:
        read(given)
        text = ""
    except errors as error:
        text = str(error)
        assert text, f"an error without text: {given!r:.500}"
    except Exception as error:
        raise AssertionError(f"{type(error).__name__}: {error!s:.300} at {given!r:.2000}") from error
    took_s = time.process_time() - began_s
    bound_s = SLOWEST_S if sys.gettrace() is None else TRACED * SLOWEST_S
    assert took_s < bound_s, f"{took_s:.1f} s for {given!r:.500}"
    assert len(text) <= LONGEST_ERROR and text.isprintable(), f"{text!r:.500} for {given!r:.500}"
    return text


def check(
    read: Callable[[bytes], object],
    reader: str,
    inputs: Iterable[bytes],
    errors: tuple[type[Exception], ...] = (UsageError,),
) -> None:
    """All of `inputs`, and the reader's corpus; some must be accepted and some refused, or the inputs try nothing."""
    texts = [refused(read, given, errors) for given in chain(corpus(reader), inputs)]
    assert 0 < sum(map(bool, texts)) < len(texts)
