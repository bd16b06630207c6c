"""python -m tests.suite [pytest arguments]: the suite once per database, then one line per database.

Runs under tests.servers, which names the servers in JOBQUEUE_TEST_<KIND>_URL and says what it could not provide in
JOBQUEUE_TEST_MISSING.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor

DATABASES = ("sqlite", "mysql", "mariadb", "postgres")
_printing = threading.Lock()
#: needs no database, so once is enough
ONCE = ("tests/unit", "tests/architecture", "tests/packaging")


def main(arguments: list[str]) -> int:
    """Exit status 0 when every database was tested and passed; what was not tested is said in the last lines."""
    missing = [
        text for name in ("JOBQUEUE_TEST_SETUP_MISSING", "JOBQUEUE_TEST_MISSING") if (text := os.environ.get(name))
    ]
    there = [name for name in DATABASES if name == "sqlite" or f"JOBQUEUE_TEST_{name.upper()}_URL" in os.environ]
    # Two at a time: the process tests wait more than they work. The slow ones first.
    order = sorted(there, key=lambda name: name != "mysql")
    with ThreadPoolExecutor(2) as pool:
        outcomes = dict(zip(order, pool.map(lambda name: run(name, arguments), order), strict=True))
    lines = []
    for name in DATABASES:
        if name in outcomes:
            status, seconds = outcomes[name]
            lines.append(f"{name}: {'passed' if status == 0 else 'FAILED'} in {seconds:.0f} s")
        else:
            lines.append(f"{name}: NOT TESTED")
    failed = any(status for status, _ in outcomes.values())
    print("\n" + "\n".join(lines))
    for text in missing:
        print(f"not tested: {text}")
    not_tested = bool(missing) or any("NOT TESTED" in line for line in lines)
    if not_tested and os.environ.get("CI") == "true":
        print("CI=true: what is missing counts as a failure")
        return 1
    return int(failed)


def run(database: str, arguments: list[str]) -> tuple[int, float]:
    """pytest on one database: its exit status and seconds. What it says is printed when it has ended."""
    given = "--only-given" in arguments
    arguments = [argument for argument in arguments if argument != "--only-given"]
    skip = [] if given or database == "sqlite" else [f"--ignore={folder}" for folder in ONCE]
    with tempfile.TemporaryDirectory(prefix="jobqueue-test-") as folder:
        env = {**os.environ, "JOBQUEUE_TEST_DB": database, "JOBQUEUE_TEST_DIR": folder}
        # The hundreds of workers that tests start would compile everything again, each of them.
        env.pop("PYTHONDONTWRITEBYTECODE", None)
        begun = time.monotonic()
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *skip, *arguments]
        done = subprocess.run(command, env=env, check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        seconds = time.monotonic() - begun
        with _printing:
            print(f"\n== {database}, {seconds:.0f} s ==\n{done.stdout.decode(errors='replace')}", flush=True)
        return done.returncode, seconds


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
