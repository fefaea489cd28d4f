"""Records to JSON values and back: the codec of reports, plan files, the link protocol and the store.

Loading is strict about types and ignores unknown fields, so the output of a newer version still reads.
"""

from __future__ import annotations

import math
import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from functools import cache
from typing import Any, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from synergy_core.errors import UsageError, format_value

T = TypeVar("T")
# Checks by type of record: each returns what is wrong with a record whose types are right ("FIELD is ..."), "" if nothing is.
Checks = Mapping[type, Callable[[Any], str]]

# JSON has no names for these; they travel as text and come back where a float is expected.
_NOT_FINITE = {"inf": math.inf, "-inf": -math.inf, "nan": math.nan}


def clean(text: str) -> str:
    """Return `text` as files and databases can hold it. NUL and lone surrogates (a job name that is not UTF-8) become escapes."""
    if text.isascii() and "\x00" not in text:
        return text
    return text.replace("\x00", "\\x00").encode("utf-8", "backslashreplace").decode()


def encode(value: object) -> Any:
    """Return a record, or anything made of records, containers, numbers and text, as JSON-able values.

    Dataclasses become dicts of their fields, as synergy_core.field_marks says (added fields only if they are not the default, renamed
    ones under their former name), enums their value (or their `stored_value`), tuples and sets lists, float infinities and NaN text.
    Raises TypeError for anything else.
    """
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, Enum):
        return encode(getattr(value, "stored_value", value.value))
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else str(float(value))
    if is_dataclass(value) and not isinstance(value, type):
        return {key: encode(getattr(value, name)) for name, key in _written_names(value)}
    if isinstance(value, Mapping):
        return {clean(str(k)): encode(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [encode(v) for v in value]
    if isinstance(value, (set, frozenset)):
        return sorted((encode(v) for v in value), key=repr)
    raise TypeError(f"JSON can't hold a {type(value).__name__}")


def decode(cls: type[T], data: object, where: str = "", checks: Checks = types.MappingProxyType({})) -> T:
    """Return the record of dataclass (or the member of enum) `cls` that `encode` made `data` of.

    Fields absent from `data` take their default; fields unknown to `cls` are ignored; a field's metadata may hold a function, `today`,
    that makes today's value of a removed one; `checks` are asked of each record
    on the way. Raise UsageError (one line with `where`, the field's path, what is right) for a missing field without
    default, a value of the wrong type or a record that fails its check.
    """
    return cast(T, _Decoder(where or cls.__name__, checks).value(cls, data, ""))


def _written_names(record: Any) -> Iterator[tuple[str, str]]:
    """Yield the name of each field that is written, and the name under which it is written."""
    kind: Any = type(record)
    names, later = _names(kind)
    yield from names
    for name, key, default in later:
        if getattr(record, name) != default:
            yield name, key


@cache
def _names(cls: Any) -> tuple[tuple[tuple[str, str], ...], tuple[tuple[str, str, Any], ...]]:
    """Return (name, written name) of the fields that are always written, and (name, written name, default) of the others."""
    keys = {f.name: f.metadata.get("stored_as", f.name) for f in fields(cls)}
    later = tuple((f.name, keys[f.name], f.default) for f in fields(cls) if "later" in f.metadata)
    return tuple((f.name, keys[f.name]) for f in fields(cls) if "later" not in f.metadata), later


@cache
def _fields(cls: type) -> tuple[tuple[str, str, Any, bool, Callable[[Any], Any] | None], ...]:
    """Return (name, written name, type, whether it must be there, the function that makes today's value of an older one) of each field."""
    hints = get_type_hints(cls)
    return tuple(
        (
            f.name,
            f.metadata.get("stored_as", f.name),
            hints[f.name],
            f.default is MISSING and f.default_factory is MISSING,
            f.metadata.get("today"),
        )
        for f in fields(cls)
    )


class _Decoder:
    """A decoder of one value. `where` names the whole, a `path` the place in it ("" for the whole itself)."""

    def __init__(self, where: str, checks: Checks) -> None:
        self._where, self._checks = where, checks

    def value(self, kind: Any, data: object, path: str) -> object:
        origin = get_origin(kind)
        if origin in (Union, types.UnionType):
            options = get_args(kind)
            if data is None and type(None) in options:
                return None
            (rest,) = [o for o in options if o is not type(None)]
            return self.value(rest, data, path)
        if origin is tuple:
            return self._tuple(get_args(kind), data, path)
        if origin is dict:
            if not isinstance(data, Mapping):
                raise self._wrong(path, data, "a table of names and values")
            return {str(k): self.value(get_args(kind)[1], v, f"{path}.{k}") for k, v in data.items()}
        if is_dataclass(kind):
            return self._record(cast(type, kind), data, path)
        if isinstance(kind, type) and issubclass(kind, Enum):
            if isinstance(data, str | int):
                try:
                    return kind(data)
                except ValueError:
                    pass
            raise self._wrong(path, data, "one of " + ", ".join(str(m.value) for m in kind))
        return self._scalar(kind, data, path)

    def _wrong(self, path: str, data: object, expectation: str) -> UsageError:
        return UsageError(self._where, f"{path} is {format_value(data)}".strip(), f"expected {expectation}")

    def _scalar(self, kind: Any, data: object, path: str) -> object:
        if kind is float:
            if isinstance(data, str) and data in _NOT_FINITE:
                return _NOT_FINITE[data]
            if isinstance(data, (int, float)) and not isinstance(data, bool):
                try:
                    return float(data)
                except OverflowError:
                    pass
            raise self._wrong(path, data, "a number")
        if kind is int:
            if isinstance(data, int) and not isinstance(data, bool):
                return data
            raise self._wrong(path, data, "a whole number")
        if kind is bool:
            if isinstance(data, bool):
                return data
            raise self._wrong(path, data, "true or false")
        if kind is str:
            if isinstance(data, str):
                return data
            raise self._wrong(path, data, "text")
        if kind in (object, Any):
            return data
        raise TypeError(f"{path}: fields of type {kind!r} can't be read")  # a programmer's mistake, met by the tests

    def _tuple(self, items: tuple[Any, ...], data: object, path: str) -> tuple[object, ...]:
        if not isinstance(data, (list, tuple)):
            raise self._wrong(path, data, "a list")
        if len(items) == 2 and items[1] is Ellipsis:
            items = (items[0],) * len(data)
        if len(items) != len(data):
            raise self._wrong(path, data, f"a list of {len(items)}")
        return tuple(self.value(k, v, f"{path}[{i}]") for i, (k, v) in enumerate(zip(items, data, strict=True)))

    def _record(self, cls: type, data: object, path: str) -> object:
        if not isinstance(data, Mapping):
            raise self._wrong(path, data, f"a {cls.__name__} (a table of names and values)")
        inside = f"{path}." if path else ""
        values: dict[str, object] = {}
        for name, stored_as, kind, needed, today in _fields(cls):
            key = stored_as if stored_as in data else name
            if key in data:
                value = self.value(kind, data[key], inside + key)
                values[name] = value if today is None else today(value)
            elif needed:
                raise UsageError(self._where, f"{inside}{name} is missing")
        record = cls(**values)
        if (check := self._checks.get(cls)) is not None and (problem := check(record)):
            raise UsageError(self._where, inside + problem)
        return record
