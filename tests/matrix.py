"""Which tests a run leaves out, because it is enough that they run on other databases.

A test without the mark enough_on() runs on every database. JOBQUEUE_TEST_MATRIX says what happens to the others:

    not set   they run. So it is for pytest by hand, `make test DB=name` and `make test` with paths.
    short     they run on the databases that their mark names. So it is for `make test`.
    rest      they run on the other databases, and nothing else runs but tests marked sized: `make prove ISSUE=matrix`.

A test marked sized is smaller in `make test` than it could be: JOBQUEUE_TEST_FULL is set for its full size.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

DATABASES = ("sqlite", "mysql", "mariadb", "postgres")
VARIABLE = "JOBQUEUE_TEST_MATRIX"
FULL = "JOBQUEUE_TEST_FULL" in os.environ
sized = pytest.mark.sized
#: which tests a run has run, and which it has left out, for tests.suite
REPORT = "matrix.json"


@dataclass(frozen=True)
class Report:
    """The node ids of the tests that a run has run, and of those that it has left out."""

    ran: frozenset[str]
    left: frozenset[str]


def enough_on(*databases: str, why: str) -> pytest.MarkDecorator:
    """These databases are enough for `make test`, because of `why`. The mark of a test wins over that of its file."""
    if not databases or not set(databases) <= set(DATABASES):
        raise ValueError(f"enough_on() needs some of {', '.join(DATABASES)}, not {', '.join(databases) or 'none'}")
    return pytest.mark.enough_on(databases=databases, why=why)


#: for what drivers do; SQLite has its own
each_driver = enough_on("sqlite", "mysql", "postgres", why="the drivers differ, and MariaDB has that of MySQL")


class Matrix:
    """A plugin of pytest that leaves tests out, and writes which ones to `folder`."""

    def __init__(self, database: str, mode: str, folder: Path | None) -> None:
        self.database, self.mode, self.folder = database, mode, folder
        self.ran: set[str] = set()
        self.left: list[str] = []

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        """Leave out what the mode says."""
        kept, left = [], []
        for item in items:
            (kept if self._runs(item) else left).append(item)
        self.left = [item.nodeid for item in left]
        items[:] = kept
        config.hook.pytest_deselected(items=left)

    def _runs(self, item: pytest.Item) -> bool:
        mark = item.get_closest_marker("enough_on")
        enough = mark is None or self.database in mark.kwargs["databases"]
        if self.mode == "rest":
            return not enough or item.get_closest_marker("sized") is not None
        return enough or not self.mode

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Remember what was not skipped."""
        if report.when == "call" and not report.skipped:
            self.ran.add(report.nodeid)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Say how many tests were left out, and write down which ones."""
        if self.mode == "short":
            line = f"{len(self.left)} tests run on other databases only; make prove ISSUE=matrix runs them here too"
            terminalreporter.write_line(line)
        if self.folder is not None:
            found = {"ran": sorted(self.ran), "left": sorted(self.left)}
            (self.folder / REPORT).write_text(json.dumps(found))


def register(config: pytest.Config, database: str) -> None:
    """Do what JOBQUEUE_TEST_MATRIX says."""
    mode = os.environ.get(VARIABLE, "")
    if mode not in ("", "short", "rest"):
        raise pytest.UsageError(f"{VARIABLE} is short, rest or not set, not {mode!r}")
    folder = os.environ.get("JOBQUEUE_TEST_DIR")
    if mode or folder:
        config.pluginmanager.register(Matrix(database, mode, Path(folder) if folder else None))


def read(folder: Path) -> Report:
    """The report of a run; an empty one if it wrote none."""
    path = folder / REPORT
    found = json.loads(path.read_text()) if path.exists() else {"ran": [], "left": []}
    return Report(frozenset(found["ran"]), frozenset(found["left"]))


def run_nowhere(reports: Sequence[Report]) -> list[str]:
    """The tests that some run has left out, and no other run has run."""
    ran = frozenset[str]().union(*(report.ran for report in reports))
    left = frozenset[str]().union(*(report.left for report in reports))
    return sorted(left - ran)
