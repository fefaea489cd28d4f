"""The mark of a record's field that came after 0.1.0. What has its default reads and is written as it was then (wire/codec.py)."""

from types import MappingProxyType

LATER = MappingProxyType({"later": True})
