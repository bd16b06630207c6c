"""python -m tests.selection.quick: what `make quick` runs besides tests/unit, as arguments of pytest.

These are the test files that the working tree changes, and for each room of the package that it changes the tests that
the map has for the statements of the room, on SQLite. What was committed since origin/main counts, too.
"""

from __future__ import annotations

from collections.abc import Sequence

from tests.selection.changes import changed_files
from tests.selection.choosing import folders_of
from tests.selection.statement_map import ROOT, StatementMap


def chosen(files: Sequence[str], known: StatementMap) -> list[str]:
    """Paths and tests, sorted."""
    tests = {path for path in files if path.startswith("tests/") and path.rpartition("/")[2].startswith("test_")}
    rooms = {path.split("/")[1].removesuffix(".py") for path in files if path.startswith("jobqueue/")}
    tests |= {f"tests/{test}" for test in known.of_rooms(rooms, "sqlite")}
    if not known.of_rooms(rooms, "sqlite"):
        # Rooms that send no statement.
        tests |= {f"tests/{folder}" for room in rooms for folder in folders_of(room)}
    return sorted(test for test in tests if (ROOT / test.partition("::")[0]).exists() and not _is_slow(test))


def _is_slow(test: str) -> bool:
    return test.startswith(("tests/process/", "tests/proofs/", "tests/browser/"))


if __name__ == "__main__":
    print(*chosen(changed_files(), StatementMap.load()))
