"""The pages of other packages' admins among as many jobs as ours."""

from __future__ import annotations

import json
import os
import re
import subprocess
from contextlib import contextmanager
from pathlib import Path
from statistics import median

import pytest
from django.db import connection
from django.db.migrations.recorder import MigrationRecorder

from tests.launch import ROOT
from tests.proofs.dashboard.rival_rows import RIVALS
from tests.proofs.schedules.rows import CHUNK, drop_numbers, make_numbers, refresh, run

PYTHON = Path(os.environ.get("JOBQUEUE_PROVE_RIVALS_PYTHON", ROOT / ".venv-rivals" / "bin" / "python"))
#: a page that has not come by then is written "over 60 s"
LIMIT_SECONDS = 60
SECONDS = r"\d+\.\d{3} s"
#: of a page that is fast; one that takes more than a tenth of the limit is asked for once
TIMES = 5
pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.timeout(7200),
    pytest.mark.skipif(not PYTHON.exists(), reason="no .venv-rivals: make test makes it"),
]


class Fails(Exception):
    """A process of a package has ended with an error."""

    def __str__(self):
        return self.args[0].strip().splitlines()[-1][:200]


def asked(rival, do, seconds, **more):
    """The values that the process of a package prints; the last one is "over" if it was ended after `seconds`."""
    kept = ("ENGINE", "NAME", "USER", "PASSWORD", "HOST", "PORT")
    database = {key: connection.settings_dict[key] for key in kept}
    words = {"rival": rival, "do": do, "database": database | {"NAME": str(database["NAME"])}, "chunk": CHUNK, **more}
    env = {key: value for key, value in os.environ.items() if not key.startswith(("JOBQUEUE_", "DJANGO_"))}
    command = [str(PYTHON), "-m", "tests.proofs.dashboard.rivals"]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT, env=env, text=True
    )
    try:
        out, err = process.communicate(json.dumps(words), timeout=seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        out, err = process.communicate()
        return [*map(json.loads, out.splitlines()), "over"]
    if process.returncode:
        raise Fails(err[-3000:])
    return [json.loads(line) for line in out.splitlines()]


@contextmanager
def filled(rival, rows):
    """The tables of a package with so many rows; gone afterwards."""
    tables = []
    make_numbers()
    connection.close()
    try:
        (tables,) = asked(rival, "make", 300)
        asked(rival, "fill", 7000, rows=rows)
        refresh(*tables)
        connection.close()
        yield
    finally:
        drop_numbers()
        _drop(tables)
        MigrationRecorder.Migration.objects.filter(app=RIVALS[rival].label).delete()


def _drop(tables):
    quoted = ", ".join(map(connection.ops.quote_name, tables))
    if not tables:
        return
    if connection.vendor == "sqlite":
        with connection.constraint_checks_disabled():
            for table in tables:
                run(f"DROP TABLE {connection.ops.quote_name(table)}")
        return
    if connection.vendor == "mysql":
        run("SET SESSION FOREIGN_KEY_CHECKS = 0")
    run(f"DROP TABLE {quoted} CASCADE")
    connection.close()


def told(seconds):
    """The median of the requests, in words."""
    numbers = [one for one in seconds if one != "over"]
    if not numbers or median(numbers) > LIMIT_SECONDS:
        return f"over {LIMIT_SECONDS} s"
    return f"{median(numbers):.3f} s"


def of_page(rival, address, full):
    """The seconds of up to TIMES requests of a page, which a process of its own asks for."""
    first = asked(rival, "page", LIMIT_SECONDS + 30, address=address, times=1, limit=LIMIT_SECONDS)
    if not full or first[0] == "over" or first[0] > LIMIT_SECONDS / 10:
        return first
    # The first request of a process compiles templates.
    return asked(rival, "page", 10 * LIMIT_SECONDS, address=address, times=TIMES + 1, limit=LIMIT_SECONDS)[1:]


@pytest.mark.parametrize("rival", RIVALS)
def test_the_pages_of_another_package(rival, full, row):
    """Pages of admins among 2,000,000 jobs: the median of five requests."""
    rows = 2_000_000 if full else 2_000
    try:
        with filled(rival, rows):
            for page, address in RIVALS[rival].pages.items():
                took = _time_of(rival, address, full)
                assert full or re.fullmatch(SECONDS, took), (page, took)
                row(package=rival, page=page, jobs=f"{rows:,}", time=took)
    except Fails as failure:
        # A package that does not work on this database is told so, too.
        if not full:
            raise AssertionError(failure.args[0]) from None
        row(package=rival, page="-", jobs="-", time=f"cannot be set up: {failure}")


def _time_of(rival, address, full):
    try:
        return told(of_page(rival, address, full))
    except Fails as failure:
        if not full:
            raise
        return f"fails: {failure}"
