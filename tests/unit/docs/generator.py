"""docs/generate.py and its parts as modules: docs/ is no package."""

from __future__ import annotations

import importlib
import sys
from typing import Any

from tests.unit.docs.pages import DOCS


def generator(name: str) -> Any:
    """A module of docs/, by name."""
    if str(DOCS) not in sys.path:
        sys.path.append(str(DOCS))
    return importlib.import_module(name)
