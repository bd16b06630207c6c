"""What `make test` runs where."""

import sys

import pytest

from tests import suite


def runs(python6, arguments=()):
    """(database, Python, folders that are named) of every run."""
    lanes = [lane for name in suite.DATABASES for lane in suite.lanes(name, list(arguments), python6)]
    return [(lane.database, lane.python, [a for a in lane.arguments if not a.startswith("-")]) for lane in lanes]


def test_every_database_runs_the_whole_suite_once_on_one_of_two_djangos():
    whole = [(database, python) for database, python, folders in runs("six") if not folders]
    assert whole == [("sqlite", "six"), ("mysql", "six"), ("mariadb", sys.executable), ("postgres", sys.executable)]


def test_mysql_and_sqlite_run_the_verbs_on_the_other_django_too():
    again = {database: folders for database, python, folders in runs("six") if folders and python == sys.executable}
    assert again.keys() == {"sqlite", "mysql"}
    assert all("tests/queue" in folders for folders in again.values())


def test_without_django_6_everything_runs_on_what_there_is():
    assert runs(None) == [(database, sys.executable, []) for database in suite.DATABASES]


def test_what_is_given_runs_once_per_database():
    assert [folders for _, _, folders in runs("six", ["tests/queue"])] == [["tests/queue"]] * 4
    alone = suite.lanes("mysql", ["tests/proofs", "--only-given"], "six")
    assert [(lane.python, lane.arguments) for lane in alone] == [(sys.executable, ["tests/proofs"])]


@pytest.mark.parametrize(("ci", "status"), [("true", 1), ("", 0)])
def test_a_run_without_django_6_says_so_and_fails_in_ci(ci, status, monkeypatch, capsys):
    for name in ("JOBQUEUE_TEST_SETUP_MISSING", "JOBQUEUE_TEST_MISSING", "JOBQUEUE_TEST_PYTHON6"):
        monkeypatch.delenv(name, raising=False)
    for name in suite.DATABASES:
        monkeypatch.setenv(f"JOBQUEUE_TEST_{name.upper()}_URL", "there")
    monkeypatch.setenv("CI", ci)
    monkeypatch.setattr(suite.Lane, "run", lambda lane: (0, f"{lane.database}: passed"))
    assert suite.main([]) == status
    assert "Django 6.x: NOT TESTED" in capsys.readouterr().out
