"""A job's `#SYNERGY` lines: read out of its script, and to and from the keys and values of AdminComment (wire/admin_comment.py).

The text of each error is that of slurm_plugins/synergy.lua: both come from synergyd/slurm/directives/grammar.py.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta

from synergy_core.errors import UsageError
from synergy_core.records import Directive
from synergy_core.wire import admin_comment
from synergy_core.wire.admin_comment import AdminCommentStamp

from synergyd.slurm.directives.grammar import (
    BY_NAME,
    CONTINUES,
    IN_USE,
    KEYS,
    LOOP,
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
    """Return the directive of a batch script, or None if it has no `#SYNERGY` line.

    The lines before the first that is neither empty nor a comment are read, as sbatch reads its own. Raises
    DirectiveError, one line naming the script's line and the key.
    """
    texts: dict[str, str] = {}
    lines: dict[str, int] = {}
    last = 0
    for number, line in _directive_lines(script):
        last = number
        try:
            for name, value in words(line, len(PREFIX)):
                key = _key(name)
                if name in texts:
                    raise WordError("duplicate", key=name, line=lines[name])
                texts[name], lines[name] = _check(key, value), number
        except WordError as error:
            raise DirectiveError(number, error.code, error.values) from None
    if not last:
        return None
    try:
        _check_together(texts)
    except WordError as error:
        last = max((lines[name] for name in error.keys if name in lines), default=last)
        raise DirectiveError(last, error.code, error.values) from None
    return _directive(texts)


def directive_key_values(directive: Directive) -> tuple[tuple[str, str], ...]:
    """Return keys and values for AdminComment; keys with their default are left out.

    `read_stamp` is the inverse. Raises DirectiveError for a directive that no script can say.
    """
    try:
        return _stamp({name: _check(BY_NAME[name], _legible(value)) for name, value in _values(directive).items()})
    except WordError as error:
        raise DirectiveError(0, error.code, error.values) from None


def read_stamp(pairs: Iterable[tuple[str, str | None]]) -> Directive:
    """Return the directive of an AdminComment's keys and values (None: can't be decoded). Raises DirectiveError if they are damaged."""
    texts: dict[str, str] = {}
    try:
        for name, value in pairs:
            if value is None or name in texts:
                raise WordError("stamp", word=show(as_bytes(name)))
            texts[name] = _check(_key(as_bytes(name)), _legible(as_bytes(value)))
        _check_together(texts)
    except WordError as error:
        raise DirectiveError(0, error.code, error.values) from None
    return _directive(texts)


def notes(script: str) -> tuple[tuple[int, str], ...]:
    """Return (line, remark) for lines that look like a directive but are not read as one, and for what has no effect any more."""
    command = _COMMAND.search("\n" + script)
    first = len(script) if command is None else command.start()
    numbered_notes: list[tuple[int, str]] = []
    at = 0
    for number, line in enumerate(script.split("\n"), 1):
        if _is_directive(line):
            if at >= first and "<<" not in script[first:at]:  # a here-document may hold another job's script
                numbered_notes.append((number, "; ".join(message("unread_line", {}))))
            numbered_notes += [(number, remark) for remark in _obsolete_remarks(line)]
        elif re.match(r"\s*#+\s*synergy(?=[\s:]|$)", line, re.IGNORECASE):
            numbered_notes.append((number, "; ".join(message("odd_line", {}))))
        at += len(line) + 1
    return tuple(numbered_notes)


def _obsolete_remarks(line: str) -> Iterator[str]:
    """Yield a remark for each key and word of a directive's line that has no effect any more."""
    for key in KEYS:
        value = re.search(rf"\s{key.name}=(\S*)", line)
        if value is None:
            continue
        if key.kind == "retired":
            yield "; ".join(message("retired", {"key": key.name}))
        for word in set(re.split("[,'\"]", value[1])) & set(key.retired_words):
            yield "; ".join(message("retired_word", _retired_word(key, word)))


def _retired_word(key: Key, word: str) -> dict[str, str]:
    return {"key": key.name, "word": word, "example": f"{key.name}={key.example}"}


def calls_launcher(script: str) -> bool:
    """Return whether synergy-launch stands in the script outside its comments, like launches_nothing in slurm_plugins/synergy.lua."""
    return _LAUNCHER.search(_COMMENTS.sub("", script)) is not None


def _directive_lines(script: str) -> list[tuple[int, str]]:
    """Return (number, bytes) of the `#SYNERGY` lines before the first command.

    Raises DirectiveError beyond the bounds. The steps are those of directive_lines in slurm_plugins/synergy.lua,
    which must not take long on any script.
    """
    start = as_bytes(script[: MAX_HEADER + MAX_LINE + 2])  # a character is one byte or more
    limit = min(len(start), MAX_HEADER)
    after = start[limit : limit + 1]
    head = "\n" + start[:limit] + (after or "\n")
    command = _COMMAND.search(head)
    end = len(head) if command is None else command.start() + 1
    lines: list[tuple[int, str]] = []
    number = at = 0
    for match in _DIRECTIVE.finditer(head, 0, end):
        number += head.count("\n", at, match.start() + 1)
        at = match.start() + 1
        if len(lines) == MAX_LINES:
            raise DirectiveError(number, "many_lines", {"max": MAX_LINES})
        line = start[match.start() : match.start() + MAX_LINE + 1].partition("\n")[0]
        if len(line) > MAX_LINE:
            raise DirectiveError(number, "long_line", {"max": MAX_LINE})
        lines.append((number, line))
    if command is None and after and (lines or _directive_beyond(script)):
        raise DirectiveError(head.count("\n", 0, limit + 1), "long_header", {"max": MAX_HEADER})
    return lines


def _directive_beyond(script: str) -> bool:
    """Return whether a `#SYNERGY` line stands before the first command, if the first bytes hold neither."""
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
    """Return `value` (bytes) in its canonical form. Raise WordError."""
    fields = {"key": key.name, "value": show(value), "takes": key.takes()}
    bad = WordError("bad", **fields)
    match key.kind:
        case "text" | "path":
            if not 1 <= len(value) <= key.max_bytes or "\t" in value:
                raise bad
            if value.startswith("-"):
                raise WordError("dash", **fields)
            if "$" in value or "`" in value or value.startswith("~"):
                raise WordError("expand", **fields)
            return value
        case "loop":
            if not re.fullmatch(LOOP, value) or len(value) > key.max_bytes:
                raise bad
            return value
        case "int":
            return str(_number(value, key, bad))
        case "range":
            low, colon, high = value.partition(":")
            first = _number(low, key, bad)
            second = _number(high, key, bad) if colon else first
            if first > second:
                raise WordError("order", **fields)
            return f"{first}:{second}" if first != second else str(first)
        case "names":
            names = value.split(",")
            if len(names) > MAX_NAMES or len(set(names)) != len(names):
                raise bad
            if not all(len(name) <= MAX_NAME and re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]*", name) for name in names):
                raise bad
            return value
        case "words":
            names = value.split(",")
            if not set(names) <= {*key.words, *key.retired_words} or len(set(names)) != len(names):
                raise bad
            return ",".join(name for name in names if name not in key.retired_words) or key.default
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
    """Check a decimal number of at most 6 places. It is compared in millionths so that both readers agree to the last digit."""
    match = re.fullmatch(r"([0-9]{1,9})(?:\.([0-9]{1,6}))?", value)
    if not match:
        raise bad
    whole, places = match[1].lstrip("0") or "0", (match[2] or "").ljust(6, "0")
    if not key.low <= int(whole + places) <= key.high:
        raise bad
    return f"{whole}.{places.rstrip('0')}".rstrip(".")


def _date(value: str, bad: WordError) -> int:
    """Return the seconds since 1970 of `YYYY-MM-DDTHH:MM[:SS][Z|+HH:MM]`; without a zone it is this machine's local time."""
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


def _check_together(texts: Mapping[str, str]) -> None:
    """Check the rules between keys, on canonical values. Raises WordError."""
    least, most = int(texts.get("min_gpus", 0)), int(texts.get("max_gpus", 0))
    per = int(texts.get("tp", 1)) * int(texts.get("pp", 1))
    if most:
        if least > most:
            raise WordError("min_max", ("min_gpus", "max_gpus"), min=least, max=most)
        if per > most:
            raise WordError("degrees", ("tp", "pp", "max_gpus"), per=per, max=most)
        if most // per * per < least:
            better = -(-least // per) * per
            about = ("tp", "pp", "min_gpus", "max_gpus")
            raise WordError("multiple", about, per=per, min=least, max=most, better=better)
    if "micro_batch" in texts and "global_batch" in texts:
        micro = int(texts["micro_batch"])
        if micro > int(texts["global_batch"].rpartition(":")[2]):
            raise WordError("micro", ("micro_batch", "global_batch"), micro=micro, batch=texts["global_batch"])
    if texts.get("adapt") == "yes" and ":" in texts.get("global_batch", ""):
        raise WordError("adapt", ("adapt", "global_batch"), batch=texts["global_batch"])
    if texts.get("resize") == "no" and texts.get("reshard") == "yes":
        raise WordError("reshard", ("resize", "reshard"))
    if "loop" in texts and "checkpoint" not in texts:
        raise WordError("loop", ("loop",))
    _stamp(texts)


def _stamp(texts: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """Return the keys and values of a stamp from canonical values. Raises WordError when its text would be too long."""
    pairs = [(key.name, texts[key.name]) for key in KEYS if key.name in texts and texts[key.name] != key.default]
    stamp = tuple((name, as_text(value)) for name, value in pairs)
    length = len(admin_comment.encode(AdminCommentStamp(stamp)))
    if length > MAX_STAMP:
        raise WordError("long_stamp", ("model", "checkpoint", "gpu_types"), bytes=length, max=MAX_STAMP)
    return stamp


def _legible(value: str) -> str:
    """Return `value` (bytes) if a script's line could hold it. Raises WordError."""
    if column := bad_column(value):
        raise WordError("character", column=column)
    return value


def _directive(texts: Mapping[str, str]) -> Directive:
    """Build the record from canonical values."""

    def text(name: str) -> str | None:
        return as_text(texts[name]) if name in texts else None

    def number(name: str) -> int | None:
        return int(texts[name]) if name in texts else None

    low, colon, high = texts.get("global_batch", "").partition(":")
    return Directive(
        model=text("model"),
        min_gpus=number("min_gpus"),
        max_gpus=number("max_gpus"),
        gpu_types=tuple(texts["gpu_types"].split(",")) if "gpu_types" in texts else (),
        global_batch=(int(low), int(high if colon else low)) if low else None,
        micro_batch=number("micro_batch"),
        max_micro_batch=number("max_micro_batch"),
        tp=number("tp"),
        pp=number("pp"),
        weight=float(texts.get("weight", "1")),
        checkpoint=text("checkpoint"),
        resize=texts.get("resize", "yes") == "yes",
        reshard=texts["reshard"] == "yes" if "reshard" in texts else None,
        deadline_s=float(texts["deadline"]) if "deadline" in texts else None,
        continues=int(texts.get("walltime", "").partition(":")[2] or 0),
        notify=tuple(texts["notify"].split(",")) if "notify" in texts else (),
        loop=text("loop") or "",
        adapt=texts.get("adapt", "no") == "yes",
        skip_spikes=texts.get("skip_spikes", "no") == "yes",
        comm=tuple(texts["comm"].split(",")) if texts.get("comm", "exact") != "exact" else (),
    )


def _values(directive: Directive) -> dict[str, str]:
    """Return the values of a record as a script would write them (bytes)."""
    values: dict[str, object] = {
        "model": directive.model,
        "min_gpus": directive.min_gpus,
        "max_gpus": directive.max_gpus,
        "gpu_types": ",".join(directive.gpu_types) or None,
        "global_batch": directive.global_batch and f"{directive.global_batch[0]}:{directive.global_batch[1]}",
        "loop": directive.loop or None,
        "adapt": "yes" if directive.adapt else "no",
        "skip_spikes": "yes" if directive.skip_spikes else "no",
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
