"""One Key of slurm.conf's #SYNERGY lines: how it is written once, as the metadata of its field."""

from __future__ import annotations

from dataclasses import dataclass

from synergyd.setting_types import ValueType


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
    #: where the default is to set nothing: what then holds
    unset: str = ""
    #: where the default is to set nothing: a value
    example: str = ""


def about(key: str, value_type: ValueType, text: str, *, unset: str = "", example: str = "") -> dict[str, Setting]:
    """Its field's metadata."""
    return {"setting": Setting(key=key, type=value_type, text=text, unset=unset, example=example)}
