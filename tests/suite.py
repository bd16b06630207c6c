"""python -m tests.suite [pytest arguments]: the suite once per database, then one line per database and Django.

Runs under tests.servers, which names the servers in JOBQUEUE_TEST_<KIND>_URL and says what it could not provide in
JOBQUEUE_TEST_MISSING. JOBQUEUE_TEST_PYTHON6 is a Python with Django 6.x: there the suite runs on SQLite and MySQL, and
this Python, with Django 5.2, runs it on MariaDB and PostgreSQL, and the verbs again on SQLite and MySQL. The process
tests run beside the rest, on a server of their own. With --only-given everything that is given, and nothing else, runs
on this Python.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from tests.servers import control
from tests.servers.state import url_variable

DATABASES = ("sqlite", "mysql", "mariadb", "postgres")
ON_DJANGO_6 = ("sqlite", "mysql")
_printing = threading.Lock()
#: needs no database, or no more than SQLite, so once is enough
ONCE = ("tests/unit", "tests/architecture", "tests/packaging", "tests/conformance")
#: what writes and reads jobs
VERBS = tuple(f"tests/{room}" for room in ("producer", "transitions", "ordering", "tasks", "worker", "models", "db"))
#: what the other Django runs too, where the suite runs on Django 6; make bench measures on 5.2 only
ON_BOTH = {
    "sqlite": ("tests/unit", *VERBS, "tests/bench", "tests/conformance"),
    "mysql": (*VERBS, "tests/bench"),
}
#: what waits more than it works
BESIDE = "tests/process"
VERSIONS = "import django, platform; print(f'Django {django.__version__}, Python {platform.python_version()}')"


@dataclass(frozen=True)
class Lane:
    """One run of pytest: on which database, with which Python, with which arguments."""

    database: str
    python: str
    arguments: list[str]
    own_server: bool = False

    def run(self) -> tuple[int, str]:
        """Its exit status, and the line that tells it. What pytest says is printed when it has ended."""
        with tempfile.TemporaryDirectory(prefix="jobqueue-test-") as folder:
            env = {**os.environ, "JOBQUEUE_TEST_DB": self.database, "JOBQUEUE_TEST_DIR": folder}
            # The hundreds of workers that tests start would compile everything again, each of them.
            env.pop("PYTHONDONTWRITEBYTECODE", None)
            versions = subprocess.run([self.python, "-c", VERSIONS], check=True, capture_output=True, text=True).stdout
            begun = time.monotonic()
            command = [self.python, "-m", "pytest", "-q", "-p", "no:cacheprovider", *self.arguments]
            if self.own_server:
                env.pop(url_variable(self.database))
                provide = [sys.executable, "-m", "tests.servers", "run", "--state", f"{folder}/servers"]
                command = [*provide, "--only", self.database, "--", *command]
            done = subprocess.run(command, env=env, check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
            ended = "passed" if done.returncode == 0 else "FAILED"
            what = f"{self.database}{', processes' if self.arguments == [BESIDE] else ''}"
            line = f"{what}, {versions.strip()}: {ended} in {time.monotonic() - begun:.0f} s"
            with _printing:
                print(f"\n== {line} ==\n{done.stdout.decode(errors='replace')}", flush=True)
            return done.returncode, line


def tracks(database: str, arguments: list[str], python6: str | None) -> list[list[Lane]]:
    """The runs of one database: tracks go on at the same time, the lanes of a track use the same server in turns."""
    if "--only-given" in arguments:
        given = [argument for argument in arguments if argument != "--only-given"]
        return [[Lane(database, sys.executable, given)]]
    skip = [] if database == "sqlite" else [f"--ignore={folder}" for folder in ONCE]
    newest = python6 if python6 is not None and database in ON_DJANGO_6 else None
    if newest is not None:
        skip.append("--ignore=tests/bench")
    if arguments:
        return [[Lane(database, newest or sys.executable, [*skip, *arguments])]]
    rest = [Lane(database, newest or sys.executable, [*skip, f"--ignore={BESIDE}"])]
    if newest is not None:
        rest.append(Lane(database, sys.executable, [*ON_BOTH[database]]))
    two = database == "sqlite" or _can_have_two(database)
    beside = Lane(database, newest or sys.executable, [BESIDE], own_server=two and database != "sqlite")
    return [rest, [beside]] if two else [[*rest, beside]]


def _can_have_two(database: str) -> bool:
    """Not if somebody named the one to test."""
    server = control.load().get(database)
    return server is not None and server.controllable


def main(arguments: list[str]) -> int:
    """Exit status 0 when every database was tested and passed; what was not tested is said in the last lines."""
    missing = [
        text for name in ("JOBQUEUE_TEST_SETUP_MISSING", "JOBQUEUE_TEST_MISSING") if (text := os.environ.get(name))
    ]
    python6 = os.environ.get("JOBQUEUE_TEST_PYTHON6")
    there = [name for name in DATABASES if name == "sqlite" or f"JOBQUEUE_TEST_{name.upper()}_URL" in os.environ]

    def run(track: list[Lane]) -> list[tuple[int, str]]:
        return [lane.run() for lane in track]

    # All at a time: most tests wait more than they work.
    planned = [track for database in there for track in tracks(database, arguments, python6)]
    with ThreadPoolExecutor(len(planned)) as pool:
        outcomes = [outcome for ended in pool.map(run, planned) for outcome in ended]
    lines = [line for _, line in outcomes]
    lines += [f"{name}: NOT TESTED" for name in DATABASES if name not in there]
    if python6 is None and "--only-given" not in arguments:
        lines.append("Django 6.x: NOT TESTED")
    print("\n" + "\n".join(lines))
    for text in missing:
        print(f"not tested: {text}")
    not_tested = bool(missing) or any("NOT TESTED" in line for line in lines)
    if not_tested and os.environ.get("CI") == "true":
        print("CI=true: what is missing counts as a failure")
        return 1
    return int(any(status for status, _ in outcomes))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
