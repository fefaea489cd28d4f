"""Generated pages are fresh, complete, and true to the code."""

from __future__ import annotations

import re
from difflib import unified_diff
from itertools import pairwise
from pathlib import Path

import pytest

from synergyd.control.resize.lifecycle import IN_TRANSIT, ResizeState
from tests.unit.docs.generator import generator
from tests.unit.docs.pages import DOCS, ROOT, split

generate = generator("generate")
states = generator("_resize_states")


@pytest.fixture(scope="module")
def made() -> dict[Path, str]:
    found: dict[Path, str] = generate.pages()
    return found


@pytest.mark.slow
def test_generated_pages_are_fresh(made: dict[Path, str]) -> None:
    stale = [line for p, text in made.items() for line in changed(p, text)]
    assert stale == [], "run: python docs/generate.py"


def changed(path: Path, text: str) -> list[str]:
    """The lines that would change in the page."""
    before = path.read_text().splitlines() if path.is_file() else []
    return list(unified_diff(before, text.splitlines(), str(path.relative_to(ROOT)), "", n=0, lineterm=""))


def test_reference_and_man_pages_are_all_generated(made: dict[Path, str]) -> None:
    there = {file for folder in ("reference", "man", "pictures") for file in (DOCS / folder).iterdir()}
    assert there <= set(made)


def test_check_names_a_stale_page_and_writes_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "docs/page.md"
    monkeypatch.setattr(generate, "ROOT", tmp_path)
    monkeypatch.setattr(generate, "pages", lambda: {page: "new"})
    assert generate.main(["--check"]) == 1 and not page.exists()
    assert "docs/page.md" in capsys.readouterr().out
    assert generate.main([]) == 0 and page.read_text() == "new"
    assert generate.main(["--check"]) == 0


def test_a_name_without_a_text_and_a_text_without_a_name_are_found() -> None:
    assert generate.described(["b", "a"], {"a": "1", "b": "2"}, "x") == {"b": "2", "a": "1"}
    with pytest.raises(generate.StaleTextError, match=r"\[x\]: no text for b; c is gone"):
        generate.described(["a", "b"], {"a": "1", "c": "2"}, "x")


def test_every_variable_of_the_code_is_seen() -> None:
    """Beside the scan of strings: names in the agent's own table of its protocol."""
    from synergy_launch.agent import agent

    told = set(re.findall(r"^\| (SYNERGY_\w+) \|", agent.__doc__ or "", re.MULTILINE))
    assert told and told <= generate.environment_names()


def test_the_picture_names_the_states_of_the_code_and_no_others() -> None:
    prose = split((DOCS / "concepts/resize.md").read_text())[1]
    arrows = re.findall(r'data-from="(\w+)" data-to="(\w+)"', (DOCS / "pictures/resize.svg").read_text())
    assert {name for arrow in arrows for name in arrow} == set(ResizeState)
    ways = {(before, after) for before, after in states.transitions() if after not in ("GONE", before)}
    assert {arrow for arrow in arrows if arrow[1] != "GONE"} == ways
    explained = re.findall(r"^\| ([A-Z]+) \| [a-z]", prose, re.MULTILINE)
    assert sorted(explained) == sorted(ResizeState)


@pytest.mark.slow
def test_the_picture_has_the_ways_that_a_resize_takes() -> None:
    """The search finds what the module's own account of itself says, and nothing leaves GONE."""
    found = states.transitions()
    way = ("RUNNING", "CHECKPOINTING", "REQUEUING", "PARKED", "RESIZED", "RELEASED", "RUNNING")
    assert all(pair in found for pair in pairwise(way))
    assert "checkpoint acknowledged" in found["CHECKPOINTING", "REQUEUING"]
    assert {before for before, after in found if after == "GONE"} == set(ResizeState) - {"GONE"}
    assert not [pair for pair in found if pair[0] == "GONE"]
    assert {before for before, after in found if after == "RUNNING"} >= set(IN_TRANSIT)
