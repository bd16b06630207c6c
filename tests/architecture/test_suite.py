"""What `make test` runs where."""

import sys
from types import SimpleNamespace

import pytest

from tests import matrix, suite
from tests.matrix import DATABASES, Matrix, Report, enough_on, sized


@pytest.fixture(autouse=True)
def ours(monkeypatch):
    """The servers are our own: each database may have two."""
    monkeypatch.setattr(suite, "_can_have_two", lambda database: True)


def runs(python6, *arguments):
    """(database, Python, paths that are named, what is left out) of every run."""
    options = suite.parse(arguments)
    planned = [lane for name in DATABASES for track in suite.tracks(name, options, python6) for lane in track]
    return [
        (r.database, r.python, tuple(a for a in r.arguments if not a.startswith("-")), r.leave_out) for r in planned
    ]


def test_every_database_runs_the_suite_once_on_one_of_two_djangos():
    whole = [run[:2] for run in runs("six") if run[2:] == ((), "short")]
    assert whole == [("sqlite", "six"), ("mysql", "six"), ("mariadb", sys.executable), ("postgres", sys.executable)]


def test_what_can_differ_between_the_djangos_runs_on_the_other_too():
    named = [run for run in runs("six") if run[2] not in ((), *suite.BESIDE.values())]
    assert named == [("sqlite", sys.executable, suite.ON_BOTH, "")]


def test_without_django_6_everything_runs_on_what_there_is():
    assert {run[1] for run in runs(None)} == {sys.executable}
    assert [run[0] for run in runs(None) if not run[2]] == list(DATABASES)


@pytest.mark.parametrize("database", DATABASES)
def test_every_database_runs_the_process_tests_once(database):
    lanes = [lane for track in suite.tracks(database, suite.parse([]), "six") for lane in track]
    beside = [lane for lane in lanes if lane.arguments in suite.BESIDE.values()]
    with_them = [lane for lane in lanes if lane.arguments != suite.ON_BOTH and lane not in beside]
    assert len(with_them) == 1
    away = {argument.removeprefix("--ignore=") for argument in with_them[0].arguments}
    assert away & {"tests/process", "tests/proofs"} == {folder for lane in beside for folder in lane.arguments}
    # Two runs on one server would stop it for each other.
    assert [lane.own_server for lane in beside] == [database != "sqlite"][: len(beside)]


def test_a_server_that_somebody_named_is_used_by_one_run_at_a_time(monkeypatch):
    monkeypatch.setattr(suite, "_can_have_two", lambda database: False)
    ((lane,),) = suite.tracks("mysql", suite.parse([]), "six")
    assert (lane.own_server, lane.leave_out) == (False, "short")


def test_what_is_given_runs_on_every_database_and_nothing_is_left_out():
    assert [run[2:] for run in runs("six", "tests/transitions")] == [(("tests/transitions",), "")] * 4
    assert {run[1:] for run in runs("six", "tests/proofs", "--only-given")} == {(sys.executable, ("tests/proofs",), "")}


def test_on_one_database_nothing_is_left_out():
    (found,) = suite.tracks("mysql", suite.parse(["--db", "mysql"]), "six")
    assert [(run.python, run.leave_out) for run in found] == [("six", "")]


def test_the_rest_of_the_matrix_is_what_a_run_leaves_out_and_the_verbs_on_the_other_django():
    found = runs("six", "--rest")
    assert [run[0] for run in found if run[3] == "rest"] == list(DATABASES)
    assert [run[:3] for run in found if run[3] == ""] == [
        (name, sys.executable if name in suite.ON_DJANGO_6 else "six", suite.VERBS) for name in DATABASES
    ]


@pytest.mark.parametrize(("ci", "status"), [("true", 1), ("", 0)])
def test_a_run_without_django_6_says_so_and_fails_in_ci(ci, status, monkeypatch, capsys):
    outcome(monkeypatch, ci, lambda lane: Report(frozenset(), frozenset()))
    monkeypatch.delenv("JOBQUEUE_TEST_PYTHON6", raising=False)
    assert suite.main([]) == status
    assert "Django 6.x: NOT TESTED" in capsys.readouterr().out


def outcome(monkeypatch, ci, report):
    """All servers are there, and every run passes with this report."""
    for name in ("JOBQUEUE_TEST_SETUP_MISSING", "JOBQUEUE_TEST_MISSING"):
        monkeypatch.delenv(name, raising=False)
    for name in DATABASES:
        monkeypatch.setenv(f"JOBQUEUE_TEST_{name.upper()}_URL", "there")
    monkeypatch.setenv("CI", ci)
    monkeypatch.setenv("JOBQUEUE_TEST_PYTHON6", "six")
    monkeypatch.setattr(suite.Lane, "run", lambda lane: suite.Outcome(0, f"{lane.database}: passed", report(lane)))


@pytest.mark.parametrize(("ran_on", "status"), [("mysql", 0), ("none", 1)])
def test_a_test_that_every_database_leaves_out_or_skips_fails_in_ci(ran_on, status, monkeypatch, capsys):
    def report(lane):
        return Report(frozenset({"a"} if lane.database == ran_on else ()), frozenset({"a"} - {lane.database}))

    outcome(monkeypatch, "true", report)
    assert suite.main([]) == status
    assert ("a: NOT TESTED" in capsys.readouterr().out) == bool(status)


class Item:
    """What the selection looks at of a test."""

    def __init__(self, nodeid, *marks):
        self.nodeid, self.marks = nodeid, {mark.name: mark.mark for mark in marks}

    def get_closest_marker(self, name):
        return self.marks.get(name)


@pytest.mark.parametrize(
    ("database", "mode", "kept"),
    [
        ("sqlite", "short", ["everywhere", "on sqlite", "sized"]),
        ("mysql", "short", ["everywhere", "sized"]),
        ("sqlite", "rest", ["sized"]),
        ("mysql", "rest", ["on sqlite", "sized"]),
        ("mysql", "", ["everywhere", "on sqlite", "sized"]),
    ],
)
def test_a_test_for_which_other_databases_are_enough_is_left_out_and_belongs_to_the_rest(database, mode, kept):
    told = []
    config = SimpleNamespace(hook=SimpleNamespace(pytest_deselected=lambda items: told.extend(items)))
    items = [Item("everywhere"), Item("on sqlite", enough_on("sqlite", why="no SQL")), Item("sized", sized)]
    every = list(items)
    Matrix(database, mode, None).pytest_collection_modifyitems(config, items)
    assert [item.nodeid for item in items] == kept
    assert told == [item for item in every if item.nodeid not in kept]


def test_a_report_names_what_was_left_out_and_what_was_not_skipped(tmp_path):
    plugin = Matrix("mysql", "short", tmp_path)
    plugin.left = ["left"]
    for name, when, skipped in [("ran", "call", False), ("skipped", "call", True), ("set up", "setup", False)]:
        plugin.pytest_runtest_logreport(SimpleNamespace(nodeid=name, when=when, skipped=skipped))
    said = []
    plugin.pytest_terminal_summary(SimpleNamespace(write_line=said.append))
    assert matrix.read(tmp_path) == Report(frozenset({"ran"}), frozenset({"left"}))
    assert said[0].startswith("1 tests run on other databases only")


@pytest.mark.parametrize("names", [(), ("oracle",)])
def test_a_mark_names_databases_that_exist(names):
    with pytest.raises(ValueError, match="some of sqlite"):
        enough_on(*names, why="x")


def test_a_mode_that_does_not_exist_is_refused(monkeypatch):
    monkeypatch.setenv(matrix.VARIABLE, "shrot")
    with pytest.raises(pytest.UsageError, match="short, rest"):
        matrix.register(None, "sqlite")
