"""The folders in the order of their layers: the rows of tests/unit/test_layering.py, with each package's own docstring."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def about(folder: str, sources: Mapping[str, Path]) -> str:
    """Return the first sentence of a package's or module's docstring."""
    path = sources[folder.partition(".")[0]].joinpath(*folder.split("."))
    source = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    if not source.is_file():
        return ""
    text = " ".join((ast.get_docstring(ast.parse(source.read_text())) or "").partition("\n\n")[0].split())
    return text.partition(". ")[0].rstrip(".")


def layers_block(listing: Callable[..., str]) -> str:
    """Return a list of the folders and what each holds, in the order of their layers.

    Loose modules and inner folders are left out.
    """
    from tests.unit.test_layering import ROWS, SOURCES

    names = [name for name, _ in ROWS if name.count(".") < 2 and name != "synergyd"]
    folders = [name for name in names if SOURCES[name.partition(".")[0]].joinpath(*name.split(".")).is_dir()]
    return listing((f"`{name}`", about(name, SOURCES).partition(": ")[0]) for name in folders)
