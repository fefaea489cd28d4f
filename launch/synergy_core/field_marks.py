"""The marks of a record's fields that wire/codec.py goes by."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

#: of a field that came after 0.1.0: with its default, a record reads and is written as it was then
ADDED_AFTER_0_1 = MappingProxyType({"later": True})


def renamed_from(name: str) -> Mapping[str, str]:
    """Return the mark of a field that 0.2 called `name`.

    For one release the field is written under that name, so that 0.2 reads it, and read under both.
    """
    return MappingProxyType({"stored_as": name})
