"""Which examples the ranks of a run have seen: each writes [step, examples] a line to seen-RANK.jsonl."""

from __future__ import annotations

import json
from pathlib import Path

Seen = dict[int, list[int]]


def seen_in(output: Path) -> Seen:
    """Step -> the examples that its ranks saw, sorted."""
    seen: Seen = {}
    for path in output.glob("seen-*.jsonl"):
        for line in path.read_text().splitlines():
            step, examples = json.loads(line)
            seen[step] = sorted(seen.get(step, []) + examples)
    return seen
