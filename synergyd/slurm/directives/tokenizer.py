"""Reading `key=value` words out of one line, for directives and for slurm.conf; one character per byte (latin-1)."""

from __future__ import annotations

import re
from collections.abc import Iterable

from synergyd.slurm.directives.grammar import FORBIDDEN, MAX_LINE, SHOWN

BLANKS = " \t"
_FORBIDDEN = re.compile("(?!\t)[" + "".join(f"\\U{low:08x}-\\U{high:08x}" for low, high in FORBIDDEN) + "]")


class WordError(Exception):
    """A mistake in a line: `code` of grammar.MESSAGES, what fills it in, and the keys it is about (for its line)."""

    def __init__(self, code: str, keys: tuple[str, ...] = (), /, **values: object) -> None:
        super().__init__(code)
        self.code, self.keys, self.values = code, keys, values


def as_bytes(text: str) -> str:
    """Return `text` with one character per byte of its UTF-8, so that lengths are those that Lua sees.

    Never fails. A byte that was no UTF-8, kept by "surrogateescape", is that byte again.
    """
    try:
        return text.encode("utf-8", "surrogateescape").decode("latin-1")
    except UnicodeEncodeError:  # other lone surrogates
        return text.encode("utf-8", "surrogatepass").decode("latin-1")


def as_text(value: str) -> str:
    """Return the inverse of as_bytes for valid UTF-8; raises UnicodeDecodeError otherwise."""
    return value.encode("latin-1").decode("utf-8")


def show(value: str) -> str:
    """Return a stranger's bytes as printable ASCII, cut to SHOWN bytes, for an error line."""
    text = "".join(c if " " <= c <= "~" else f"\\x{ord(c):02x}" for c in value[:SHOWN])
    return text + "..." if len(value) > SHOWN else text


def bad_column(line: str) -> int:
    """Return the 1-based byte column of the first character that no value may hold (tabs are blanks), or 0 if there is none."""
    raw = line.encode("latin-1")
    try:
        text, bad = raw.decode("utf-8"), len(raw)
    except UnicodeDecodeError as error:
        text, bad = raw[: error.start].decode("utf-8"), error.start
    if match := _FORBIDDEN.search(text):
        return len(text[: match.start()].encode("utf-8")) + 1
    return bad + 1 if bad < len(raw) else 0


def words(line: str, start: int = 0) -> list[tuple[str, str]]:
    """Return the (key, value) pairs of `line` from `start` on; `#` at a word's start begins a remark.

    A value may stand in double or single quotes; there are no escapes. Raises WordError.
    """
    if len(line) > MAX_LINE:
        raise WordError("long_line", max=MAX_LINE)
    if column := bad_column(line):
        raise WordError("character", column=column)
    pairs: list[tuple[str, str]] = []
    at, end = start, len(line)
    while True:
        while at < end and line[at] in BLANKS:
            at += 1
        if at >= end or line[at] == "#":
            return pairs
        begin = at
        while at < end and line[at] not in BLANKS and line[at] != "=":
            at += 1
        key = line[begin:at]
        if at >= end or line[at] != "=" or not key:
            stop = at
            while stop < end and line[stop] not in BLANKS:
                stop += 1
            raise WordError("no_value", word=show(line[begin:stop]))
        at += 1
        if at < end and line[at] in "\"'":
            close = line.find(line[at], at + 1)
            if close < 0:
                raise WordError("unclosed", key=show(key))
            value = line[at + 1 : close]
            at = close + 1
            if at < end and line[at] not in BLANKS:
                raise WordError("after_quote", key=show(key))
        else:
            begin = at
            while at < end and line[at] not in BLANKS:
                at += 1
            value = line[begin:at]
            if not value:
                raise WordError("no_value", word=show(key + "="))
            if '"' in value or "'" in value:
                raise WordError("inner_quote", key=show(key), value=show(value))
        pairs.append((key, value))


def nearest(word: str, names: Iterable[str]) -> str:
    """Return the first of `names` with the least edit distance to `word`, case and dashes aside, or "" if that is over 2."""
    best, least = "", 3
    if len(word) > 40:
        return ""
    spelling = word.lower().replace("-", "_")
    for name in names:
        if abs(len(spelling) - len(name)) >= least:
            continue
        distance = _distance(spelling, name.lower())
        if distance < least and distance < len(name):
            best, least = name, distance
    return best


def _distance(a: str, b: str) -> int:
    """Compute Levenshtein's edit distance."""
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        diagonal, row[0] = row[0], i
        for j, y in enumerate(b, 1):
            diagonal, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, diagonal + (x != y))
    return row[-1]
