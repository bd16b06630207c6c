"""Cells of our own tables, which become cards on narrow screens: each knows the title of its column."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from django_stubs_ext import StrOrPromise


class Column(NamedTuple):
    """A column. Numbers stand on the right."""

    title: StrOrPromise
    is_number: bool = False


class Cell(NamedTuple):
    """A cell as the template cells.html shows it."""

    text: str
    title: StrOrPromise
    is_number: bool


class Table(NamedTuple):
    """A table; the first cell of each row names it."""

    columns: Sequence[Column]
    rows: list[list[Cell]]


def table_of(columns: Sequence[Column], rows: Iterable[Sequence[str]]) -> Table:
    """A table of rows that have a text for each column, in the active language."""
    # Each title is translated once, not for each row.
    titled = [Column(str(column.title), column.is_number) for column in columns]
    cells = [
        [Cell(text, column.title, column.is_number) for text, column in zip(row, titled, strict=True)] for row in rows
    ]
    return Table(titled, cells)
