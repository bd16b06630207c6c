"""Tables that django-celery-beat and django-q2 have made and filled themselves."""

from __future__ import annotations

import json
import os
import subprocess
from datetime import UTC
from pathlib import Path

import pytest
from django.conf import settings
from django.db import connection

from jobqueue import schedules
from jobqueue.schedules.importing import carry_out, plan
from tests.launch import ROOT
from tests.marks import committed
from tests.proofs.schedules.foreign_packages import COUNT

PYTHON = Path(os.environ.get("JOBQUEUE_PROVE_IMPORT_PYTHON", ROOT / ".venv-import" / "bin" / "python"))
USING = "default"
pytestmark = [
    committed,
    pytest.mark.skipif(not PYTHON.exists(), reason="no .venv-import: make test makes it"),
]


def packages(what):
    """Let the packages fill or drop their tables in the test database."""
    kept = ("ENGINE", "NAME", "USER", "PASSWORD", "HOST", "PORT", "OPTIONS")
    database = {key: connection.settings_dict[key] for key in kept}
    asked = {"do": what, "zone": settings.TIME_ZONE, "database": database | {"NAME": str(database["NAME"])}}
    env = {key: value for key, value in os.environ.items() if not key.startswith(("JOBQUEUE_", "DJANGO_"))}
    command = [str(PYTHON), "-m", "tests.proofs.schedules.foreign_packages"]
    done = subprocess.run(
        command, input=json.dumps(asked), cwd=ROOT, env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout) if done.stdout else {}


@pytest.fixture
def expected(transactional_db):
    """The next ticks by source and name."""
    connection.close()
    try:
        yield packages("fill")
    finally:
        packages("drop")


@pytest.mark.parametrize("source", ["beat", "django-q2"])
def test_an_imported_table_has_the_next_ticks_that_its_package_calculates(source, expected, figure):
    """Tables and rows made by the packages; the next ticks of each row, as the package calculates them and as ours."""
    outcomes = carry_out(plan(source, {}, using=USING), by="ann", using=USING)
    assert {one.name: one.outcome for one in outcomes} == dict.fromkeys(expected[source], "new")
    compared = different = 0
    for name, ticks in expected[source].items():
        found = [
            f"{tick.astimezone(UTC):%Y-%m-%dT%H:%M:%S}" for tick in schedules.preview(name, COUNT - 1, using=USING)
        ]
        # The first one may have passed since the package calculated it.
        same = found in (ticks[: COUNT - 1], ticks[1:])
        compared += len(found)
        different += 0 if same else len(found)
        assert same, (name, ticks, found)
    figure("source", source)
    figure("rows imported", len(outcomes))
    figure("next ticks compared / different", f"{compared} / {different}")
