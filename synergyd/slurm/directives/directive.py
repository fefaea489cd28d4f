"""A job's `#SYNERGY` lines: read out of its script, and to and from the keys and values of AdminComment (wire/admin_comment.py).

The text of each error is that of slurm_plugins/synergy.lua: both come from synergyd/slurm/directives/grammar.py.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta

from synergyd.errors import UsageError
from synergyd.records import Directive
from synergyd.slurm.directives.grammar import (
    BY_NAME,
    CONTINUES,
    IN_USE,
    KEYS,
    MAX_HEADER,
    MAX_LINE,
    MAX_LINES,
    MAX_LOOK,
    MAX_NAME,
    MAX_NAMES,
    MAX_STAMP,
    Key,
    message,
)
from synergyd.slurm.directives.tokenizer import WordError, as_bytes, as_text, bad_column, nearest, show, words
from synergyd.wire import admin_comment
from synergyd.wire.admin_comment import AdminCommentStamp

PREFIX = "#SYNERGY"
_SPACE = " \t\r\v\f"
_LAUNCHER, _COMMENTS = re.compile("synergy[-_]launch"), re.compile(r"^[ \t]*#[^\n]*", re.MULTILINE)
_COMMAND = re.compile(r"\n[ \t\r\v\f]*[^# \t\r\v\f\n]")  # in a text that begins with a line end
_DIRECTIVE = re.compile(rf"\n{PREFIX}(?=[ \t\r\v\f\n])")
_DATE = re.compile(r"([0-9]{4})-([0-9]{2})-([0-9]{2})T([0-9]{2}):([0-9]{2})(?::([0-9]{2}))?(Z|[+-][0-9]{2}:[0-9]{2})?")


class DirectiveError(UsageError):
    """A wrong directive: `line` is the script's line (0 when the text is a stamp), `code` one of grammar.MESSAGES."""

    def __init__(self, line: int, code: str, values: Mapping[str, object]) -> None:
        self.line, self.code = line, code
        where = f"#SYNERGY in script line {line}" if line else "AdminComment"
        super().__init__(where, *message(code, values))


def parse_script(script: str) -> Directive | None:
    """The directive of a batch script, None if it has no `#SYNERGY` line.

    Read are the lines before the first that is neither empty nor a comment, as sbatch reads its own. Raises
    DirectiveError, one line naming the script's line and the key.
    """
    found: dict[str, str] = {}
    lines: dict[str, int] = {}
    last = 0
    for number, line in _directive_lines(script):
        last = number
        try:
            for name, value in words(line, len(PREFIX)):
                key = _key(name)
                if name in found:
                    raise WordError("duplicate", key=name, line=lines[name])
                found[name], lines[name] = _check(key, value), number
        except WordError as error:
            raise DirectiveError(number, error.code, error.values) from None
    if not last:
        return None
    try:
        _check_together(found)
    except WordError as error:
        last = max((lines[name] for name in error.keys if name in lines), default=last)
        raise DirectiveError(last, error.code, error.values) from None
    return _directive(found)


def directive_words(directive: Directive) -> tuple[tuple[str, str], ...]:
    """Keys and values for AdminComment; keys with their default are left out. `read_stamp` is the inverse.

    Raises DirectiveError for a directive that no script can say.
    """
    try:
        return _stamp({name: _check(BY_NAME[name], _legible(value)) for name, value in _values(directive).items()})
    except WordError as error:
        raise DirectiveError(0, error.code, error.values) from None


def read_stamp(stamped: Iterable[tuple[str, str | None]]) -> Directive:
    """The directive of an AdminComment's keys and values (None: can't be decoded). Raises DirectiveError where they are damaged."""
    found: dict[str, str] = {}
    try:
        for name, value in stamped:
            if value is None or name in found:
                raise WordError("stamp", word=show(as_bytes(name)))
            found[name] = _check(_key(as_bytes(name)), _legible(as_bytes(value)))
        _check_together(found)
    except WordError as error:
        raise DirectiveError(0, error.code, error.values) from None
    return _directive(found)


def notes(script: str) -> tuple[tuple[int, str], ...]:
    """(line, remark) for lines that look like a directive but are not read as one."""
    command = _COMMAND.search("\n" + script)
    first = len(script) if command is None else command.start()
    found: list[tuple[int, str]] = []
    at = 0
    for number, line in enumerate(script.split("\n"), 1):
        if _is_directive(line):
            if at >= first:
                found.append((number, "stands after the first command, so it is not read; move it to the top"))
            for name in BY_NAME.keys() - set(IN_USE):
                if re.search(rf"\s{name}=", line):
                    found.append((number, "; ".join(message("retired", {"key": name}))))
        elif re.match(r"\s*#+\s*synergy(?=[\s:]|$)", line, re.IGNORECASE):
            found.append((number, f"is not read; a line begins with {PREFIX} and a blank"))
        at += len(line) + 1
    return tuple(found)


def calls_launcher(script: str) -> bool:
    """Return whether synergy-launch stands in the script outside of its comments, as launches_nothing in slurm_plugins/synergy.lua has
    it."""
    return _LAUNCHER.search(_COMMENTS.sub("", script)) is not None


def _directive_lines(script: str) -> list[tuple[int, str]]:
    """(number, bytes) of the `#SYNERGY` lines before the first command. Raises DirectiveError beyond the bounds.

    The same steps as directive_lines in slurm_plugins/synergy.lua, which must not take long on any script.
    """
    start = as_bytes(script[: MAX_HEADER + MAX_LINE + 2])  # a character is one byte or more
    limit = min(len(start), MAX_HEADER)
    after = start[limit : limit + 1]
    head = "\n" + start[:limit] + (after or "\n")
    command = _COMMAND.search(head)
    end = len(head) if command is None else command.start() + 1
    found: list[tuple[int, str]] = []
    number = at = 0
    for match in _DIRECTIVE.finditer(head, 0, end):
        number += head.count("\n", at, match.start() + 1)
        at = match.start() + 1
        if len(found) == MAX_LINES:
            raise DirectiveError(number, "many_lines", {"max": MAX_LINES})
        line = start[match.start() : match.start() + MAX_LINE + 1].partition("\n")[0]
        if len(line) > MAX_LINE:
            raise DirectiveError(number, "long_line", {"max": MAX_LINE})
        found.append((number, line))
    if command is None and after and (found or _directive_beyond(script)):
        raise DirectiveError(head.count("\n", 0, limit + 1), "long_header", {"max": MAX_HEADER})
    return found


def _directive_beyond(script: str) -> bool:
    """Whether a `#SYNERGY` line stands before the first command, where the first bytes hold neither."""
    text = "\n" + as_bytes(script[:MAX_LOOK])[:MAX_LOOK] + "\n"
    match = _DIRECTIVE.search(text)
    return match is not None and not _COMMAND.search(text, 0, match.start() + 1)


def _is_directive(line: str) -> bool:
    return line.startswith(PREFIX) and (len(line) == len(PREFIX) or line[len(PREFIX)] in _SPACE)


def _key(name: str) -> Key:
    key = BY_NAME.get(name)
    if key is None:
        near = nearest(name, IN_USE)
        if near:
            raise WordError("nearest", word=show(name), nearest=near)
        raise WordError("unknown", word=show(name), known=", ".join(IN_USE))
    return key


def _check(key: Key, value: str) -> str:
    """`value` (bytes) in its canonical form. Raises WordError."""
    named = {"key": key.name, "value": show(value), "takes": key.takes()}
    bad = WordError("bad", **named)
    match key.kind:
        case "text" | "path":
            if not 1 <= len(value) <= key.max_bytes or "\t" in value:
                raise bad
            if value.startswith("-"):
                raise WordError("dash", **named)
            if "$" in value or "`" in value or value.startswith("~"):
                raise WordError("expand", **named)
            return value
        case "int":
            return str(_number(value, key, bad))
        case "range":
            low, colon, high = value.partition(":")
            first = _number(low, key, bad)
            second = _number(high, key, bad) if colon else first
            if first > second:
                raise WordError("order", **named)
            return f"{first}:{second}" if first != second else str(first)
        case "names":
            names = value.split(",")
            if len(names) > MAX_NAMES or len(set(names)) != len(names):
                raise bad
            if not all(len(name) <= MAX_NAME and re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]*", name) for name in names):
                raise bad
            return value
        case "words":
            if not set(names := value.split(",")) <= set(key.words) or len(set(names)) != len(names):
                raise bad
            return value
        case "float":
            return _decimal(value, key, bad)
        case "flag":
            if value not in ("yes", "no"):
                raise bad
            return value
        case "retired":
            return key.default
        case "walltime":
            word, colon, times = value.partition(":")
            if word == "stop" and not colon:
                return word
            if word != "continue":
                raise bad
            return f"continue:{_number(times, key, bad) if colon else CONTINUES}"
        case _:
            seconds = int(value) if re.fullmatch("[0-9]{1,10}", value) else _date(value, bad)
            if not key.low <= seconds <= key.high:
                raise bad
            return str(seconds)


def _number(value: str, key: Key, bad: WordError) -> int:
    if not re.fullmatch("[0-9]{1,9}", value) or not key.low <= int(value) <= key.high:
        raise bad
    return int(value)


def _decimal(value: str, key: Key, bad: WordError) -> str:
    """A decimal number of at most 6 places, compared in millionths so that both readers agree to the last digit."""
    match = re.fullmatch(r"([0-9]{1,9})(?:\.([0-9]{1,6}))?", value)
    if not match:
        raise bad
    whole, places = match[1].lstrip("0") or "0", (match[2] or "").ljust(6, "0")
    if not key.low <= int(whole + places) <= key.high:
        raise bad
    return f"{whole}.{places.rstrip('0')}".rstrip(".")


def _date(value: str, bad: WordError) -> int:
    """Seconds since 1970 of `YYYY-MM-DDTHH:MM[:SS][Z|+HH:MM]`; without a zone it is this machine's local time."""
    match = _DATE.fullmatch(value)
    if not match:
        raise bad
    year, month, day, hour, minute, second = (int(part or 0) for part in match.groups()[:6])
    zone = match[7]
    try:
        moment = datetime(year, month, day, hour, minute, second, tzinfo=UTC)
    except ValueError:  # no such day or hour
        raise bad from None
    if not 2000 <= year <= 2099:
        raise bad
    if zone is None:
        # mktime, as Lua's os.time: the two agree on the hours that a clock change skips or repeats.
        return int(time.mktime((year, month, day, hour, minute, second, 0, 1, -1)))
    if zone != "Z":
        hours, minutes = int(zone[1:3]), int(zone[4:6])
        if hours > 14 or minutes > 59:
            raise bad
        offset = timedelta(hours=hours, minutes=minutes)
        moment = moment - offset if zone[0] == "+" else moment + offset
    return int(moment.timestamp())


def _check_together(found: Mapping[str, str]) -> None:
    """The rules between keys, on canonical values. Raises WordError."""
    least, most = int(found.get("min_gpus", 0)), int(found.get("max_gpus", 0))
    per = int(found.get("tp", 1)) * int(found.get("pp", 1))
    if most:
        if least > most:
            raise WordError("min_max", ("min_gpus", "max_gpus"), min=least, max=most)
        if per > most:
            raise WordError("degrees", ("tp", "pp", "max_gpus"), per=per, max=most)
        if most // per * per < least:
            better = -(-least // per) * per
            about = ("tp", "pp", "min_gpus", "max_gpus")
            raise WordError("multiple", about, per=per, min=least, max=most, better=better)
    if "micro_batch" in found and "global_batch" in found:
        micro = int(found["micro_batch"])
        if micro > int(found["global_batch"].rpartition(":")[2]):
            raise WordError("micro", ("micro_batch", "global_batch"), micro=micro, batch=found["global_batch"])
    if found.get("adapt") == "yes" and ":" in found.get("global_batch", ""):
        raise WordError("adapt", ("adapt", "global_batch"), batch=found["global_batch"])
    if found.get("resize") == "no" and found.get("reshard") == "yes":
        raise WordError("reshard", ("resize", "reshard"))
    _stamp(found)


def _stamp(found: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """Keys and values of a stamp from canonical values. Raises WordError when its text would be too long."""
    said = [(key.name, found[key.name]) for key in KEYS if key.name in found and found[key.name] != key.default]
    stamped = tuple((name, as_text(value)) for name, value in said)
    length = len(admin_comment.encode(AdminCommentStamp(stamped)))
    if length > MAX_STAMP:
        raise WordError("long_stamp", ("model", "checkpoint", "gpu_types"), bytes=length, max=MAX_STAMP)
    return stamped


def _legible(value: str) -> str:
    """`value` (bytes) if a script's line could hold it. Raises WordError."""
    if column := bad_column(value):
        raise WordError("character", column=column)
    return value


def _directive(found: Mapping[str, str]) -> Directive:
    """The record of canonical values."""

    def text(name: str) -> str | None:
        return as_text(found[name]) if name in found else None

    def number(name: str) -> int | None:
        return int(found[name]) if name in found else None

    low, colon, high = found.get("global_batch", "").partition(":")
    return Directive(
        model=text("model"),
        min_gpus=number("min_gpus"),
        max_gpus=number("max_gpus"),
        gpu_types=tuple(found["gpu_types"].split(",")) if "gpu_types" in found else (),
        global_batch=(int(low), int(high if colon else low)) if low else None,
        micro_batch=number("micro_batch"),
        max_micro_batch=number("max_micro_batch"),
        tp=number("tp"),
        pp=number("pp"),
        weight=float(found.get("weight", "1")),
        checkpoint=text("checkpoint"),
        resize=found.get("resize", "yes") == "yes",
        reshard=found["reshard"] == "yes" if "reshard" in found else None,
        deadline_s=float(found["deadline"]) if "deadline" in found else None,
        continues=int(found.get("walltime", "").partition(":")[2] or 0),
        notify=tuple(found["notify"].split(",")) if "notify" in found else (),
        adapt=found.get("adapt", "no") == "yes",
        comm=tuple(found["comm"].split(",")) if found.get("comm", "exact") != "exact" else (),
    )


def _values(directive: Directive) -> dict[str, str]:
    """The values of a record as a script would write them (bytes)."""
    values: dict[str, object] = {
        "model": directive.model,
        "min_gpus": directive.min_gpus,
        "max_gpus": directive.max_gpus,
        "gpu_types": ",".join(directive.gpu_types) or None,
        "global_batch": directive.global_batch and f"{directive.global_batch[0]}:{directive.global_batch[1]}",
        "adapt": "yes" if directive.adapt else "no",
        "micro_batch": directive.micro_batch,
        "max_micro_batch": directive.max_micro_batch,
        "tp": directive.tp,
        "pp": directive.pp,
        "weight": f"{directive.weight:.6f}",
        "checkpoint": directive.checkpoint,
        "resize": "yes" if directive.resize else "no",
        "reshard": None if directive.reshard is None else "yes" if directive.reshard else "no",
        "deadline": None if directive.deadline_s is None else int(directive.deadline_s),
        "walltime": f"continue:{directive.continues}" if directive.continues else None,
        "comm": ",".join(directive.comm) or None,
        "notify": ",".join(directive.notify) or None,
    }
    return {name: as_bytes(str(value)) for name, value in values.items() if value is not None}
