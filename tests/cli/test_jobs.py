"""manage.py jobs: Django's options after a sub-command, the help, and a database without our tables."""

import pytest
from django.core.management import ManagementUtility
from django.db import connection

from jobqueue.cli.arguments import NO_DATABASE
from jobqueue.management.commands.jobs import SUBCOMMANDS
from jobqueue.models import Job
from tests.cli.helpers import printed
from tests.doctor.helpers import add_worker
from tests.factories import claim_one, make_in_state, make_jobs
from tests.marks import committed

pytestmark = pytest.mark.django_db


def run(capsys, *words):
    ManagementUtility(["manage.py", "jobs", *words]).execute()
    return capsys.readouterr().out


@pytest.mark.usefixtures("healthy_process")
@pytest.mark.parametrize("name", SUBCOMMANDS)
@pytest.mark.parametrize(
    "option", ["-v2", "--verbosity=2", "--settings=tests.settings", "--pythonpath=.", "--no-color", "--traceback"]
)
def test_the_options_of_django_are_taken_after_a_subcommand(capsys, name, option):
    states = {"retry": "CANCELED", "show": "DONE", "cancel": "READY", "discard": "READY", "release": "PROCESSING"}
    if name == "doctor":
        add_worker()
    others = {
        "prune": ["--dry-run"],
        "enqueue": ["tests.app.tasks.add", "--args", "[1, 2]"],
        "bench": ["--jobs", "1"],
        "completion": ["bash"],
    }
    if name == "edit":
        others[name] = [str(make_in_state("READY")), "--priority", "1"]
    words = [str(make_in_state(states[name]))] if name in states else others.get(name, [])
    assert run(capsys, name, option, *words)


@pytest.mark.parametrize("words", [("-v0", "keys"), ("keys", "-v0")])
def test_the_verbosity_holds_wherever_it_is_written(capsys, words):
    assert run(capsys, *words) == ""


def test_its_help_names_all_subcommands(capsys):
    with pytest.raises(SystemExit):
        run(capsys, "--help")
    said = capsys.readouterr().out
    assert said.startswith("usage: manage.py jobs")
    assert all(name in said for name in SUBCOMMANDS)


def test_without_a_subcommand_it_prints_what_waits_and_runs_in_each_queue():
    assert printed().splitlines() == ["no queue has jobs", "Sub-commands: manage.py jobs --help"]
    make_jobs(3, "mail")
    claim_one("mail")
    head, mail, _ = printed().splitlines()
    assert head.split() == ["queue", "ready", "scheduled", "held", "running", "failed", "oldest"]
    assert mail.split()[:6] == ["mail", "2", "0", "0", "1", "0"]


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
