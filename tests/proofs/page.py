"""The pages of proofs, from the figures that their parts have written."""

from __future__ import annotations

import json
import platform
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from tests.proofs.model import DATABASES, Page

#: what is no column: "run" is for what a page's own module writes
NO_COLUMNS = ("test", "on", "run")


@dataclass(frozen=True)
class Result:
    """What a part has measured on a database, and when."""

    part: str
    database: str
    commit: str
    date: str
    minutes: float
    lines: list[dict[str, Any]]

    @classmethod
    def read(cls, path: Path) -> Result:
        """The one that a run has kept."""
        return cls(**json.loads(path.read_text()))


def text_of(page: Page, results: Sequence[Result]) -> str:
    """The page: a table of its parts, and a table for each test, from its figures, with its pictures below."""
    system = f"Python {platform.python_version()}, {platform.system()} on {platform.machine()}"
    lines = [f"# Proof: {page.name}", "", f"Command: `{page.command}`, {system}.", "", page.about, ""]
    lines += ["Each row is what a command measured while it held; one that fails writes none.", ""]
    return "\n".join([*lines, *parts_table(page, results), "", *tables(chain.from_iterable(r.lines for r in results))])


def parts_table(page: Page, results: Sequence[Result]) -> list[str]:
    """Which part was measured on which commit."""
    rows: dict[tuple[str, str, str], list[Result]] = defaultdict(list)
    for result in results:
        rows[result.part, result.commit, result.date].append(result)
    lines = ["| part | databases | commit | date | minutes |", "| --- | --- | --- | --- | --- |"]
    for (part, commit, date), same in rows.items():
        on = ", ".join(result.database for result in sorted(same, key=lambda result: _place(result.database)))
        minutes = f"{sum(result.minutes for result in same):.1f}"
        lines.append(f"| {part} | {on} | `{commit}` | {date} | {minutes} |")
    there = {(result.part, result.database) for result in results}
    lacking = [f"{part.name} on {on}" for part in page.parts for on in part.minutes if (part.name, on) not in there]
    return [*lines, *(["", f"Not measured: {', '.join(lacking)}."] if lacking else [])]


def _place(database: str) -> int:
    return DATABASES.index(database) if database in DATABASES else len(DATABASES)


def tables(figures) -> list[str]:
    """A table for each text of "says"."""
    groups = defaultdict(list)
    for line in chain.from_iterable(map(named, figures)):
        if set(line) - {"says", *NO_COLUMNS}:
            groups[line.pop("says")].append(line)
    lines = []
    for says, rows in groups.items():
        pictures = {path: shown for row in rows for shown, path in row.pop("pictures", {}).items()}
        keys = list(dict.fromkeys(key for row in rows for key in row if key not in NO_COLUMNS))
        lines += [f"## {' '.join(says.split())}", "", "| database | " + " | ".join(keys) + " |"]
        lines += ["| --- |" + " --- |" * len(keys)]
        lines += [f"| {', '.join(on)} | " + " | ".join(words) + " |" for words, on in merged(rows, keys).items()]
        lines += ["", *(f"![{shown}]({path})" for path, shown in pictures.items()), *([""] if pictures else [])]
    return lines


def named(line: dict[str, Any]) -> list[dict[str, Any]]:
    """A line as it is; one whose test says nothing is named by its test, and has a row for each figure."""
    if line["says"]:
        return [dict(line)]
    name, _, case = str(line["test"]).removeprefix("test_").partition("[")
    row = {"test": line["test"], "on": line["on"], "says": name.replace("_", " ").capitalize() + "."}
    figures = ((what, number) for what, number in line.items() if what not in ("test", "on", "says"))
    return [{**row, "case": case.rstrip("]").replace("-", ", ") or "-", "figure": a, "value": b} for a, b in figures]


def merged(rows: list[dict[str, Any]], keys: list[str]) -> dict[tuple[str, ...], list[str]]:
    """The words of each row -> the databases on which it is the same."""
    found: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for row in rows:
        words = tuple(" ".join(str(row.get(key, "-")).replace("|", "\\|").split()) for key in keys)
        found[words].append(str(row["on"]))
    return {words: list(dict.fromkeys(databases)) for words, databases in found.items()}
