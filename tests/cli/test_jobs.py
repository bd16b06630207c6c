"""manage.py jobs: Django's options after a sub-command, the help, and a database without our tables."""

from io import StringIO

import pytest
from django.core.management import ManagementUtility, call_command
from django.db import connection

from jobqueue.cli.arguments import NO_DATABASE
from jobqueue.management.commands.jobs import SUBCOMMANDS
from jobqueue.models import Job
from tests.doctor.helpers import add_worker
from tests.factories import make_in_state
from tests.marks import committed
from tests.matrix import enough_on

pytestmark = [pytest.mark.django_db, enough_on("sqlite", why="options are parsed before the database is asked")]


def run(capsys, *words):
    ManagementUtility(["manage.py", "jobs", *words]).execute()
    return capsys.readouterr().out


@pytest.mark.parametrize("name", SUBCOMMANDS)
@pytest.mark.parametrize(
    "option", ["-v2", "--verbosity=2", "--settings=tests.settings", "--pythonpath=.", "--no-color", "--traceback"]
)
def test_the_options_of_django_are_taken_after_a_subcommand(capsys, name, option):
    states = {"retry": "CANCELED", "show": "DONE", "cancel": "READY", "discard": "READY", "release": "PROCESSING"}
    if name == "doctor":
        add_worker()
    words = [str(make_in_state(states[name]))] if name in states else ["--dry-run"] if name == "prune" else []
    assert run(capsys, name, option, *words)


@pytest.mark.parametrize("words", [("-v0", "keys"), ("keys", "-v0")])
def test_the_verbosity_holds_wherever_it_is_written(capsys, words):
    assert run(capsys, *words) == ""


def test_without_a_subcommand_it_prints_its_help(capsys):
    said = run(capsys)
    assert said.startswith("usage: manage.py jobs")
    assert all(name in said for name in SUBCOMMANDS)
    out = StringIO()
    call_command("jobs", stdout=out)
    assert "usage:" in out.getvalue()


@committed
def test_missing_tables_are_told_with_the_command_that_makes_them(capsys):
    with connection.schema_editor() as editor:
        editor.alter_db_table(Job, "job_queue", "job_table_away")
    try:
        for words in (["jobs", "unrunnable"], ["runworker", "--dry-run"]):
            with pytest.raises(SystemExit) as stopped:
                ManagementUtility(["manage.py", *words]).execute()
            assert stopped.value.code == NO_DATABASE
            assert "Run: python manage.py migrate --database default" in capsys.readouterr().err
    finally:
        with connection.schema_editor() as editor:
            editor.alter_db_table(Job, "job_table_away", "job_queue")
