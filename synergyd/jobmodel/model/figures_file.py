"""Files of GPU figures: a TOML table for each GPU type, as `profiles measure` writes them and overrides take them."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path

from synergy_core.errors import UsageError
from synergy_core.ordinary_file import read_bytes

from synergyd.jobmodel.model.hardware import figures

_LIMIT = 1 << 20  # bytes


def read_figures(path: Path) -> dict[str, dict[str, float]]:
    """Return GPU type -> figure -> number from a TOML file with a table for each type.

    Raises UsageError naming the file: unreadable, not TOML, without a type, a name that is no figure, or a value that is no number.
    """
    where = str(path)
    try:
        data = tomllib.loads(read_bytes(path, _LIMIT).decode("utf-8"))
    except OSError as error:
        raise UsageError(where, f"cannot be read: {error.strerror}", "give what `profiles measure` wrote") from None
    except (ValueError, RecursionError) as error:
        raise UsageError(where, f"not TOML ({error})", "give what `profiles measure` wrote") from None
    if not data:  # lines GpuType= of slurm.conf, for example, are comments to TOML
        raise UsageError(where, "it names no GPU type", "write [TYPE] and below it figure = number")
    for name, table in data.items():
        if not isinstance(table, dict):
            raise UsageError(where, f"{name} is no table", "write [TYPE] and below it figure = number")
        try:
            figures(name, {name: table})
        except UsageError as error:
            raise UsageError(where, error.what, error.right) from None
    return data


def write_figures(gpu_type: str, measured: Mapping[str, float], remarks: Mapping[str, str], head: str) -> str:
    """Return the text of a file of figures: `head` as comments, then each figure with the remark that says how it was measured."""
    lines = [f"# {line}".rstrip() for line in head.splitlines()]
    lines += ["", f"[{_key(gpu_type)}]"]
    for name, value in measured.items():
        if name in remarks:
            lines.append(f"# {remarks[name]}")
        lines.append(f"{name} = {_number(value)}")
    return "\n".join(lines) + "\n"


def _key(name: str) -> str:
    bare = all(c.isascii() and (c.isalnum() or c in "-_") for c in name)
    return name if bare and name else '"' + name.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _number(value: float) -> str:
    text = f"{value:.4g}"
    return text if any(c in text for c in ".e") else f"{text}.0"
