"""One word per concept in the documents, and subjects of commits in the imperative."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.commit_subject import main, subject_problem
from tests.unit.docs.pages import DOCS, ROOT, split

# Generated in whole or in part from docstrings that still use old words. Each page that is done leaves this list.
SKIPPED = ("docs/concepts/epoch.md", "docs/concepts/resize.md", "docs/reference/")
PAGES = [
    name
    for path in (ROOT / "README.md", ROOT / "SECURITY.md", *sorted(DOCS.rglob("*.md")))
    if not (name := str(path.relative_to(ROOT))).startswith(SKIPPED)
]
CODE = re.compile(r"(`+)(?!`).*?(?<!`)\1(?!`)")


def old_words(contributing: str) -> dict[str, str]:
    """Return the words that must not come back, each with the word to use instead, from the section "Words"."""
    section = contributing.partition("\n## Words\n")[2].partition("\n## ")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in section.splitlines() if line[:1] == "|"]
    return {old: row[0] for row in rows[2:] for old in row[2].split(", ") if old}


def used(words: dict[str, str], text: str) -> list[str]:
    """Return the old words that stand as whole words in a page's prose, outside of code."""
    prose = CODE.sub("", split(text)[1])
    return [
        f"{old} (write: {word})"
        for old, word in words.items()
        if re.search(rf"(?<![\w-]){re.escape(old)}(?![\w-])", " ".join(prose.split()), re.IGNORECASE)
    ]


@pytest.fixture(scope="module")
def words() -> dict[str, str]:
    return old_words((ROOT / "CONTRIBUTING.md").read_text())


@pytest.mark.parametrize("name", PAGES)
def test_no_old_word_comes_back(name: str, words: dict[str, str]) -> None:
    assert used(words, (ROOT / name).read_text()) == []


def test_the_list_is_read(words: dict[str, str]) -> None:
    assert words["size asked for"] == "requested size" and words["puts off"] == "park"
    assert len(words) > 10 and len(PAGES) > 30


def test_an_old_word_is_seen_in_prose_alone(words: dict[str, str]) -> None:
    assert used(words, "A run is\ntold.") == ["told (write: reported, explained)"]
    assert used(words, "Untold. `told`\n\n```text\ntold\n```\n") == []


@pytest.mark.parametrize(
    "subject",
    [
        "docs: Shorten the admin pages",
        "store/postgres: Pass the timeout on",
        "Merge branch 'docs-b'",
        'Revert "docs: X"',
    ],
)
def test_a_right_subject(subject: str) -> None:
    assert subject_problem(subject) == ""


@pytest.mark.parametrize(
    ("subject", "problem"),
    [
        ("docs: Added a page", "'Added' is no imperative"),
        ("docs: Adds a page", "'Adds' is no imperative"),
        ("docs: Adding a page", "'Adding' is no imperative"),
        ("docs: add a page", "not `area: Verb object`"),
        ("Add a page", "not `area: Verb object`"),
        ("", "not `area: Verb object`"),
        (f"docs: Add {'x' * 70}", "80 characters: at most 72"),
    ],
)
def test_a_wrong_subject(subject: str, problem: str) -> None:
    assert subject_problem(subject).startswith(problem)


def test_the_hook_reads_the_file_of_git(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    message = tmp_path / "COMMIT_EDITMSG"
    message.write_text("\n# a comment\ndocs: Add a page\n\nWhy.\n")
    assert main([str(message)]) == 0
    message.write_text("docs: Added a page\n")
    assert main([str(message)]) == 1 and "'Added'" in capsys.readouterr().err
    assert main([]) == 2
