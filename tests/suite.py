"""python -m tests.suite [pytest arguments]: the suite, several runs of pytest at a time, then one line for each.

Runs under tests.servers, which names the servers in JOBQUEUE_TEST_<KIND>_URL and says what it could not provide in
JOBQUEUE_TEST_MISSING. JOBQUEUE_TEST_PYTHON6 is a Python with Django 6.x: SQLite and MySQL are tested there, MariaDB and
PostgreSQL with this Python and Django 5.2.

Without arguments it is the short run: all tests on SQLite, what tests/selection chooses on the other databases, the
process tests on MySQL (and on a database whose code has changed), and what can differ between the Djangos on the other
Django. With paths and options of pytest these run on every database. --db NAME runs everything on one database, and
--all everything everywhere. --map runs the same without processes and proofs, and writes the map of statements anew;
with paths it renews what these tests send.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tests.selection import plugin
from tests.selection.changes import changed_files
from tests.selection.choosing import Recorded, renewed
from tests.selection.statement_map import DATABASES, ON_DJANGO_6, StatementMap
from tests.servers import control
from tests.servers.state import url_variable

_printing = threading.Lock()
#: needs no database, or no more than SQLite, so once is enough
ONCE = tuple(
    f"tests/{kind}" for kind in ("unit", "architecture", "packaging", "conformance", "docs", "browser", "bench")
)
#: the half of the tests on SQLite that start programs, or look at texts
PROGRAMS = (*ONCE, "tests/demo", "tests/cli")
#: what can differ between the Djangos and is not on two databases already
ON_BOTH = ("tests/tasks", "tests/conformance")
#: these tests wait more than they work, and need a server of their own; the short run has so many runs of them
PROCESS, PROCESS_PARTS = "tests/process", 3
PROOFS = "tests/proofs"
#: a change of these files brings the process tests of a database into the short run
BRINGS_IN = {
    "sqlite": ("jobqueue/db/sqlite/",),
    "mariadb": ("jobqueue/db/mariadb/",),
    "postgres": ("jobqueue/db/postgresql/", "jobqueue/wakeup/"),
}
#: what writes and reads jobs: --all runs it on the other Django of each database
VERBS = tuple(
    f"tests/{room}" for room in ("producer", "transitions", "ordering", "gates", "tasks", "worker", "models", "db")
)
VERSIONS = "import django, platform; print(f'Django {django.__version__}, Python {platform.python_version()}')"


@dataclass(frozen=True)
class Outcome:
    """How one run of pytest ended."""

    database: str
    status: int
    line: str
    recorded: Recorded
    left: frozenset[str] = frozenset()
    failures: tuple[str, ...] = ()  # a line each, as the summary of pytest has them


@dataclass(frozen=True)
class Lane:
    """One run of pytest: on which database, with which Python and arguments, and whether tests are left out."""

    database: str
    python: str
    arguments: tuple[str, ...] = ()
    short: bool = False
    own_server: bool = False
    in_map: bool = True  # whether the map has the statements of this Django

    @property
    def has_processes(self) -> bool:
        """Whether it runs process tests."""
        return any(argument.startswith(PROCESS) for argument in self.arguments)

    def run(self) -> Outcome:
        """Run it, and print what pytest says when it has ended."""
        with tempfile.TemporaryDirectory(prefix="jobqueue-test-") as folder:
            env = {**os.environ, "JOBQUEUE_TEST_DB": self.database, plugin.FOLDER: folder}
            env[plugin.VARIABLE] = "short" if self.short else ""
            # The hundreds of workers that tests start would compile everything again, each of them.
            env.pop("PYTHONDONTWRITEBYTECODE", None)
            versions = subprocess.run([self.python, "-c", VERSIONS], check=True, capture_output=True, text=True).stdout
            begun = time.monotonic()
            seed = f"--randomly-seed={random.randrange(2**31)}"
            order = () if "no:randomly" in self.arguments else (seed,)
            command = [self.python, "-m", "pytest", "-q", "-p", "no:cacheprovider", *order, *self.arguments]
            if self.own_server:
                env.pop(url_variable(self.database))
                provide = [sys.executable, "-m", "tests.servers", "run", "--state", f"{folder}/servers"]
                command = [*provide, "--only", self.database, "--", *command]
            done = subprocess.run(command, env=env, check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
            recorded, left = plugin.read(Path(folder))
            ended = "passed" if done.returncode == 0 else "FAILED"
            what = f"{self.database}{', processes' if self.has_processes else ''}"
            line = f"{what}, {versions.strip()}: {len(recorded.ran)} tests {ended} in {time.monotonic() - begun:.0f} s"
            output = done.stdout.decode(errors="replace")
            with _printing:
                print(f"\n== {line} ==\n{output}", flush=True)
            failures = [found for found in output.splitlines() if found.startswith(("FAILED ", "ERROR ", "NEW "))]
            if done.returncode:
                # A test may fail because of those before it.
                failures.append(f"the order of its tests: pytest {' '.join(order)}")
            if not self.in_map:
                recorded.sent.clear()
            return Outcome(self.database, done.returncode, line, recorded, left, tuple(failures))


def tracks(database: str, options: argparse.Namespace, python6: str | None) -> list[list[Lane]]:
    """The runs on one database: tracks go on at the same time, the runs of a track one after the other."""
    ours = other = sys.executable
    if python6 is not None:
        ours, other = (python6, ours) if database in ON_DJANGO_6 else (ours, python6)
    once = () if database == "sqlite" else _without(*ONCE)
    if options.map:
        wanted = (*once, *_without(PROCESS, PROOFS), *options.given)
        # make check compares with the map on SQLite with Django 5.2.
        pythons = dict.fromkeys([ours, other] if database == "sqlite" else [ours])
        return [[Lane(database, python, wanted)] for python in pythons]
    if options.given or options.db:
        return [[Lane(database, ours, (*once, *options.given))]]
    two = _can_have_two(database)
    own_server = two and database != "sqlite"
    beside = Lane(database, ours, (PROCESS,), own_server=own_server)
    if options.all:
        sqlite = database == "sqlite"
        again = [Lane(database, other, () if sqlite else VERBS, in_map=sqlite)] if other != ours else []
        rest = Lane(database, ours, (*once, *_without(PROCESS)))
        return [[rest, *again], [beside]] if two else [[rest, *again, beside]]
    short = Lane(database, ours, (*once, *_without(PROCESS, PROOFS)), short=True)
    found = [[short]]
    if database == "sqlite":
        rest = Lane(database, ours, _without(PROCESS, PROOFS, *PROGRAMS), short=True)
        found = [[Lane(database, ours, PROGRAMS, short=True)], [rest]]
        if other != ours:
            found[1].append(Lane(database, other, ON_BOTH))
    if database == "mysql" or _is_changed(BRINGS_IN[database]):
        parts = [[Lane(database, ours, files, own_server=own_server)] for files in process_parts()]
        found = [*found, *parts] if two else [[short, beside]]
    return found


def process_parts() -> list[tuple[str, ...]]:
    """All process tests in PROCESS_PARTS of about the same length."""
    found = sorted(Path(PROCESS).glob("test_*.py"), key=lambda path: path.stat().st_size)
    files = [str(path) for path in found]
    return [tuple(files[number::PROCESS_PARTS]) for number in range(PROCESS_PARTS)]


def _without(*folders: str) -> tuple[str, ...]:
    return tuple(f"--ignore={folder}" for folder in folders)


def _can_have_two(database: str) -> bool:
    """Not if somebody named the one to test."""
    server = control.load().get(database)
    return database == "sqlite" or (server is not None and server.controllable)


def _is_changed(paths: tuple[str, ...]) -> bool:
    """Whether the working tree or the newest commits change files below these paths."""
    return any(path.startswith(paths) for path in changed_files())


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """What the targets of make ask for; what is not known here is for pytest."""
    parser = argparse.ArgumentParser(prog="python -m tests.suite", allow_abbrev=False, add_help=False)
    parser.add_argument("--db", choices=DATABASES)
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--map", action="store_true")
    options, options.given = parser.parse_known_args(arguments)
    return options


def run_nowhere(outcomes: Sequence[Outcome]) -> list[str]:
    """The tests that some run has left out or skipped, and no other run has run."""
    ran = {test for outcome in outcomes for test in outcome.recorded.ran}
    left = {test for outcome in outcomes for test in outcome.left}
    return sorted(left - ran)


def recorded_by_database(outcomes: Iterable[Outcome]) -> dict[str, Recorded]:
    """What all runs on each database have recorded together."""
    found: dict[str, Recorded] = {}
    for outcome in outcomes:
        found.setdefault(outcome.database, Recorded()).add(outcome.recorded)
    return found


def compared(runs: dict[str, Recorded]) -> list[str]:
    """What a run of everything has seen that the map does not have, a line each."""
    known = StatementMap.load()
    lines = [
        f"{database}: NEW statement, run make test-map: {line}"
        for database, run in runs.items()
        for line in known.unknown(database, {text: room for sent in run.sent.values() for text, room in sent.items()})
    ]
    ran = {test for run in runs.values() for test in run.ran if not test.startswith(("process/", "proofs/"))}
    return lines + [f"NEW test, run make test-map: {test}" for test in sorted(ran - known.tests.keys())]


def main(arguments: Sequence[str]) -> int:
    """Exit status 0 when every database was tested and passed; what was not tested is said in the last lines."""
    options = parse(arguments)
    missing = [
        text for name in ("JOBQUEUE_TEST_SETUP_MISSING", "JOBQUEUE_TEST_MISSING") if (text := os.environ.get(name))
    ]
    python6 = os.environ.get("JOBQUEUE_TEST_PYTHON6")
    wanted = [options.db] if options.db else DATABASES
    there = [name for name in wanted if name == "sqlite" or f"JOBQUEUE_TEST_{name.upper()}_URL" in os.environ]

    def run(track: list[Lane]) -> list[Outcome]:
        return [lane.run() for lane in track]

    # While one waits for a worker or a lease, the others have the processors.
    planned = [track for database in there for track in tracks(database, options, python6)]
    with ThreadPoolExecutor(max(1, len(planned))) as pool:
        outcomes = [outcome for ended in pool.map(run, planned) for outcome in ended]
    lines = [outcome.line for outcome in outcomes]
    lines += [f"{name}: NOT TESTED" for name in wanted if name not in there]
    if python6 is None:
        lines.append("Django 6.x: NOT TESTED")
    lines += [f"{test}: NOT TESTED, it is left out or skipped on every database" for test in run_nowhere(outcomes)]
    # Again, because the output of the runs is long and the last lines are what is read.
    lines += [f"{outcome.line.split(',')[0]}: {failure}" for outcome in outcomes for failure in outcome.failures]
    status = int(any(outcome.status for outcome in outcomes))
    runs = recorded_by_database(outcomes)
    if options.map:
        renewed(StatementMap.load(), runs, whole=not options.given).save()
        written = "the map of statements is written: tests/selection/statements.txt and tests.txt"
        lines.append(f"{written}; without what the failed tests would have sent" if status else written)
    if options.all:
        news = compared(runs)
        lines += news
        status = status or int(bool(news))
    print("\n" + "\n".join(lines))
    for text in missing:
        print(f"not tested: {text}")
    not_tested = bool(missing) or any("NOT TESTED" in line for line in lines)
    if not_tested and os.environ.get("CI") == "true":
        print("CI=true: what is missing counts as a failure")
        return 1
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
