"""The map of statements: which statements the product sends on which database, and the tests chosen for each.

Two sorted files, written by `make test-map`:

    statements.txt   a line for each shape of a statement: the room that sends it, the shape, and for each database that
                     it was seen on the tests that the short run has for it
    tests.txt        a line for each file of tests: its tests; with the databases, where one does not run on all of them

A statement stands for all of its values (tests/selection/shapes.py). A long one is cut, and ends with a hash.
"""

from __future__ import annotations

import hashlib
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
ROOT = FOLDER.parents[1]
STATEMENTS, TESTS = "statements.txt", "tests.txt"
DATABASES = ("sqlite", "mysql", "mariadb", "postgres")
#: the others are tested on Django 5.2; SQLite on both
ON_DJANGO_6 = ("sqlite", "mysql")
#: how many tests of the short run send each statement
ENOUGH = 2
_LENGTH = 160


def key_of(text: str) -> str:
    """How a shape stands in the map."""
    if len(text) <= _LENGTH:
        return text
    return f"{text[:_LENGTH]} #{hashlib.sha256(text.encode()).hexdigest()[:10]}"


@dataclass
class Statement:
    """One line: the room, and the chosen tests by database."""

    room: str
    tests: dict[str, tuple[str, ...]] = field(default_factory=dict)


@dataclass
class StatementMap:
    """What the two files hold. A test is path::function, without its parameters and the leading tests/."""

    statements: dict[str, Statement] = field(default_factory=dict)
    #: test -> the databases on which it does not skip
    tests: dict[str, tuple[str, ...]] = field(default_factory=dict)

    @classmethod
    def load(cls, folder: Path = FOLDER) -> StatementMap:
        """Read both files; an empty map where there are none."""
        found = cls()
        for line in _lines(folder / STATEMENTS):
            room, key, *chosen = line.split("\t")
            pairs = (part.split(": ") for part in chosen)
            found.statements[key] = Statement(room, {name: tuple(tests.split()) for name, tests in pairs})
        for line in _lines(folder / TESTS):
            path, _, names = line.partition(": ")
            for name in names.split(" "):
                test, _, databases = name.partition("@")
                found.tests[f"{path}::{test}"] = tuple(databases.split(",")) if databases else DATABASES
        return found

    def save(self, folder: Path = FOLDER) -> None:
        """Write both files."""
        lines = []
        for key, statement in self.statements.items():
            chosen = (f"{name}: {' '.join(statement.tests[name])}" for name in DATABASES if name in statement.tests)
            lines.append("\t".join([statement.room, key, *chosen]))
        _write(folder / STATEMENTS, lines)
        by_file: dict[str, list[str]] = defaultdict(list)
        for test, databases in self.tests.items():
            path, _, name = test.partition("::")
            by_file[path].append(name if databases == DATABASES else f"{name}@{','.join(databases)}")
        _write(folder / TESTS, [f"{path}: {' '.join(sorted(names))}" for path, names in by_file.items()])

    def chosen(self, database: str) -> frozenset[str]:
        """The tests that the short run has for the statements of a database."""
        each = (statement.tests.get(database, ()) for statement in self.statements.values())
        return frozenset(test for tests in each for test in tests)

    def of_rooms(self, rooms: Iterable[str], database: str) -> frozenset[str]:
        """The tests chosen for the statements that these rooms send."""
        wanted = set(rooms)
        each = (s.tests.get(database, ()) for s in self.statements.values() if s.room in wanted)
        return frozenset(test for tests in each for test in tests)

    def unknown(self, database: str, shapes: Mapping[str, str]) -> list[str]:
        """The statements, as "room: statement", that are not in the map of a database."""
        known = {key for key, statement in self.statements.items() if database in statement.tests}
        return sorted(f"{room}: {key}" for text, room in shapes.items() if (key := key_of(text)) not in known)


def exists(test: str) -> bool:
    """Whether the file of a test of the map still has a function of its name."""
    path, _, name = test.partition("::")
    return name.rpartition("::")[2] in _functions(FOLDER.parent / path)


@cache
def _functions(path: Path) -> frozenset[str]:
    if not path.exists():
        return frozenset()
    return frozenset(re.findall(r"^ *(?:async )?def (\w+)", path.read_text(), re.MULTILINE))


def id_of(nodeid: str) -> str:
    """The test of a node id of pytest: without parameters and the leading tests/."""
    return nodeid.partition("[")[0].removeprefix("tests/").replace(" ", "_")


def _lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


def _write(path: Path, lines: list[str]) -> None:
    path.write_text("".join(f"{line}\n" for line in sorted(lines)))
