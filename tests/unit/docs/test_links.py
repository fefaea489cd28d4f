"""Every link and every path in the documents leads somewhere, and every page can be reached."""

from __future__ import annotations

import re

import pytest

from tests.unit.docs.pages import DOCS, NAMES, ROOT, anchors, links, spans, split

PATH = re.compile(r"(?:synergyd|launch|sql|slurm_plugins|tests|docs|packages)/[\w./-]*\Z")
README_LINES = 120


@pytest.mark.parametrize("name", NAMES)
def test_links_resolve(name: str) -> None:
    page = ROOT / name
    prose = split(page.read_text())[1]
    wrong = []
    for link in links(prose):
        if re.match(r"[a-z]+:", link):
            continue
        file, _, anchor = link.partition("#")
        target = (page.parent / file).resolve() if file else page
        if not target.is_file():
            wrong.append(f"{link}: no such file")
        elif DOCS in page.parents and DOCS not in target.parents:
            wrong.append(f"{link}: leaves docs/, so the site does not have it")
        elif anchor and anchor not in anchors(split(target.read_text())[1]):
            wrong.append(f"{link}: no such heading")
    assert wrong == []


@pytest.mark.parametrize("name", NAMES)
def test_paths_exist(name: str) -> None:
    """A path of this repository in backticks. The changelog may name what is gone."""
    if name == "CHANGELOG.md":
        return
    found = [span for span in spans(split((ROOT / name).read_text())[1]) if PATH.match(span)]
    assert [path for path in found if not (ROOT / path).exists()] == []


def test_every_page_is_in_the_table_of_contents() -> None:
    listed: list[str] = []
    for page in (DOCS / "index.md", DOCS / "design/decisions/index.md", DOCS / "design/measurements/index.md"):
        for block in split(page.read_text())[0]:
            if block.language == "{toctree}":
                words = [line for line in block.text.splitlines() if line and not line.startswith(":")]
                listed += [str((page.parent / word).relative_to(DOCS)) for word in words]
    there = {str(path.relative_to(DOCS).with_suffix("")) for path in DOCS.rglob("*.md")} - {"index"}
    assert len(listed) == len(set(listed))
    assert set(listed) == there


def test_readme_is_one_page() -> None:
    lines = (ROOT / "README.md").read_text().splitlines()
    assert len(lines) <= README_LINES
    assert max(map(len, lines)) <= 140


def test_what_is_wrong_is_found() -> None:
    """The reader itself."""
    text = "# A `b` c!\n\n[x](y.md#z) and `[not](a.link)`\n\n```sh\n[nor](this)\n```\n`docs/gone.md`\n"
    blocks, prose = split(text)
    assert [(b.language, b.text, b.line) for b in blocks] == [("sh", "[nor](this)", 5)]
    assert links(prose) == ["y.md#z"]
    assert anchors(prose) == {"a-b-c"}
    assert [s for s in spans(prose) if PATH.match(s)] == ["docs/gone.md"]
