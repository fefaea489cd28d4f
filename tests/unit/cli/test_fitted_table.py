"""A table at any width: columns go by priority, numbers stay whole, and a narrow terminal gets records."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from synergyd.cli.shared.fitted_table import FittedTable, figure_column, text_column


@pytest.fixture
def table() -> FittedTable:
    made = FittedTable(
        [
            text_column("JOB"),
            text_column("NAME", least=4, drop=3),
            figure_column("GPUS"),
            figure_column("LOSS", drop=9),
        ],
        "two jobs",
    )
    made.add_row("4711", "a-long-name-of-a-job", "1,234,567", "2.5450")
    made.add_row("4712", "b", "8", "-")
    return made


def shown(table: FittedTable, width: int) -> list[str]:
    out = io.StringIO()
    Console(file=out, width=width).print(table)
    return [line.rstrip() for line in out.getvalue().splitlines()]


def test_all_of_it_where_there_is_room(table: FittedTable) -> None:
    assert shown(table, 60) == [
        "two jobs",
        "JOB   NAME                       GPUS    LOSS",
        "4711  a-long-name-of-a-job  1,234,567  2.5450",
        "4712  b                             8       -",
    ]


def test_text_is_cut_before_a_column_goes_and_columns_go_by_priority(table: FittedTable) -> None:
    assert shown(table, 35)[2] == "4711  a-long-na…  1,234,567  2.5450"
    assert shown(table, 28)[1].split() == ["JOB", "NAME", "GPUS"]
    assert " ".join(shown(table, 28)[4:]) == "not shown at 28 columns: LOSS"
    assert shown(table, 15)[1].split() == ["JOB", "GPUS"]


@pytest.mark.parametrize("width", range(10, 60))
def test_no_number_is_ever_cut(table: FittedTable, width: int) -> None:
    lines = shown(table, width)
    assert any("1,234,567" in line for line in lines)
    assert all(len(line) <= max(width, len("two jobs")) for line in lines)


def test_records_where_not_even_what_stays_fits() -> None:
    wide = FittedTable([text_column("JOB"), *(figure_column(f"N{i}") for i in range(8))])
    wide.add_row("4711", *(["1,234,567,890"] * 8))
    assert shown(wide, 80)[:3] == ["JOB  4711", "N0   1,234,567,890", "N1   1,234,567,890"]
