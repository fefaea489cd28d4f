"""Records to JSON-able values and back.

Loading is strict about types and lenient about fields it does not know: a database written by a newer version still
reads.
"""

from __future__ import annotations

import math
import types
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from functools import cache
from typing import Any, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from synergyd.errors import UsageError

T = TypeVar("T")

# JSON has no names for these; they travel as text and come back where a float is expected.
_NOT_FINITE = {"inf": math.inf, "-inf": -math.inf, "nan": math.nan}


class RefusedError(UsageError):
    """The database is there but this very row can't be written, now or later."""


def clean(text: str) -> str:
    """`text` as both databases can hold it: NUL and lone surrogates (a job name that is not UTF-8) become escapes."""
    if text.isascii() and "\x00" not in text:
        return text
    return text.replace("\x00", "\\x00").encode("utf-8", "backslashreplace").decode()


def encode(value: object) -> Any:
    """A record, or anything made of records, containers, numbers and text, as JSON-able values.

    Dataclasses become dicts of their fields, enums their value, tuples and sets lists, float infinities and NaN text.
    Raises RefusedError for anything else.
    """
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, Enum):
        return encode(value.value)
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else str(float(value))
    if is_dataclass(value) and not isinstance(value, type):
        return {f.name: encode(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, Mapping):
        return {clean(str(k)): encode(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [encode(v) for v in value]
    if isinstance(value, (set, frozenset)):
        return sorted((encode(v) for v in value), key=repr)
    raise RefusedError("store", f"can't store a {type(value).__name__}", "store records, containers, numbers and text")


def decode(cls: type[T], data: object, where: str = "") -> T:
    """The record of dataclass (or the member of enum) `cls` that `encode` made `data` of.

    Fields absent from `data` take their default; fields unknown to `cls` are ignored. Raises UsageError (one line
    naming `where` and the field) for a missing field without default or a value of the wrong type.
    """
    return cast(T, _decode(cls, data, where or cls.__name__))


@cache
def _hints(cls: type) -> dict[str, Any]:
    return get_type_hints(cls)


def _wrong(where: str, data: object, wanted: str) -> UsageError:
    return UsageError(where, f"{data!r:.80} is not {wanted}")


def _decode(kind: Any, data: object, where: str) -> object:
    origin = get_origin(kind)
    if origin in (Union, types.UnionType):
        options = get_args(kind)
        if data is None and type(None) in options:
            return None
        (rest,) = [o for o in options if o is not type(None)]
        return _decode(rest, data, where)
    if origin is tuple:
        return _decode_tuple(get_args(kind), data, where)
    if origin is dict:
        return _decode_dict(get_args(kind), data, where)
    if is_dataclass(kind):
        return _decode_record(cast(type, kind), data, where)
    if isinstance(kind, type) and issubclass(kind, Enum):
        try:
            return kind(data)
        except ValueError:
            raise _wrong(where, data, "one of " + ", ".join(str(m.value) for m in kind)) from None
    return _decode_scalar(kind, data, where)


def _decode_scalar(kind: Any, data: object, where: str) -> object:
    if kind is float:
        if isinstance(data, str) and data in _NOT_FINITE:
            return _NOT_FINITE[data]
        if isinstance(data, (int, float)) and not isinstance(data, bool):
            try:
                return float(data)
            except OverflowError:
                pass
        raise _wrong(where, data, "a number")
    if kind is int:
        if isinstance(data, int) and not isinstance(data, bool):
            return data
        raise _wrong(where, data, "a whole number")
    if kind is bool:
        if isinstance(data, bool):
            return data
        raise _wrong(where, data, "true or false")
    if kind is str:
        if isinstance(data, str):
            return data
        raise _wrong(where, data, "text")
    if kind in (object, Any):
        return data
    raise TypeError(f"{where}: fields of type {kind!r} can't be stored")  # a programmer's mistake, met by the tests


def _decode_tuple(items: tuple[Any, ...], data: object, where: str) -> tuple[object, ...]:
    if not isinstance(data, (list, tuple)):
        raise _wrong(where, data, "a list")
    if len(items) == 2 and items[1] is Ellipsis:
        return tuple(_decode(items[0], v, f"{where}[{i}]") for i, v in enumerate(data))
    if len(items) != len(data):
        raise _wrong(where, data, f"a list of {len(items)}")
    return tuple(_decode(k, v, f"{where}[{i}]") for i, (k, v) in enumerate(zip(items, data, strict=True)))


def _decode_dict(items: tuple[Any, ...], data: object, where: str) -> dict[str, object]:
    if not isinstance(data, Mapping):
        raise _wrong(where, data, "a table of names and values")
    return {str(k): _decode(items[1], v, f"{where}.{k}") for k, v in data.items()}


def _decode_record(cls: type, data: object, where: str) -> object:
    if not isinstance(data, Mapping):
        raise _wrong(where, data, f"a {cls.__name__} (a table of names and values)")
    values: dict[str, object] = {}
    hints = _hints(cls)
    for f in fields(cls):
        if f.name in data:
            values[f.name] = _decode(hints[f.name], data[f.name], f"{where}.{f.name}")
        elif f.default is MISSING and f.default_factory is MISSING:
            raise UsageError(where, f"field {f.name} is missing")
    return cls(**values)
