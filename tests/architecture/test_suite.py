"""What `make test` runs where."""

import sys

import pytest

from tests import suite


@pytest.fixture(autouse=True)
def ours(monkeypatch):
    """The servers are our own: each database may have two."""
    monkeypatch.setattr(suite, "_can_have_two", lambda database: True)


def planned(python6, arguments=()):
    """Every run of `make test`."""
    tracks = [track for name in suite.DATABASES for track in suite.tracks(name, list(arguments), python6)]
    return [lane for track in tracks for lane in track]


def runs(python6, arguments=()):
    """(database, Python, folders that are named) of every run."""
    lanes = planned(python6, arguments)
    return [(lane.database, lane.python, [a for a in lane.arguments if not a.startswith("-")]) for lane in lanes]


def test_every_database_runs_the_whole_suite_once_on_one_of_two_djangos():
    whole = [(database, python) for database, python, folders in runs("six") if not folders]
    assert whole == [("sqlite", "six"), ("mysql", "six"), ("mariadb", sys.executable), ("postgres", sys.executable)]


def test_mysql_and_sqlite_run_the_verbs_on_the_other_django_too():
    found = [run for run in runs("six") if run[2] not in ([], [suite.BESIDE])]
    again = {database: folders for database, python, folders in found if python == sys.executable}
    assert again.keys() == {"sqlite", "mysql"}
    assert all("tests/transitions" in folders for folders in again.values())


def test_without_django_6_everything_runs_on_what_there_is():
    assert runs(None) == [
        (name, sys.executable, folders) for name in suite.DATABASES for folders in ([], [suite.BESIDE])
    ]


def test_what_runs_beside_the_rest_is_left_out_there_and_has_a_server_of_its_own():
    for database in suite.DATABASES:
        rest, beside = (track[0] for track in suite.tracks(database, [], "six"))
        assert f"--ignore={suite.BESIDE}" in rest.arguments
        assert (beside.python, beside.arguments) == (rest.python, [suite.BESIDE])
        assert (rest.own_server, beside.own_server) == (False, database != "sqlite")


def test_a_server_that_somebody_named_is_used_by_one_run_at_a_time(monkeypatch):
    monkeypatch.setattr(suite, "_can_have_two", lambda database: False)
    (lanes,) = suite.tracks("mysql", [], "six")
    assert [lane.own_server for lane in lanes] == [False] * 3


def test_what_is_given_runs_once_per_database():
    assert [folders for _, _, folders in runs("six", ["tests/transitions"])] == [["tests/transitions"]] * 4
    ((alone),) = suite.tracks("mysql", ["tests/proofs", "--only-given"], "six")
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
