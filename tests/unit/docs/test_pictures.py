"""The pictures as SVG: charts from tables in the text, diagrams of boxes and arrows."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest

from tests.unit.docs.generator import generator
from tests.unit.docs.pages import DOCS

pictures = generator("_pictures")
PAGE = "text\n\n<!-- plot: times -->\n\n| Jobs | real | simulated |\n| --- | --- | --- |\n| 12 | 1,157 s | - |\n| 24 | 2277 | 2278 |\n"


def test_a_chart_has_a_bar_for_each_number_of_its_table() -> None:
    chart = pictures.chart_of_table(PAGE, "times", "a < b")
    root = ElementTree.fromstring(chart)
    texts = [element.text for element in root.iter() if element.tag.endswith("}text")]
    assert texts == ["a < b", "real", "simulated", "1157", "12", "2277", "2278", "24"]
    lengths = [float(width) for width in re.findall(r'<rect x="190" y="[\d.]+" width="([\d.]+)" height="13"', chart)]
    assert lengths == sorted(lengths) and lengths[-1] / lengths[0] == pytest.approx(2278 / 1157, rel=1e-3)


@pytest.mark.parametrize("page", ["no mark", "<!-- plot: times -->\n\nno table\n"])
def test_a_mark_without_a_table_is_an_error(page: str) -> None:
    with pytest.raises(ValueError, match="no table follows <!-- plot: times -->"):
        pictures.table_after(page, "times")


def test_an_arrow_ends_at_the_border_of_its_box() -> None:
    boxes = {"a": pictures.Box(x=100, y=50, text="a", width=100), "b": pictures.Box(x=400, y=50, text="b", width=100)}
    drawn = pictures.diagram("t", 500, 100, boxes, [pictures.Arrow(start="a", end="b")])
    assert 'data-from="a" data-to="b" d="M150.0 50.0 Q250.0 50.0 350.0 50.0"' in drawn


def test_committed_pictures_need_nothing_from_a_network() -> None:
    files = sorted((DOCS / "pictures").glob("*.svg"))
    assert len(files) >= 6
    for file in files:
        ElementTree.fromstring(file.read_text())
        assert "href" not in file.read_text()
