"""The plugin of pytest that leaves tests out of the short run, and records which statements each test sends.

JOBQUEUE_TEST_RUN says which tests run:

    not set   all that are given. So it is for pytest by hand, `make test DB=name` and `make test-all`.
    short     on SQLite all; on a server those that the map has for it (tests/selection/statement_map.py), the
              kinds of tests that need a server, those that SQLite skips, and those that the map does not know yet.

A statement of the product that the map does not have for the database fails a run that says so: "run make test-map".
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Generator, Mapping
from pathlib import Path
from typing import Any

import django
import pytest

from tests.selection.choosing import Recorded
from tests.selection.recorder import Recorder
from tests.selection.statement_map import ON_DJANGO_6, ROOT, StatementMap, id_of

VARIABLE, FOLDER = "JOBQUEUE_TEST_RUN", "JOBQUEUE_TEST_DIR"
#: what a run has seen, for tests.suite
REPORT = "recorded.json"
#: what runs on a server whatever the map says: real concurrency, the server's plans and locks, its errors, its sessions
ON_SERVERS = {
    "mysql": ("races", "plans", "faults", "locks", "db"),
    "postgres": ("races", "plans", "faults", "locks", "db"),
    "mariadb": ("races", "plans", "locks", "db"),
}


class Selection:
    """Whether a test runs on a database in the short run."""

    def __init__(self, known: StatementMap, database: str) -> None:
        self._tests, self._database = known.tests, database
        self._chosen = known.chosen(database)
        self._kinds = ON_SERVERS.get(database, ())
        self._files = {test.partition("::")[0] for test in known.tests}
        self._wanted_files = {test.partition("::")[0] for test in known.tests if self.runs(test)}

    def runs(self, test: str) -> bool:
        """`test` as the map names it."""
        where = self._tests.get(test)
        if self._database == "sqlite" or where is None or test in self._chosen:
            return True
        return test.split("/")[0] in self._kinds or ("sqlite" not in where and self._database in where)

    def needs(self, path: str) -> bool:
        """Whether a file may have such a test; `path` is below tests/. False only where all its tests are known."""
        return self._database == "sqlite" or path not in self._files or path in self._wanted_files


class Plugin:
    """Chooses and records."""

    def __init__(self, database: str, mode: str, folder: Path | None) -> None:
        self.database, self.folder = database, folder
        self.map = StatementMap.load()
        self.selection = Selection(self.map, database) if mode == "short" else None
        self.recorder = Recorder()
        self.recorded = Recorded()
        self.left: set[str] = set()
        self.unknown: list[str] = []

    def pytest_sessionstart(self) -> None:
        """See the statements of this process."""
        self.recorder.install()

    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        """Leave out what the short run does not have."""
        if self.selection is None:
            return
        kept, left = [], []
        for item in items:
            (kept if self.selection.runs(id_of(item.nodeid)) else left).append(item)
        self.left = {id_of(item.nodeid) for item in left}
        items[:] = kept
        config.hook.pytest_deselected(items=left)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, Any, Any]:
        """Count the processor time of a test with its fixtures."""
        begun = time.process_time()
        try:
            return (yield)
        finally:
            test = id_of(item.nodeid)
            spent = self.recorded.cpu_seconds
            spent[test] = spent.get(test, 0.0) + time.process_time() - begun

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, Any, Any]:
        """Record for this test."""
        self.recorder.test = id_of(item.nodeid)
        try:
            return (yield)
        finally:
            self.recorder.test = None
            self.recorder.forget_texts()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Remember what was not skipped."""
        test = id_of(report.nodeid)
        if report.skipped:
            self.recorded.skipped.add(test)
        elif report.when == "call":
            self.recorded.ran.add(test)

    @pytest.hookimpl(wrapper=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> Generator[None, Any, Any]:
        """Compare with the map. A run fails for a new statement of a test that the map knows."""
        self.recorded.skipped -= self.recorded.ran
        self.recorded.sent = dict(self.recorder.sent)
        self.unknown = self.map.unknown(self.database, self.recorder.shapes)
        if not self._complains():
            self.unknown = []
        if self.unknown and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
        if self.folder is not None:
            (self.folder / REPORT).write_text(json.dumps(_plain(self.recorded, self.left)))
        return (yield)

    def _complains(self) -> bool:
        """Not in a run by hand, which may try things, and not on a Django whose statements the map does not have."""
        own_django = self.database == "sqlite" or (django.VERSION >= (6,)) == (self.database in ON_DJANGO_6)
        return self.selection is not None and own_django

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Say what was left out, and which statements are new."""
        if self.left:
            terminalreporter.write_line(
                f"{len(self.left)} tests run on other databases; make test-all runs them here too"
            )
        if self.unknown:
            terminalreporter.write_line(f"{len(self.unknown)} statements are not in the map: run make test-map")
            for line in self.unknown[:20]:
                terminalreporter.write_line(f"NEW statement, run make test-map: {line}")


class Collection:
    """Leaves out files without collecting them; registered beside the plugin in a short run."""

    def __init__(self, selection: Selection) -> None:
        self._selection = selection

    def pytest_ignore_collect(self, collection_path: Path) -> bool | None:
        """True leaves a file out."""
        if collection_path.suffix != ".py" or not collection_path.is_relative_to(ROOT / "tests"):
            return None
        return None if self._selection.needs(str(collection_path.relative_to(ROOT / "tests"))) else True


def _plain(recorded: Recorded, left: set[str]) -> Mapping[str, Any]:
    return {
        "ran": sorted(recorded.ran),
        "skipped": sorted(recorded.skipped),
        "left": sorted(left),
        "sent": recorded.sent,
        "cpu_seconds": {test: round(seconds, 4) for test, seconds in recorded.cpu_seconds.items()},
    }


def read(folder: Path) -> tuple[Recorded, frozenset[str]]:
    """What a run has recorded, and what it has left out; nothing if it wrote nothing."""
    path = folder / REPORT
    if not path.exists():
        return Recorded(), frozenset()
    found = json.loads(path.read_text())
    recorded = Recorded(set(found["ran"]), set(found["skipped"]), found["sent"], found["cpu_seconds"])
    return recorded, frozenset(found["left"])


def register(config: pytest.Config, database: str) -> None:
    """Do what JOBQUEUE_TEST_RUN says."""
    # Not for runs of pytest that tests start.
    mode = os.environ.pop(VARIABLE, "")
    if mode not in ("", "short"):
        raise pytest.UsageError(f"{VARIABLE} is short or not set, not {mode!r}")
    folder = os.environ.get(FOLDER)
    if not mode and not folder:
        return
    plugin = Plugin(database, mode, Path(folder) if folder else None)
    config.pluginmanager.register(plugin)
    if plugin.selection is not None:
        config.pluginmanager.register(Collection(plugin.selection))
