"""The documents as these tests read them: pages, headings, links, blocks of code."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[3]
DOCS = ROOT / "docs"
PAGES = (*sorted(ROOT.glob("*.md")), *sorted(DOCS.rglob("*.md")))
NAMES = [str(path.relative_to(ROOT)) for path in PAGES]
_FENCE = re.compile(r"\s*(`{3,})\s*(\S*)")


@dataclass(frozen=True)
class Block:
    """A fenced block of code: its language, its text, and the line that it begins in."""

    language: str
    text: str
    line: int


def split(text: str) -> tuple[list[Block], str]:
    """The fenced blocks of a page, and its text without them."""
    blocks: list[Block] = []
    prose: list[str] = []
    inside: list[str] = []
    fence = language = ""
    begin = 0
    for number, line in enumerate(text.splitlines(), 1):
        match = _FENCE.match(line)
        if not fence and match and line.strip().count("`") == len(match[1]):
            fence, language, begin, inside = match[1], match[2], number, []
        elif fence and line.strip() == fence:
            blocks.append(Block(language, "\n".join(inside), begin))
            fence = ""
        else:
            (inside if fence else prose).append(line)
    assert not fence, f"the block of line {begin} does not end"
    return blocks, "\n".join(prose)


def spans(prose: str) -> list[str]:
    """Text between single backticks."""
    return re.findall(r"(?<!`)`([^`\n]+)`(?!`)", prose)


def links(prose: str) -> list[str]:
    """Targets of a page's links, those inside of code left out."""
    return re.findall(r"\]\(([^)\s]+)\)", re.sub(r"(`+)(?!`).*?(?<!`)\1(?!`)", "code", prose))


def anchors(prose: str) -> set[str]:
    """What `#name` may point to: the headings, as GitHub and myst-parser write them."""
    found: set[str] = set()
    for line in prose.splitlines():
        if match := re.match(r"#{1,6}\s+(.*)", line):
            words = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", match[1]).replace("`", "").strip().lower()
            found.add(re.sub(r"[^\w\- ]", "", words).replace(" ", "-"))
    return found


def commands(blocks: list[Block], *languages: str) -> Iterator[tuple[Block, str]]:
    """Command lines: every line of `sh` blocks, those behind `$ ` of `console` blocks; continued lines put together."""
    for block in blocks:
        if block.language in languages:
            for line in block.text.replace("\\\n", " ").splitlines():
                if block.language == "console" and line.startswith("$ "):
                    yield block, line[2:]
                elif block.language != "console" and line.strip() and not line.lstrip().startswith("#"):
                    yield block, line.strip()
