"""python -m tests.suite [pytest arguments]: the suite once per database, then one line per database and Django.

Runs under tests.servers, which names the servers in JOBQUEUE_TEST_<KIND>_URL and says what it could not provide in
JOBQUEUE_TEST_MISSING. JOBQUEUE_TEST_PYTHON6 is a Python with Django 6.x: there the suite runs on SQLite and MySQL, and
this Python, with Django 5.2, runs it on MariaDB and PostgreSQL, and the verbs again on SQLite and MySQL. With
--only-given everything that is given, and nothing else, runs on this Python.
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

DATABASES = ("sqlite", "mysql", "mariadb", "postgres")
ON_DJANGO_6 = ("sqlite", "mysql")
_printing = threading.Lock()
#: needs no database, or no more than SQLite, so once is enough
ONCE = ("tests/unit", "tests/architecture", "tests/packaging", "tests/conformance")
#: what the other Django runs too, where the suite runs on Django 6; make bench measures on 5.2 only
ON_BOTH = {
    "sqlite": ("tests/unit", "tests/queue", "tests/bench", "tests/conformance"),
    "mysql": ("tests/queue", "tests/bench"),
}
VERSIONS = "import django, platform; print(f'Django {django.__version__}, Python {platform.python_version()}')"


@dataclass(frozen=True)
class Lane:
    """One run of pytest: on which database, with which Python, with which arguments."""

    database: str
    python: str
    arguments: list[str]

    def run(self) -> tuple[int, str]:
        """Its exit status, and the line that tells it. What pytest says is printed when it has ended."""
        with tempfile.TemporaryDirectory(prefix="jobqueue-test-") as folder:
            env = {**os.environ, "JOBQUEUE_TEST_DB": self.database, "JOBQUEUE_TEST_DIR": folder}
            # The hundreds of workers that tests start would compile everything again, each of them.
            env.pop("PYTHONDONTWRITEBYTECODE", None)
            versions = subprocess.run([self.python, "-c", VERSIONS], check=True, capture_output=True, text=True).stdout
            begun = time.monotonic()
            command = [self.python, "-m", "pytest", "-q", "-p", "no:cacheprovider", *self.arguments]
            done = subprocess.run(command, env=env, check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
            ended = "passed" if done.returncode == 0 else "FAILED"
            line = f"{self.database}, {versions.strip()}: {ended} in {time.monotonic() - begun:.0f} s"
            with _printing:
                print(f"\n== {line} ==\n{done.stdout.decode(errors='replace')}", flush=True)
            return done.returncode, line


def lanes(database: str, arguments: list[str], python6: str | None) -> list[Lane]:
    """The runs of one database, one after the other: they use the same server."""
    if "--only-given" in arguments:
        given = [argument for argument in arguments if argument != "--only-given"]
        return [Lane(database, sys.executable, given)]
    skip = [] if database == "sqlite" else [f"--ignore={folder}" for folder in ONCE]
    if python6 is None or database not in ON_DJANGO_6:
        return [Lane(database, sys.executable, [*skip, *arguments])]
    both = Lane(database, sys.executable, [*ON_BOTH[database]])
    return [Lane(database, python6, [*skip, "--ignore=tests/bench", *arguments]), *([] if arguments else [both])]


def main(arguments: list[str]) -> int:
    """Exit status 0 when every database was tested and passed; what was not tested is said in the last lines."""
    missing = [
        text for name in ("JOBQUEUE_TEST_SETUP_MISSING", "JOBQUEUE_TEST_MISSING") if (text := os.environ.get(name))
    ]
    python6 = os.environ.get("JOBQUEUE_TEST_PYTHON6")
    there = [name for name in DATABASES if name == "sqlite" or f"JOBQUEUE_TEST_{name.upper()}_URL" in os.environ]

    def run(database: str) -> list[tuple[int, str]]:
        return [lane.run() for lane in lanes(database, arguments, python6)]

    # All at a time: the process tests wait more than they work, and each database has a server of its own.
    with ThreadPoolExecutor(len(DATABASES)) as pool:
        outcomes = dict(zip(there, pool.map(run, there), strict=True))
    lines = [line for name in DATABASES for _, line in outcomes.get(name, [(0, f"{name}: NOT TESTED")])]
    if python6 is None and "--only-given" not in arguments:
        lines.append("Django 6.x: NOT TESTED")
    print("\n" + "\n".join(lines))
    for text in missing:
        print(f"not tested: {text}")
    not_tested = bool(missing) or any("NOT TESTED" in line for line in lines)
    if not_tested and os.environ.get("CI") == "true":
        print("CI=true: what is missing counts as a failure")
        return 1
    return int(any(status for ran in outcomes.values() for status, _ in ran))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
