"""Readers of tables that strangers wrote: every mistake is one line with file, line and column."""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from synergy_core.errors import UsageError
from synergy_core.ordinary_file import read_lines

MAX_ROWS = 1_000_000
LIMIT_BYTES = 64 << 20  # of a table
JSON_LIMIT_BYTES = 4 << 20  # in memory it is up to 25 times as large


@dataclass(frozen=True)
class TableRow:
    """One line of a table. The getters raise UsageError naming file, line and column."""

    path: Path
    line: int
    values: Mapping[str, str]

    @property
    def where(self) -> str:
        return f"{self.path}:{self.line}"

    def wrong(self, column: str, what: str, right: str = "") -> UsageError:
        return UsageError(f"{self.where}: column {column}", what, right)

    def text(self, column: str) -> str:
        value = (self.values.get(column) or "").strip()
        if not value:
            raise self.wrong(column, "empty")
        return value

    def number(self, column: str, low: float = -math.inf, high: float = math.inf) -> float:
        text = self.text(column)
        try:
            value = float(text)
        except ValueError:
            raise self.wrong(column, f"{text!r} is not a number") from None
        if not math.isfinite(value) or not low <= value <= high:
            raise self.wrong(column, f"{text} is out of bounds", f"it must be from {low:g} to {high:g}")
        return value

    def whole_number(self, column: str, low: int = 0, high: int = 10**12) -> int:
        value = self.number(column, low, high)
        if value != int(value):
            raise self.wrong(column, f"{self.text(column)} is not a whole number")
        return int(value)


def application_folder(row: TableRow, folder: Path) -> Path:
    """Return the folder of the measurements of the row's application. Raises UsageError."""
    kind = row.text("application")
    if not kind.isidentifier() or not (folder / kind).is_dir():
        have = sorted(p.name for p in folder.glob("*") if p.is_dir())
        there = f"{folder} has {', '.join(have)}" if have else f"{folder} has no applications: give --profiles"
        raise row.wrong("application", f"nothing was measured of {kind!r}", there)
    return folder / kind


def read_table(path: Path, columns: Sequence[str], delimiter: str = ",") -> list[TableRow]:
    """Read all rows of a table with a header. Raises UsageError: no such file, a column missing, a row too short or long."""
    return list(parse_table(path, read_lines(path, LIMIT_BYTES), columns, delimiter))


def parse_table(path: Path, lines: Iterable[str], columns: Sequence[str], delimiter: str = ",") -> Iterator[TableRow]:
    """Yield the rows of a table in `lines`; `path` says where they come from, for messages. Raises UsageError as `read_table` does."""
    try:
        reader = csv.reader(lines, delimiter=delimiter)
        header = [name.strip() for name in next(reader, [])]
        missing = [name for name in columns if name not in header]
        if missing:
            raise UsageError(f"{path}:1", f"no column {missing[0]}", f"it must have {', '.join(columns)}")
        for values in reader:
            if reader.line_num > MAX_ROWS:
                raise UsageError(f"{path}:{reader.line_num}", "too long", f"at most {MAX_ROWS} rows")
            if not values:
                continue
            if len(values) != len(header):
                what = f"{len(values)} columns where the header has {len(header)}"
                raise UsageError(f"{path}:{reader.line_num}: column {min(len(values), len(header)) + 1}", what)
            yield TableRow(path, reader.line_num, dict(zip(header, values, strict=True)))
    except OSError as error:
        raise UsageError(str(path), f"can't be read: {error.strerror}") from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise UsageError(str(path), f"is not a table of text: {error}") from None


def in_order(rows: Sequence[TableRow], column: str, time_s: Callable[[TableRow], float]) -> None:
    """Raise UsageError at the first row that was submitted before the one above it."""
    before = -math.inf
    for row in rows:
        now = time_s(row)
        if now < before:
            raise row.wrong(column, f"{row.text(column)} is before the row above", "sort the trace by submission time")
        before = now
