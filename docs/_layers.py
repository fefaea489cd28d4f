"""What each folder may import: the rows of tests/unit/test_layering.py, with each package's own docstring."""

from __future__ import annotations

import ast
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCES = {"synergyd": ROOT, "synergy_launch": ROOT / "launch", "synergyd_migrations": ROOT / "sql"}


def about(folder: str) -> str:
    """The first sentence of a package's or module's docstring."""
    path = SOURCES[folder.partition(".")[0]].joinpath(*folder.split("."))
    source = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    if not source.is_file():
        return ""
    text = " ".join((ast.get_docstring(ast.parse(source.read_text())) or "").partition("\n\n")[0].split())
    return text.partition(". ")[0].rstrip(".")


def layers_block(table: Callable[..., str]) -> str:
    """A table: folder, what it holds, and which folders it may import."""
    from tests.unit.test_layering import BASE, ROWS

    rows = []
    for folder, allowed in ROWS:
        named = allowed.replace(BASE, "BASE").split()
        rows.append((f"`{folder}`", about(folder), ", ".join(f"`{name}`" for name in named) or "-"))
    base = ", ".join(f"`{name}`" for name in BASE.split())
    return f"BASE stands for {base}.\n\n{table(('Folder', 'What it holds', 'May import'), rows)}"
