"""python -m tests.suite [pytest arguments]: the suite once per database, then one line per database.

Runs under tests.servers, which names the servers in JOBQUEUE_TEST_<KIND>_URL and says what it could not provide in
JOBQUEUE_TEST_MISSING.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time

DATABASES = ("sqlite", "mysql", "mariadb", "postgres")
#: needs no database, so once is enough
ONCE = ("tests/unit", "tests/architecture", "tests/packaging")


def main(arguments: list[str]) -> int:
    """Exit status 0 when every database was tested and passed; what was not tested is said in the last lines."""
    missing = [
        text for name in ("JOBQUEUE_TEST_SETUP_MISSING", "JOBQUEUE_TEST_MISSING") if (text := os.environ.get(name))
    ]
    lines, failed = [], False
    for database in DATABASES:
        if database != "sqlite" and f"JOBQUEUE_TEST_{database.upper()}_URL" not in os.environ:
            lines.append(f"{database}: NOT TESTED")
            continue
        begun = time.monotonic()
        status = run(database, arguments)
        failed = failed or status != 0
        lines.append(f"{database}: {'passed' if status == 0 else 'FAILED'} in {time.monotonic() - begun:.0f} s")
    print("\n" + "\n".join(lines))
    for text in missing:
        print(f"not tested: {text}")
    not_tested = bool(missing) or any("NOT TESTED" in line for line in lines)
    if not_tested and os.environ.get("CI") == "true":
        print("CI=true: what is missing counts as a failure")
        return 1
    return int(failed)


def run(database: str, arguments: list[str]) -> int:
    """pytest on one database."""
    given = "--only-given" in arguments
    arguments = [argument for argument in arguments if argument != "--only-given"]
    skip = [] if given or database == "sqlite" else [f"--ignore={folder}" for folder in ONCE]
    with tempfile.TemporaryDirectory(prefix="jobqueue-test-") as folder:
        env = {**os.environ, "JOBQUEUE_TEST_DB": database, "JOBQUEUE_TEST_DIR": folder}
        print(f"\n== {database} ==", flush=True)
        return subprocess.run(
            [sys.executable, "-m", "pytest", "-q", *skip, *arguments], env=env, check=False
        ).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
