"""Each test that the table of adapters names exists."""

from __future__ import annotations

import re

from tests.unit.docs.pages import DOCS, ROOT

NAMED = re.compile(r"`(test_\w+\.py)::(test_\w+)`")


def test_every_proof_is_there() -> None:
    named = NAMED.findall((DOCS / "user" / "adapters.md").read_text())
    assert len(named) > 10
    files = {path.name: path.read_text() for path in (ROOT / "tests").rglob("test_*.py")}
    assert [pair for pair in named if f"def {pair[1]}(" not in files.get(pair[0], "")] == []
