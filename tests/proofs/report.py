"""python -m tests.proofs.report NAME FIGURES [DB]: the figures of a proof run as a page."""

from __future__ import annotations

import json
import platform
import subprocess
import sys
from collections import defaultdict
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any


def main(name: str, figures: str, db: str = "") -> None:
    """Print the page of the figures in a file."""
    print_page(name, [json.loads(line) for line in Path(figures).read_text().splitlines()], db)


def print_page(name: str, lines: list[dict[str, Any]], db: str = "", commits: Sequence[str] = ()) -> None:
    """Print a table for each test, from its figures, and below it its pictures.

    `commits` are those that the figures are of: HEAD if none is given. The value of "pictures" of a line is what each
    picture shows -> its path as seen from the page.
    """
    print(f"# Proof: {name}\n")
    command = f"make prove ISSUE={name}" + (f" DB={db}" if db else "")
    made_on = " and ".join(f"commit `{commit}`" for commit in commits or [head()])
    print(f"Command: `{command}`, {made_on}, Python {platform.python_version()}, ", end="")
    print(f"{platform.system()} on {platform.machine()}.\n")
    print("Each row is what a test measured while it held; a test that fails writes no row. The tests are in")
    print("`tests/proofs/` and run in short form with every `make test`.\n")
    print_tables(lines)


def head() -> str:
    """The first 12 characters of the commit that is checked out."""
    found = subprocess.run(["git", "rev-parse", "--short=12", "HEAD"], capture_output=True, text=True, check=False)
    return found.stdout.strip()


def print_tables(lines: list[dict[str, Any]]) -> None:
    """Print the figures: a table for each text of "says"."""
    groups = defaultdict(list)
    for line in chain.from_iterable(map(named, lines)):
        groups[line.pop("says")].append(line)
    for says, rows in groups.items():
        print(f"## {says}\n")
        pictures = {path: shown for row in rows for shown, path in row.pop("pictures", {}).items()}
        keys = list(dict.fromkeys(key for row in rows for key in row if key not in ("test", "on")))
        print("| database | " + " | ".join(keys) + " |")
        print("| --- |" + " --- |" * len(keys))
        for words, databases in merged(rows, keys).items():
            print(f"| {', '.join(databases)} | " + " | ".join(words) + " |")
        print()
        if pictures:
            print("\n".join(f"![{shown}]({path})" for path, shown in pictures.items()) + "\n")


def named(line: dict[str, Any]) -> list[dict[str, Any]]:
    """A line as it is; one whose test says nothing is named by its test, and has a row for each figure."""
    if line["says"]:
        return [line]
    name, _, case = str(line["test"]).removeprefix("test_").partition("[")
    row = {"test": line["test"], "on": line["on"], "says": name.replace("_", " ").capitalize() + "."}
    figures = ((what, number) for what, number in line.items() if what not in ("test", "on", "says"))
    return [{**row, "case": case.rstrip("]").replace("-", ", ") or "-", "figure": a, "value": b} for a, b in figures]


def merged(rows: list[dict[str, Any]], keys: list[str]) -> dict[tuple[str, ...], list[str]]:
    """The words of each row -> the databases on which it is the same."""
    found: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for row in rows:
        words = tuple(str(row.get(key, "-")).replace("|", "\\|") for key in keys)
        found[words].append(str(row["on"]))
    return {words: list(dict.fromkeys(databases)) for words, databases in found.items()}


if __name__ == "__main__":
    main(*sys.argv[1:])
