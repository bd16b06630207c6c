"""python -m tests.proofs.report NAME FIGURES [DB]: the figures of a proof run as a page."""

from __future__ import annotations

import json
import platform
import subprocess
import sys
from collections import defaultdict
from pathlib import Path


def main(name: str, figures: str, db: str = "") -> None:
    """Print the page of the figures in a file."""
    print_page(name, [json.loads(line) for line in Path(figures).read_text().splitlines()], db)


def print_page(name: str, lines: list[dict[str, object]], db: str = "") -> None:
    """Print a table for each test, from its figures."""
    commit = subprocess.run(["git", "rev-parse", "--short=12", "HEAD"], capture_output=True, text=True).stdout.strip()
    print(f"# Proof: {name}\n")
    command = f"make prove ISSUE={name}" + (f" DB={db}" if db else "")
    print(f"Command: `{command}`, commit `{commit}`, Python {platform.python_version()}, ", end="")
    print(f"{platform.system()} on {platform.machine()}.\n")
    print("Each row is what a test measured while it held; a test that fails writes no row. The tests are in")
    print("`tests/proofs/` and run in short form with every `make test`.\n")
    groups = defaultdict(list)
    for line in lines:
        groups[line.pop("says")].append(line)
    for says, rows in groups.items():
        print(f"## {says}\n")
        keys = list(dict.fromkeys(key for row in rows for key in row if key not in ("test", "on")))
        print("| database | " + " | ".join(keys) + " |")
        print("| --- |" + " --- |" * len(keys))
        for words, databases in merged(rows, keys).items():
            print(f"| {', '.join(databases)} | " + " | ".join(words) + " |")
        print()


def merged(rows: list[dict[str, object]], keys: list[str]) -> dict[tuple[str, ...], list[str]]:
    """The words of each row -> the databases on which it is the same."""
    found: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for row in rows:
        words = tuple(str(row.get(key, "-")).replace("|", "\\|") for key in keys)
        found[words].append(str(row["on"]))
    return {words: list(dict.fromkeys(databases)) for words, databases in found.items()}


if __name__ == "__main__":
    main(*sys.argv[1:])
