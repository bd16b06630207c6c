"""Tables that become cards on narrow screens, facts as names and values, and figures as tiles."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from django.template.loader import render_to_string
from django.utils.text import capfirst

from jobqueue.admin.page.formatting import NOTHING, StrOrPromise


class Column(NamedTuple):
    """A column. Numbers stand on the right; a message, such as that of an error, has a line of its own on a card."""

    title: StrOrPromise
    is_number: bool = False
    is_message: bool = False

    @property
    def kind(self) -> str:
        """Its class of CSS, or none."""
        return "jobqueue-number" if self.is_number else "jobqueue-message" if self.is_message else ""


class Cell(NamedTuple):
    """A cell as the template cells.html shows it."""

    text: object
    title: StrOrPromise
    kind: str


class Table(NamedTuple):
    """A table; the first cell of each row names it."""

    columns: Sequence[Column]
    rows: list[list[Cell]]


def table_of(columns: Iterable[Column | StrOrPromise], rows: Iterable[Sequence[object]]) -> Table:
    """A table of rows that have a text for each column, in the active language."""
    # Each title is translated once, not for each row.
    given = [one if isinstance(one, Column) else Column(one) for one in columns]
    titled = [one._replace(title=capfirst(str(one.title))) for one in given]
    cells = [[Cell(text, column.title, column.kind) for text, column in zip(row, titled, strict=True)] for row in rows]
    return Table(titled, cells)


def table_html(columns: Iterable[Column | StrOrPromise], rows: Iterable[Sequence[object]]) -> str:
    """Such a table as HTML."""
    return render_to_string("admin/jobqueue/cells.html", {"table": table_of(columns, rows)})


class Fact(NamedTuple):
    """A name, and a value as the template facts.html shows it."""

    title: StrOrPromise
    value: str


def facts(*pairs: tuple[StrOrPromise, object]) -> list[Fact]:
    """Those of `pairs` whose value is neither None nor an empty text nor a dash; 0 is a value."""
    return [
        Fact(title, value if isinstance(value, str) else str(value))
        for title, value in pairs
        if value is not None and value not in ("", NOTHING)
    ]


class Tile(NamedTuple):
    """A figure as the template tiles.html shows it. `note` stands below it.

    `address`: "" if no list has what it counts. `kind`: "", "warn" or "bad".
    """

    word: StrOrPromise
    figure: str
    note: str
    address: str = ""
    kind: str = ""
