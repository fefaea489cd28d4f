"""The pictures of the documentation as SVG: diagrams from the code, bar charts from the tables that stand in the text.

Nothing here needs a browser, a network or a library, and the same input gives the same bytes, so that a test can compare.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape

FONT = 'font-family="Helvetica, Arial, sans-serif"'
INK, PAPER, FILL, LINE, FAINT = "#1f2937", "#ffffff", "#eef2ff", "#4f46e5", "#c3c8d4"
SHADES = ("#312e81", "#4f46e5", "#818cf8", "#c7d2fe", "#9ca3af", "#d1d5db")
ROW_PX = 15


@dataclass(frozen=True, kw_only=True)
class Box:
    """A labelled box around a centre, in pixels; `text` may hold line ends."""

    x: float
    y: float
    text: str
    width: float = 150
    height: float = 46


@dataclass(frozen=True, kw_only=True)
class Arrow:
    """An arrow from one box to another; `bend` moves its middle to the side, in pixels."""

    start: str
    end: str
    label: str = ""
    bend: float = 0
    faint: bool = False


def diagram(title: str, width: int, height: int, boxes: Mapping[str, Box], arrows: Iterable[Arrow]) -> str:
    """Return an SVG of boxes and arrows between them."""
    arrows = list(arrows)
    parts = [_arrow(boxes, arrow) for arrow in arrows if arrow.faint]
    parts += [_arrow(boxes, arrow) for arrow in arrows if not arrow.faint]
    parts += [_box(box) for box in boxes.values()]
    parts += [_label(boxes, arrow) for arrow in arrows if arrow.label]
    return _svg(title, width, height, parts)


def bar_chart(title: str, groups: Sequence[str], series: Mapping[str, Sequence[float]]) -> str:
    """Return an SVG with one group of horizontal bars for each name in `groups`.

    `series` maps the name of a bar to its value in each group. NaN leaves the bar out.
    """
    bar, gap, left, right = 16, 12, 190, 70
    most = max((abs(value) for values in series.values() for value in values if value == value), default=1.0)
    scale = (760 - left - right) / most
    y = 46.0 + 18 * ((len(series) + 3) // 4)
    parts = [_text(380, 24, title, size=15, weight="bold")]
    for i, name in enumerate(series):
        x, row = left + (i % 4) * 140, 40 + 18 * (i // 4)
        parts.append(f'<rect x="{x}" y="{row}" width="11" height="11" fill="{SHADES[i]}"/>')
        parts.append(_text(x + 16, row + 10, name, anchor="start", size=12))
    for g, group in enumerate(groups):
        begin = y
        for i, values in enumerate(series.values()):
            value = values[g]
            if value != value:
                continue
            length = abs(value) * scale
            parts.append(f'<rect x="{left}" y="{y:g}" width="{length:.1f}" height="{bar - 3}" fill="{SHADES[i]}"/>')
            parts.append(_text(left + length + 6, y + 11, f"{value:g}", anchor="start", size=12))
            y += bar
        parts.append(_text(left - 10, (begin + y) / 2 + 3, group, anchor="end", size=13))
        y += gap
    return _svg(title, 760, int(y + 4), parts)


def table_after(page: str, mark: str) -> tuple[list[str], list[list[str]]]:
    """Return the head and the rows of the Markdown table that follows `<!-- plot: MARK -->` in a page.

    Raise ValueError if the page has no such mark or no table follows it.
    """
    _, found, rest = page.partition(f"<!-- plot: {mark} -->\n")
    match = re.match(r"\n*((?:\|.*\n)+)", rest)
    if not found or not match:
        raise ValueError(f"no table follows <!-- plot: {mark} -->")
    head, _, *rows = ([cell.strip() for cell in line.strip("|").split("|")] for line in match[1].splitlines())
    return head, rows


def chart_of_table(page: str, mark: str, title: str) -> str:
    """Return the bar chart of a marked table: each row is a group, each column after the first a bar."""
    head, rows = table_after(page, mark)
    values = {name: [_number(row[i]) for row in rows] for i, name in enumerate(head) if i}
    return bar_chart(title, [row[0] for row in rows], values)


def _number(cell: str) -> float:
    match = re.match(r"[-+]?\d[\d,]*(?:\.\d+)?", cell)
    return float(match[0].replace(",", "")) if match else float("nan")


def _svg(title: str, width: int, height: int, parts: Iterable[str]) -> str:
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" {FONT}>'
    paper = f'<rect width="{width}" height="{height}" rx="6" fill="{PAPER}"/>'
    return "\n".join((head, f"<title>{escape(title)}</title>", paper, *parts, "</svg>")) + "\n"


def _text(x: float, y: float, text: str, *, anchor: str = "middle", size: int = 13, weight: str = "normal") -> str:
    style = f'text-anchor="{anchor}" font-size="{size}" font-weight="{weight}" fill="{INK}"'
    return f'<text x="{x:.1f}" y="{y:.1f}" {style}>{escape(text)}</text>'


def _box(box: Box) -> str:
    rows = box.text.split("\n")
    first = box.y - (len(rows) - 1) * ROW_PX / 2 + 4.5
    corner = (
        f'x="{box.x - box.width / 2:g}" y="{box.y - box.height / 2:g}" width="{box.width:g}" height="{box.height:g}"'
    )
    return "".join(
        (
            f'<rect {corner} rx="6" fill="{FILL}" stroke="{LINE}"/>',
            *(_text(box.x, first + i * ROW_PX, row) for i, row in enumerate(rows)),
        )
    )


def _way(boxes: Mapping[str, Box], arrow: Arrow) -> tuple[tuple[float, float], ...]:
    """Return where an arrow starts, what it bends towards, and where it ends."""
    start, end = boxes[arrow.start], boxes[arrow.end]
    dx, dy = end.x - start.x, end.y - start.y
    length = (dx * dx + dy * dy) ** 0.5 or 1.0
    middle = ((start.x + end.x) / 2 - dy / length * arrow.bend, (start.y + end.y) / 2 + dx / length * arrow.bend)
    return _border(start, middle), middle, _border(end, middle)


def _border(box: Box, towards: tuple[float, float]) -> tuple[float, float]:
    """Return the point of a box's border on the line from its centre towards a point."""
    dx, dy = towards[0] - box.x, towards[1] - box.y
    share = min(box.width / 2 / abs(dx) if dx else 1e9, box.height / 2 / abs(dy) if dy else 1e9)
    return box.x + dx * share, box.y + dy * share


def _arrow(boxes: Mapping[str, Box], arrow: Arrow) -> str:
    (x0, y0), (x1, y1), (x2, y2) = _way(boxes, arrow)
    colour, width = (FAINT, 1.0) if arrow.faint else (LINE, 1.6)
    names = f'data-from="{escape(arrow.start)}" data-to="{escape(arrow.end)}"'
    line = f"M{x0:.1f} {y0:.1f} Q{x1:.1f} {y1:.1f} {x2:.1f} {y2:.1f}"
    length = ((x2 - x1) ** 2 + (y2 - y1) ** 2) ** 0.5 or 1.0
    along, across = (x2 - x1) / length, (y2 - y1) / length
    corners = ((x2, y2), *((x2 - 9 * along - s * across, y2 - 9 * across + s * along) for s in (4, -4)))
    head = " ".join(f"{x:.1f},{y:.1f}" for x, y in corners)
    shaft = f'<path {names} d="{line}" fill="none" stroke="{colour}" stroke-width="{width}"/>'
    return f'{shaft}<polygon points="{head}" fill="{colour}"/>'


def _label(boxes: Mapping[str, Box], arrow: Arrow) -> str:
    (x0, y0), (x1, y1), (x2, y2) = _way(boxes, arrow)
    x, y = (x0 + 2 * x1 + x2) / 4, (y0 + 2 * y1 + y2) / 4
    rows = arrow.label.split("\n")
    width = 6.2 * max(map(len, rows)) + 6
    top = y - len(rows) * 13 / 2
    back = f'<rect x="{x - width / 2:.1f}" y="{top - 1:.1f}" width="{width:.1f}" height="{len(rows) * 13 + 3}" fill="{PAPER}"/>'
    return back + "".join(_text(x, top + 11 + i * 13, row, size=11) for i, row in enumerate(rows))
