"""Text for a terminal: tables, and lines that are not too long."""

import textwrap
from collections.abc import Sequence

WIDTH = 100


def wrapped(line: str) -> str:
    """`line` in lines of WIDTH at most; a command stays one line, and the lines of a table are not touched."""
    if len(line) <= WIDTH or line.startswith(("$", " ")):
        return line
    return textwrap.fill(line, WIDTH, subsequent_indent="", break_long_words=False, break_on_hyphens=False)


def table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A table whose columns are as wide as their widest cell; numbers are aligned to the right."""
    cells = [[str(cell) for cell in row] for row in rows]
    widths = [max(len(row[i]) for row in [list(head), *cells]) for i in range(len(head))]
    numeric = [all(not isinstance(row[i], str) or row[i] == "-" for row in rows) for i in range(len(head))]

    def line(row: Sequence[str]) -> str:
        return "  ".join(
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(row, widths, numeric, strict=True)
        ).rstrip()

    return "\n".join([line(head), "  ".join("-" * width for width in widths), *map(line, cells)])
