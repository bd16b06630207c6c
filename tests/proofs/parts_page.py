"""python -m tests.proofs.parts_page NAME DB FILE...: the page of proofs that have parts, from the figures in FILEs.

The name of a FILE is ISSUE-COMMIT-DATABASE-PART. Parts that are missing because they failed or were broken off are not
in it. Of a part that was made on several commits only the newest one is.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.proofs.freshness import git
from tests.proofs.report import print_page, print_tables

_NAME = re.compile(r".+-(?P<commit>[0-9a-f]{7,40})-(?P<database>[a-z]+)-(?P<part>\w+)")
_DATABASES = ("sqlite", "mysql", "mariadb", "postgres")


@dataclass(frozen=True, slots=True)
class Part:
    """A file of figures."""

    path: Path
    commit: str
    database: str
    name: str

    def lines(self) -> list[dict[str, Any]]:
        """Its figures; [] where it measures nothing on its database."""
        return [json.loads(line) for line in self.path.read_text().splitlines()]


def parts_of(files: Iterable[str]) -> list[Part]:
    """The parts that have ended, of each database and name the one of the newest commit."""
    found: dict[tuple[str, str], Part] = {}
    for path in map(Path, files):
        named = _NAME.fullmatch(path.name)
        if named is None:
            continue
        part = Part(path, named["commit"], named["database"], named["part"])
        before = found.get((part.database, part.name))
        if before is None or _age(part.commit) > _age(before.commit):
            found[part.database, part.name] = part
    return sorted(found.values(), key=lambda part: (part.name, _place(part.database)))


def _place(database: str) -> int:
    return _DATABASES.index(database)


def _age(commit: str) -> int:
    """How many commits came before it; 0 if this repository does not have it."""
    try:
        return int(git("rev-list", "--count", commit))
    except subprocess.CalledProcessError:
        return 0


def commits_of(parts: Iterable[Part]) -> list[str]:
    """The commits that parts are of, the newest first."""
    return sorted({part.commit for part in parts}, key=lambda commit: (-_age(commit), commit))


def print_commits(parts: list[Part]) -> None:
    """Print which parts are of which commit, if there are several."""
    commits = commits_of(parts)
    if len(commits) < 2:
        return
    print("## Parts were measured on different commits.\n")
    print("| commit | databases | parts |\n| --- | --- | --- |")
    for commit in commits:
        databases: dict[str, list[str]] = defaultdict(list)
        for part in parts:
            if part.commit == commit:
                databases[part.name].append(part.database)
        names: dict[tuple[str, ...], list[str]] = defaultdict(list)
        for name, of_it in databases.items():
            names[tuple(of_it)].append(name)
        for of_it, same in names.items():
            print(f"| `{commit}` | {', '.join(of_it)} | {', '.join(same)} |")
    print()


def main(name: str, db: str, *files: str) -> None:
    """Print the page."""
    parts = [part for part in parts_of(files) if part.lines()]
    print_page(name, [], db, commits_of(parts))
    print_commits(parts)
    print_tables([line for part in parts for line in part.lines()])


if __name__ == "__main__":
    main(*sys.argv[1:])
