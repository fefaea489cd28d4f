"""The output of --json, to its file or to stdout."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click
from synergy_core.errors import UsageError


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Write `content` as JSON to `path`; "-" is stdout. Raises UsageError."""
    text = json.dumps(content, indent=2)
    if path == Path("-"):
        click.echo(text)
        return
    try:
        path.write_text(text + "\n")
    except OSError as error:
        raise UsageError("--json", f"{path} can't be written: {error.strerror}") from None
