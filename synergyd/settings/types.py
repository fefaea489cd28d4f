"""The ways in which the value of a setting is written in slurm.conf: a type's name, reader, writer, and what it takes."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from synergy_core.link_names import NETWORK_LINKS, parse_link, parse_measured_link

_SECONDS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_NAME = re.compile(r"[A-Za-z0-9_.+-]{1,64}")


@dataclass(frozen=True, kw_only=True)
class ValueType:
    """A kind of value and its bounds."""

    #: what a value may be, for error lines and the reference page
    takes: str
    #: the value of a text; raises ValueError
    read: Callable[[str], Any]
    #: the text of a value
    write: Callable[[Any], str] = str


def number(low: float, high: float, takes: str, *, or_zero: bool = False, above: bool = False) -> ValueType:
    """Return the type of a number from `low` (with `above`: from more than that) to `high`. With `or_zero` 0 is allowed too."""

    def read(text: str) -> float:
        value = float(text) if re.fullmatch(r"[+-]?([0-9]{1,9}(\.[0-9]{1,9})?|\.[0-9]{1,9})", text) else None
        if value is None or not ((low <= value <= high and not (above and value == low)) or (or_zero and value == 0)):
            raise ValueError(text)
        return value

    return ValueType(takes=takes, read=read, write=_number_text)


def duration(low_s: float, high_s: float, takes: str) -> ValueType:
    """Return the type of a number of seconds. With m, h or d behind it the number is of minutes, hours or days."""

    def read(text: str) -> float:
        match = re.fullmatch(r"([0-9]{1,9}(?:\.[0-9]{1,3})?)([smhd]?)", text)
        if not match or not low_s <= float(match[1]) * _SECONDS[match[2]] <= high_s:
            raise ValueError(text)
        return float(match[1]) * _SECONDS[match[2]]

    return ValueType(takes=takes, read=read, write=_seconds_text)


def one_of(words: Sequence[str], takes: str) -> ValueType:
    """Return the type of one of `words`."""

    def read(text: str) -> str:
        if text not in words:
            raise ValueError(text)
        return text

    return ValueType(takes=takes, read=read)


def by_name(value: ValueType, takes: str, prefix: str = "") -> ValueType:
    """Return the type of `NAME:VALUE,NAME:VALUE`, no name twice, as a dict. `prefix` may stand before a name."""

    def read(text: str) -> dict[str, Any]:
        pairs: dict[str, Any] = {}
        for item in text.split(","):
            name, _, written = item.rpartition(":")
            if name in pairs or not _NAME.fullmatch(name.removeprefix(prefix)):
                raise ValueError(text)
            pairs[name] = value.read(written)
        return pairs

    def write(pairs: Mapping[str, float]) -> str:
        return ",".join(f"{name}:{value.write(each)}" for name, each in pairs.items())

    return ValueType(takes=takes, read=read, write=write)


def figures(takes: str) -> ValueType:
    """Return the type of a line of `FIGURE=NUMBER`. Its `read` takes one of the numbers, its `write` a dict of all."""

    def write(numbers: Mapping[str, float]) -> str:
        return " ".join(f"{name}={numbers[name]:g}" for name in numbers)

    return ValueType(takes=takes, read=number(0.001, 1_000_000, "").read, write=write)


def _number_text(value: float) -> str:
    return f"{value:g}"


def _seconds_text(value: float) -> str:
    return f"{value:.15g}s"


def _yes(text: str) -> bool:
    word = text.lower()
    if word not in ("yes", "true", "1", "no", "false", "0"):
        raise ValueError(text)
    return word in ("yes", "true", "1")


def _yes_text(value: bool) -> str:
    return "yes" if value else "no"


def _weight_source(text: str) -> str:
    return "fair-share" if text.lower() == "fair-share" else _yes_text(_yes(text))


def _port(text: str) -> int:
    if not re.fullmatch("[0-9]{1,5}", text) or int(text) > 65535:
        raise ValueError(text)
    return int(text)


def _gpus(text: str) -> int:
    if not re.fullmatch("[0-9]{1,7}", text):
        raise ValueError(text)
    return int(text)


def _path(text: str) -> Path:
    if not text.startswith("/") or ".." in Path(text).parts or len(text) > 1024:
        raise ValueError(text)
    return Path(text)


def _count(text: str) -> int:
    if not re.fullmatch("[0-9]{1,5}", text):
        raise ValueError(text)
    return int(text)


def _spares(text: str) -> float:
    match = re.fullmatch(r"([0-9]{1,5})(%?)", text)
    value = (int(match[1]) / 100 if match[2] else int(match[1])) if match else 0
    if not value or (match and match[2] and value >= 1):
        raise ValueError(text)
    return value


def _spares_text(value: float) -> str:
    return f"{value:g}" if value >= 1 else f"{100 * value:g}%"


def _day_times(text: str) -> tuple[tuple[int, int], ...]:
    spans = []
    for item in text.split(","):
        match = re.fullmatch(r"([01]\d|2[0-3]):([0-5]\d)-([01]\d|2[0-4]):([0-5]\d)", item)
        begin, end = (int(match[1]) * 60 + int(match[2]), int(match[3]) * 60 + int(match[4])) if match else (0, 0)
        if begin == end or end > 1440:
            raise ValueError(text)
        spans.append((begin, end))
    return tuple(spans)


def _day_times_text(spans: Sequence[tuple[int, int]]) -> str:
    return ",".join("-".join(f"{minute // 60:02d}:{minute % 60:02d}" for minute in span) for span in spans)


def _names(text: str) -> tuple[str, ...]:
    names = tuple(text.split(","))
    if len(set(names)) != len(names) or not all(_NAME.fullmatch(name) for name in names):
        raise ValueError(text)
    return names


def _host(text: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,252}[A-Za-z0-9])?|[0-9A-Fa-f:.]{2,45}", text):
        raise ValueError(text)
    return text


def _database(text: str) -> str:
    if not re.match(r"(sqlite|postgresql)(\+[\w+]*)?://", text):
        raise ValueError(text)
    return text


def _web(text: str) -> str:
    """Return `text` if it is a web address: https, or plain http to this machine alone. Raises ValueError otherwise."""
    match = re.fullmatch(
        r"(https?)://([A-Za-z0-9.-]{1,253}|\[[0-9A-Fa-f:]{2,45}\])(:[0-9]{1,5})?(/[!-~]{0,900})?", text
    )
    here = match is not None and match[2] in ("127.0.0.1", "localhost", "[::1]")
    if match is None or (match[1] == "http" and not here) or int((match[3] or ":443")[1:]) > 65535:
        raise ValueError(text)
    return text


def _link(text: str) -> str:
    kind, figures = parse_measured_link(text)
    count, name = parse_link(kind) or (0, "")
    if name not in NETWORK_LINKS:
        raise ValueError(text)
    measured = f"@{figures[0]:g}+{figures[1]:g}" if figures else ""
    return (f"{count}x{name}" if count > 1 else name) + measured


def _uplink(text: str) -> str:
    return "" if text.lower() == "none" else _link(text)


def _rule(text: str) -> str:
    if not re.fullmatch(r"look-ahead|ada-srsf|srsf-[1-9][0-9]{0,2}", text):
        raise ValueError(text)
    return text


def _placement(text: str) -> str:
    if not re.fullmatch(r"pack|lwf-[0-9]{1,4}", text):
        raise ValueError(text)
    return text


_LINKS = f"{', '.join(NETWORK_LINKS)}; 4x10gbe for several together; 10gbe@B+H with measured ms/MB"
FLAG = ValueType(takes="yes or no", read=_yes, write=_yes_text)
WEIGHT_SOURCE = ValueType(takes="yes, no or fair-share", read=_weight_source)
PORT = ValueType(takes="a port from 1 to 65535, or 0 for none", read=_port)
GPUS = ValueType(takes="a number of GPUs", read=_gpus)
COUNT = ValueType(takes="a whole number to 99999, 0 for no bound", read=_count)
#: a whole number, or a share below 1
SPARES = ValueType(takes="a number of nodes or 1% to 99%", read=_spares, write=_spares_text)
DAY_TIMES = ValueType(
    takes="spans of the day with commas between, such as 08:00-18:00,22:30-06:00",
    read=_day_times,
    write=_day_times_text,
)
NAMES = ValueType(takes="names of partitions with commas between", read=_names, write=",".join)
HOST = ValueType(takes="a host's name or address", read=_host)
#: `read` looks at the URL's start alone; slurm/conf.py asks SQLAlchemy about the rest
DATABASE = ValueType(takes="sqlite:////FILE or postgresql+psycopg://USER@HOST/NAME", read=_database)
WEB = ValueType(takes="https://HOST/PATH, or http:// to 127.0.0.1", read=_web)
LINK = ValueType(takes=_LINKS, read=_link)
UPLINK = ValueType(takes=f"none, or {_LINKS}", read=_uplink, write=lambda link: link or "none")
RULE = ValueType(takes="look-ahead, ada-srsf or srsf-N, such as srsf-1", read=_rule)
PLACEMENT = ValueType(takes="pack or lwf-N, such as lwf-1", read=_placement)


def path(takes: str) -> ValueType:
    """Return the type of an absolute path without `..`."""
    return ValueType(takes=takes, read=_path)


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One Key of slurm.conf."""

    #: as slurm.conf spells it
    key: str
    #: its field of Settings
    field: str = ""
    type: ValueType
    #: what it does, a paragraph
    text: str
    #: where the default is to set nothing: the rule that then holds
    unset: str = ""
    #: where the default is to set nothing: a value
    example: str = ""


def about(key: str, value_type: ValueType, text: str, *, unset: str = "", example: str = "") -> dict[str, Setting]:
    """Return the metadata of its field."""
    return {"setting": Setting(key=key, type=value_type, text=text, unset=unset, example=example)}
