"""Tables on a terminal: columns line up by the width that their characters have there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from unicodedata import combining, east_asian_width

from jobqueue.log_format import one_line

_GAP = "  "


def aligned(rows: Sequence[Sequence[str]], *, numbers: Sequence[int] = ()) -> Iterator[str]:
    """A line for each row; the columns `numbers`, counted from 0, are set to the right."""
    cells = [[one_line(cell) for cell in row] for row in rows]
    widths = [max(map(width, column)) for column in zip(*cells, strict=True)]
    for row in cells:
        padded = [
            f"{' ' * (wide - width(cell))}{cell}" if place in numbers else f"{cell}{' ' * (wide - width(cell))}"
            for place, (cell, wide) in enumerate(zip(row, widths, strict=True))
        ]
        yield _GAP.join(padded).rstrip()


def width(text: str) -> int:
    """How many columns of a terminal `text` takes: two for each Korean character."""
    return sum(0 if combining(char) else 2 if east_asian_width(char) in "WF" else 1 for char in text)
