"""A table that fits its terminal: columns go by priority, only text is cut, and what still does not fit is shown as records."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType
from rich.table import Table
from rich.text import Text

GAP = 2  # blanks between two columns


@dataclass(frozen=True, kw_only=True)
class Column:
    """A column. Numbers stand `right` and are never cut; text may be cut to `least` characters (0: never).

    `drop`: the column with the largest number goes first where there is no room; 0: it stays.
    """

    head: str
    right: bool = False
    least: int = 0
    drop: int = 0
    #: text goes on in a further line, instead of being cut
    folds: bool = False


def figure_column(head: str, drop: int = 0) -> Column:
    """Return a column of numbers."""
    return Column(head=head, right=True, drop=drop)


def text_column(head: str, least: int = 0, drop: int = 0, *, folds: bool = False) -> Column:
    """Return a column of text."""
    return Column(head=head, least=least, drop=drop, folds=folds)


@dataclass
class FittedTable:
    """A rich renderable. Cells are plain text: nothing in them is markup, and callers have escaped what strangers wrote."""

    columns: Sequence[Column]
    title: str = ""
    rows: list[tuple[str, ...]] = field(default_factory=list)
    #: a style of rich for a row, by its index
    styles: dict[int, str] = field(default_factory=dict)
    footer: tuple[str, ...] = ()
    #: lines below it
    notes: list[str] = field(default_factory=list)

    def add_row(self, *cells: str, style: str = "") -> None:
        if style:
            self.styles[len(self.rows)] = style
        self.rows.append(cells)

    def __rich_console__(self, _console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        width = options.max_width
        if self.title:
            yield Text(self.title, style="bold")
        widths = self.fit(width)
        if widths is None:
            yield from self._records()
        elif self.rows:
            yield self._grid(widths)
            if hidden := [c.head for i, c in enumerate(self.columns) if i not in widths and c.head]:
                yield Text(f"not shown at {width} columns: {', '.join(hidden)}", style="dim")
        yield from (Text(note) for note in self.notes)

    def fit(self, width: int) -> dict[int, int] | None:
        """Return the width of each column that is shown, by its index, or None where not even those that stay fit."""
        natural = [self._natural(i) for i in range(len(self.columns))]
        least = [min(n, c.least) if c.least else n for n, c in zip(natural, self.columns, strict=True)]
        indices = list(range(len(self.columns)))

        def needed() -> int:
            return sum(least[i] for i in indices) + GAP * (len(indices) - 1)

        while needed() > width:
            droppable = [i for i in indices if self.columns[i].drop]
            if not droppable:
                return None
            indices.remove(max(droppable, key=lambda i: (self.columns[i].drop, i)))
        widths, room = {i: least[i] for i in indices}, width - needed()
        for i in indices:  # what is left goes to the text that is cut, from the left
            more = min(room, natural[i] - widths[i])
            widths[i] += more
            room -= more
        return widths

    def _natural(self, i: int) -> int:
        cells = [self.columns[i].head, *(row[i] for row in self.rows), *((self.footer[i],) if self.footer else ())]
        return max(cell_len(cell) for cell in cells)

    def _grid(self, widths: dict[int, int]) -> Table:
        grid = Table(
            box=None, padding=(0, GAP, 0, 0), pad_edge=False, show_footer=bool(self.footer), header_style="bold"
        )
        for i, width in widths.items():
            grid.add_column(
                Text(self.columns[i].head),
                footer=Text(self.footer[i]) if self.footer else "",
                footer_style="bold",
                justify="right" if self.columns[i].right else "left",
                width=width,
                no_wrap=not self.columns[i].folds,
                overflow="fold" if self.columns[i].folds else "ellipsis",
            )
        for at, row in enumerate(self.rows):
            grid.add_row(*(Text(row[i]) for i in widths), style=self.styles.get(at, ""))
        return grid

    def _records(self) -> Iterator[Text]:
        """Yield each row as lines of a head and its value."""
        pad = max(cell_len(column.head) for column in self.columns)
        everything = [*self.rows, *((self.footer,) if self.footer else ())]
        for at, row in enumerate(everything):
            if at:
                yield Text("")
            for column, cell in zip(self.columns, row, strict=True):
                if cell not in ("", "-"):
                    yield Text(f"{column.head:<{pad}}  {cell}", style=self.styles.get(at, ""))
