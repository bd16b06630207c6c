"""python -m tests.proofs.index: write docs/proof/index.md, one line for each promise of tests.proofs.table."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from tests.proofs.model import ROOT, Page, Part, Promise
from tests.proofs.table import PAGES

FILE = Path("docs/proof/index.md")
ABOUT = """\
# What is promised, and what was measured

`make prove` proves every promise on real servers and writes the pages of evidence; the command for one page is below
its heading. A commit that changes what a page proves removes the page, and then its promises have no figure. Figures
are those of the machine that they were measured on: run the command on yours.

`python -m tests.proofs.index` writes this list.
"""
_TABLE = re.compile(r"(?:^\|.*\n)+", re.MULTILINE)
#: databases of a row of parts, commit, date
_PART = r"^\| {part} \| [a-z, ]+ \| `([0-9a-f]{{7,40}})` \| (\d{{4}}-\d\d-\d\d) \|"
_BENCH = re.compile(r"\((\d{4}-\d\d-\d\d)[^)]*, commit ([0-9a-f]{7,40})")


def text(root: Path = ROOT) -> str:
    """The whole page, from the pages of evidence below `root`."""
    lines = [ABOUT]
    for page in PAGES.values():
        path = root / page.file
        link = f" [The page]({'../benchmarks.md' if page.path else path.name})" if path.exists() else ""
        lines += [f"## {page.name}", "", f"{page.about} `{page.command}`{link}", ""]
        promises = [(part, promise) for part in page.parts for promise in part.promises]
        if path.exists():
            measured = path.read_text()
            lines += ["| promise | figure | measured on |", "| --- | --- | --- |"]
            lines += [line(page, part, promise, measured) for part, promise in promises]
        else:
            lines += [f"- {promise.text}" for _, promise in promises]
        lines.append("")
    return "\n".join(lines)


def line(page: Page, part: Part, promise: Promise, measured: str) -> str:
    """The line of a promise; `measured` is the text of its page."""
    section = _section(measured, promise.heading)
    values = [row[promise.figure] for row in rows(section) if promise.figure in row and _is_meant(row, promise)]
    if page.path:
        found = [(commit, date) for date, commit in _BENCH.findall(section)]
    else:
        found = re.findall(_PART.format(part=part.name), measured, re.MULTILINE)
    if not values or not found:
        return f"| {promise.text} | | |"
    figure = f"{promise.figure}: {in_words(values)}"
    runs = ", ".join(f"{commit} ({date})" for commit, date in sorted(set(found), key=lambda run: run[1]))
    cells = [promise.text, figure.replace("|", "\\|"), runs]
    return f"| {' | '.join(cells)} |"


def _section(measured: str, heading: str) -> str:
    parts = re.split(r"^##+ ", measured, flags=re.MULTILINE)
    return "".join(part for part in parts[1:] if part.startswith(heading))


def _is_meant(row: dict[str, str], promise: Promise) -> bool:
    return not promise.row or promise.row in row.values()


def rows(section: str) -> Iterator[dict[str, str]]:
    """The rows of the tables of a section, by the words of their heads; of equal words the first column counts."""
    for table in _TABLE.findall(section):
        cells = [[cell.strip() for cell in re.split(r"(?<!\\)\|", row)[1:-1]] for row in table.splitlines()]
        for row in cells[2:]:
            yield dict(reversed(list(zip(cells[0], row, strict=True))))


def in_words(values: list[str]) -> str:
    """The smallest and the largest of numbers, or up to three different words."""
    different = [value for value in dict.fromkeys(values) if value != "-"]
    try:
        numbers = sorted(different, key=lambda value: float(value.replace(",", "")))
    except ValueError:
        return ", ".join(different[:3]) + (", ..." if len(different) > 3 else "")
    return " to ".join(dict.fromkeys((numbers[0], numbers[-1]))) if numbers else "-"


if __name__ == "__main__":
    (ROOT / FILE).parent.mkdir(parents=True, exist_ok=True)
    (ROOT / FILE).write_text(text())
    print(f"{FILE} written")
