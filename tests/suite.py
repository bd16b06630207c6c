"""python -m tests.suite [pytest arguments]: the suite once per database, then one line per database and Django.

Runs under tests.servers, which names the servers in JOBQUEUE_TEST_<KIND>_URL and says what it could not provide in
JOBQUEUE_TEST_MISSING. JOBQUEUE_TEST_PYTHON6 is a Python with Django 6.x: there the suite runs on SQLite and MySQL, and
this Python, with Django 5.2, runs it on MariaDB and PostgreSQL. What can differ between the two Djangos runs on both of
them, on SQLite. The process tests wait more than they work, so they run beside the others, on a server of their own.

Without arguments each test runs where tests.matrix says. With arguments (paths, options of pytest) they run on every
database. --db NAME runs everything on one database, --rest what a run without arguments leaves out, and --only-given
what is given, and nothing else, on this Python. --lines FILE writes the last lines into a file too.
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
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tests import matrix
from tests.matrix import DATABASES
from tests.servers import control
from tests.servers.state import url_variable

ON_DJANGO_6 = ("sqlite", "mysql")
_printing = threading.Lock()
#: needs no database, or no more than SQLite, so once is enough
ONCE = ("tests/unit", "tests/architecture", "tests/packaging", "tests/conformance")
#: what can differ between the Djangos and is not on two databases already
ON_BOTH = ("tests/tasks", "tests/conformance")
#: what waits more than it works; the proofs go with it on servers, so that both tracks take the same time
PROCESS = "tests/process"
BESIDE = {"sqlite": (PROCESS,), "mysql": (PROCESS, "tests/proofs"), "postgres": (PROCESS, "tests/proofs")}
#: what writes and reads jobs: --rest runs it on the other Django of each database
VERBS = tuple(
    f"tests/{room}" for room in ("producer", "transitions", "ordering", "gates", "tasks", "worker", "models", "db")
)
VERSIONS = "import django, platform; print(f'Django {django.__version__}, Python {platform.python_version()}')"


@dataclass(frozen=True)
class Outcome:
    """How one run of pytest ended."""

    status: int
    line: str
    report: matrix.Report
    failures: tuple[str, ...] = ()  # a line each, as the summary of pytest has them


@dataclass(frozen=True)
class Lane:
    """One run of pytest: on which database, with which Python, with which arguments, and what matrix leaves out."""

    database: str
    python: str
    arguments: tuple[str, ...] = ()
    leave_out: str = ""
    own_server: bool = False

    def run(self) -> Outcome:
        """Run it, and print what pytest says when it has ended."""
        with tempfile.TemporaryDirectory(prefix="jobqueue-test-") as folder:
            env = {**os.environ, "JOBQUEUE_TEST_DB": self.database, "JOBQUEUE_TEST_DIR": folder}
            env[matrix.VARIABLE] = self.leave_out
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
            ended = "passed" if done.returncode == 0 else "FAILED"
            report = matrix.read(Path(folder))
            seconds = time.monotonic() - begun
            what = f"{self.database}{', processes' if self.arguments[:1] == (PROCESS,) else ''}"
            line = f"{what}, {versions.strip()}: {len(report.ran)} tests {ended} in {seconds:.0f} s"
            output = done.stdout.decode(errors="replace")
            with _printing:
                print(f"\n== {line} ==\n{output}", flush=True)
            failures = [found for found in output.splitlines() if found.startswith(("FAILED ", "ERROR "))]
            if done.returncode:
                # A test may fail because of those before it.
                failures.append(f"the order of its tests: pytest {' '.join(order)}")
            return Outcome(done.returncode, line, report, tuple(failures))


def tracks(database: str, options: argparse.Namespace, python6: str | None) -> list[list[Lane]]:
    """The runs on one database: tracks go on at the same time, the runs of a track one after the other."""
    if options.only_given:
        return [[Lane(database, sys.executable, tuple(options.given))]]
    ours = other = sys.executable
    if python6 is not None:
        ours, other = (python6, ours) if database in ON_DJANGO_6 else (ours, python6)
    skip = () if database == "sqlite" else tuple(f"--ignore={folder}" for folder in ONCE)
    if options.rest:
        again = [Lane(database, other, VERBS)] if other != ours else []
        return [[Lane(database, ours, skip, "rest"), *again]]
    if options.given or options.db:
        return [[Lane(database, ours, (*skip, *options.given))]]
    if database not in BESIDE or not _can_have_two(database):
        return [[Lane(database, ours, skip, "short")]]
    again = [Lane(database, other, ON_BOTH)] if other != ours and database == "sqlite" else []
    away = tuple(f"--ignore={folder}" for folder in BESIDE[database])
    beside = Lane(database, ours, BESIDE[database], "short", own_server=database != "sqlite")
    return [[Lane(database, ours, (*skip, *away), "short")], [*again, beside]]


def _can_have_two(database: str) -> bool:
    """Not if somebody named the one to test."""
    server = control.load().get(database)
    return database == "sqlite" or (server is not None and server.controllable)


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """What `make test` and `make prove` ask for; what is not known here is for pytest."""
    parser = argparse.ArgumentParser(prog="python -m tests.suite", allow_abbrev=False, add_help=False)
    parser.add_argument("--db", choices=DATABASES)
    parser.add_argument("--rest", action="store_true")
    parser.add_argument("--only-given", action="store_true")
    parser.add_argument("--lines", type=Path)
    options, options.given = parser.parse_known_args(arguments)
    return options


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
    if python6 is None and not options.only_given:
        lines.append("Django 6.x: NOT TESTED")
    nowhere = [] if options.rest else matrix.run_nowhere([outcome.report for outcome in outcomes])
    lines += [f"{test}: NOT TESTED, it is left out or skipped on every database" for test in nowhere]
    # Again, because the output of the runs is long and the last lines are what is read.
    failures = [f"{outcome.line.split(',')[0]}: {failure}" for outcome in outcomes for failure in outcome.failures]
    print("\n" + "\n".join([*lines, *failures]))
    if options.lines:
        options.lines.write_text("".join(f"{line}\n" for line in lines))
    for text in missing:
        print(f"not tested: {text}")
    not_tested = bool(missing) or any("NOT TESTED" in line for line in lines)
    if not_tested and os.environ.get("CI") == "true":
        print("CI=true: what is missing counts as a failure")
        return 1
    return int(any(outcome.status for outcome in outcomes))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
