"""What `make test` runs where, and what the map of statements chooses."""

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from django.db.backends.utils import CursorWrapper

from jobqueue import enqueue
from jobqueue.models import Job
from tests import suite
from tests.architecture.test_layers import none_of
from tests.selection import choosing, plugin, quick
from tests.selection.choosing import Recorded, renewed
from tests.selection.plugin import Plugin, Selection
from tests.selection.recorder import Recorder
from tests.selection.shapes import shape
from tests.selection.statement_map import DATABASES, Statement, StatementMap, exists, key_of

THERE = StatementMap.load()


@pytest.fixture(autouse=True)
def ours(monkeypatch):
    """The servers are our own: each run may have one. Nothing is changed."""
    monkeypatch.setattr(suite, "_can_have_two", lambda database: True)
    monkeypatch.setattr(suite, "changed_files", list)


def lanes(python6, *arguments):
    """All runs, in the order of the databases."""
    options = suite.parse(arguments)
    return [lane for name in DATABASES for track in suite.tracks(name, options, python6) for lane in track]


def named(lane):
    """The paths that a run is given."""
    return tuple(argument for argument in lane.arguments if not argument.startswith("-"))


def processes(found):
    """The databases on which all process tests run, some of them in parts."""
    parts = suite.process_parts()
    whole = [lane.database for lane in found if named(lane) in ((suite.PROCESS,), parts[0])]
    in_parts = [lane.database for lane in found if named(lane) in parts]
    assert len(in_parts) == len(parts) * len({*in_parts})
    return whole


def test_every_database_has_a_short_run_on_one_of_two_djangos():
    found = [(lane.database, lane.python) for lane in lanes("six") if lane.short]
    others = [("mysql", "six"), ("mariadb", sys.executable), ("postgres", sys.executable)]
    assert found == [("sqlite", "six")] * 2 + others


def test_the_two_halves_on_sqlite_have_each_folder_once():
    half, rest = (lane.arguments for lane in lanes("six") if lane.short and lane.database == "sqlite")
    assert {*rest} == {f"--ignore={folder}" for folder in (*half, suite.PROCESS, suite.PROOFS)}


def test_what_can_differ_between_the_djangos_runs_on_the_other_too():
    found = [(lane.database, lane.python) for lane in lanes("six") if named(lane) == suite.ON_BOTH]
    assert found == [("sqlite", sys.executable)]


def test_without_django_6_everything_runs_on_what_there_is():
    assert {lane.python for lane in lanes(None)} == {sys.executable}
    assert [lane.database for lane in lanes(None) if lane.short] == ["sqlite", *DATABASES]


@pytest.mark.parametrize(
    ("changed", "databases"),
    [
        ([], ["mysql"]),
        (["jobqueue/db/mysql/locks.py"], ["mysql"]),
        (["jobqueue/db/postgresql/locks.py"], ["mysql", "postgres"]),
        (["jobqueue/wakeup/notify.py"], ["mysql", "postgres"]),
        (["README.md", "jobqueue/db/sqlite/features.py"], ["sqlite", "mysql"]),
    ],
)
def test_a_changed_database_has_its_process_tests_beside_those_of_mysql(changed, databases, monkeypatch):
    monkeypatch.setattr(suite, "changed_files", lambda: changed)
    assert processes(lanes("six")) == databases


def test_process_tests_have_a_server_of_their_own():
    # Two runs on one server would stop it for each other.
    assert [lane.own_server for lane in lanes("six", "--all") if lane.has_processes] == [False, *[True] * 3]
    assert [lane.own_server for lane in lanes("six") if lane.has_processes] == [True] * suite.PROCESS_PARTS


def test_the_parts_of_the_process_tests_have_each_file_once():
    files = [file for part in suite.process_parts() for file in part]
    assert sorted(files) == sorted(str(path) for path in Path("tests/process").glob("test_*.py"))


def test_a_server_that_somebody_named_is_used_by_one_run_at_a_time(monkeypatch):
    monkeypatch.setattr(suite, "_can_have_two", lambda database: False)
    (track,) = suite.tracks("mysql", suite.parse([]), "six")
    assert [(lane.own_server, named(lane)) for lane in track] == [(False, ()), (False, (suite.PROCESS,))]


@pytest.mark.parametrize("arguments", [["tests/transitions"], ["--all"], ["--map"], ["--db", "mysql"]])
def test_only_the_short_run_leaves_tests_out(arguments):
    assert not any(lane.short for lane in lanes("six", *arguments))


def test_what_is_given_runs_on_every_database():
    assert [named(lane) for lane in lanes("six", "tests/transitions")] == [("tests/transitions",)] * 4


def test_a_run_of_everything_has_the_processes_of_each_database_and_the_verbs_on_the_other_django():
    found = lanes("six", "--all")
    assert processes(found) == list(DATABASES)
    other = [lane for lane in found if (lane.python == "six") != (lane.database in suite.ON_DJANGO_6)]
    assert [(lane.database, named(lane)) for lane in other] == [
        ("sqlite", ()),
        *((name, suite.VERBS) for name in DATABASES[1:]),
    ]


@pytest.mark.parametrize(("ci", "status"), [("true", 1), ("", 0)])
def test_a_run_without_django_6_says_so_and_fails_in_ci(ci, status, monkeypatch, capsys):
    outcome(monkeypatch, ci, lambda lane: (Recorded(), frozenset()))
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
    monkeypatch.setattr(
        suite.Lane, "run", lambda lane: suite.Outcome(lane.database, 0, f"{lane.database}: passed", *report(lane))
    )


@pytest.mark.parametrize(("ran_on", "status"), [("mysql", 0), ("none", 1)])
def test_a_test_that_every_database_leaves_out_or_skips_fails_in_ci(ran_on, status, monkeypatch, capsys):
    def report(lane):
        return Recorded({"a"} if lane.database == ran_on else set()), frozenset({"a"} - {lane.database})

    outcome(monkeypatch, "true", report)
    assert suite.main([]) == status
    assert ("a: NOT TESTED" in capsys.readouterr().out) == bool(status)


def test_a_run_of_everything_fails_for_a_statement_and_a_test_that_the_map_does_not_have(monkeypatch, capsys):
    sent = {"gates/test_x.py::test_new": {"SELECT ? FROM nowhere": "gates"}}
    outcome(monkeypatch, "", lambda lane: (Recorded(set(sent), set(), sent), frozenset()))
    assert suite.main(["--all"]) == 1
    said = capsys.readouterr().out
    assert "mysql: NEW statement, run make test-map: gates: SELECT ? FROM nowhere" in said
    assert "NEW test, run make test-map: gates/test_x.py::test_new" in said


KNOWN = StatementMap(
    {"SELECT a": Statement("gates", {"sqlite": ("gates/test_a.py::chosen",), "mysql": ("gates/test_a.py::chosen",)})},
    {
        "gates/test_a.py::chosen": DATABASES,
        "gates/test_a.py::other": DATABASES,
        "gates/test_b.py::other": DATABASES,
        "races/test_c.py::race": DATABASES,
        "gates/test_d.py::on_servers": ("mysql", "postgres"),
    },
)


@pytest.mark.parametrize(
    ("database", "left"),
    [
        ("sqlite", set()),
        ("mysql", {"gates/test_a.py::other", "gates/test_b.py::other"}),
        ("postgres", {"gates/test_a.py::chosen", "gates/test_a.py::other", "gates/test_b.py::other"}),
        (
            "mariadb",
            {
                "gates/test_a.py::chosen",
                "gates/test_a.py::other",
                "gates/test_b.py::other",
                "gates/test_d.py::on_servers",
            },
        ),
    ],
)
def test_a_server_runs_what_is_chosen_races_what_sqlite_skips_and_what_is_new(database, left):
    selection = Selection(KNOWN, database)
    assert {test for test in KNOWN.tests if not selection.runs(test)} == left
    assert selection.runs("gates/test_a.py::new")


def test_a_file_is_collected_if_it_has_a_test_to_run_or_is_new():
    selection = Selection(KNOWN, "mysql")
    files = ("gates/test_a.py", "gates/test_b.py", "races/test_c.py", "gates/test_new.py", "conftest.py")
    assert [selection.needs(path) for path in files] == [True, False, True, True, True]


def test_left_tests_are_deselected_and_cases_of_a_test_stay_together(monkeypatch):
    monkeypatch.setattr(StatementMap, "load", lambda: KNOWN)
    told = []
    config = SimpleNamespace(hook=SimpleNamespace(pytest_deselected=lambda items: told.extend(items)))
    items = [
        SimpleNamespace(nodeid=f"tests/gates/test_a.py::{name}") for name in ("chosen[1]", "other[1]", "chosen[2]")
    ]
    every = list(items)
    Plugin("mysql", "short", None).pytest_collection_modifyitems(config, items)
    assert items == every[::2]
    assert told == [every[1]]


def run_of(sent, skipped=()):
    texts = {test: dict.fromkeys(found, "gates") for test, found in sent.items()}
    return Recorded(set(sent), set(skipped), texts)


def test_each_statement_has_two_tests_of_its_room_and_others_only_where_those_are_missing():
    many = {f"gates/test_a.py::t{n}": ["A", "B"] for n in range(4)}
    pages = {"admin/test_p.py::page": ["A", "C", "D"], "admin/test_p.py::list": ["D"]}
    run = run_of({**many, **pages, "faults/test_w.py::walk": ["A", "B", "C"]})
    found = renewed(StatementMap(), {"mysql": run}, whole=True).statements
    assert [len(found[text].tests["mysql"]) for text in "ABCD"] == [2, 2, 1, 2]
    assert all(test.startswith("gates/") for text in "AB" for test in found[text].tests["mysql"])
    # A page asserts nothing about what a statement of another room has done.
    assert found["C"].tests["mysql"] == ("faults/test_w.py::walk",)
    assert set(found["D"].tests["mysql"]) == {*pages}


def test_mariadb_has_tests_only_for_statements_that_mysql_does_not_send():
    run = run_of({"gates/test_a.py::t": ["A", "B"]})
    found = renewed(StatementMap(), {"mysql": run_of({"gates/test_a.py::t": ["A"]}), "mariadb": run}, whole=True)
    assert found.chosen("mariadb") == {"gates/test_a.py::t"}
    assert found.statements["A"].tests["mariadb"] == ()


def test_a_part_of_the_tests_adds_what_they_send_and_keeps_the_rest(monkeypatch):
    monkeypatch.setattr(choosing, "exists", lambda test: test != "gates/t.py::gone")
    sent = {"gates/t.py::a": ["A", "B"], "gates/t.py::b": ["C"], "gates/t.py::gone": ["E"]}
    whole = renewed(StatementMap(), {"mysql": run_of(sent)}, whole=True)
    found = renewed(whole, {"mysql": run_of({"gates/t.py::a": ["A", "D"]})}, whole=False)
    assert found.statements.keys() == {"A", "B", "C", "D"}
    assert found.statements["C"].tests["mysql"] == ("gates/t.py::b",)
    assert found.tests.keys() == {"gates/t.py::a", "gates/t.py::b"}


def test_a_map_is_read_as_it_was_written(tmp_path):
    KNOWN.save(tmp_path)
    assert StatementMap.load(tmp_path) == KNOWN


def test_a_new_statement_of_a_short_run_is_named():
    assert KNOWN.unknown("mysql", {"SELECT a": "gates", "SELECT b": "flow"}) == ["flow: SELECT b"]
    assert KNOWN.unknown("postgres", {"SELECT a": "gates"}) == ["gates: SELECT a"]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("SELECT a FROM b WHERE id IN (%s)", 'SELECT "a" FROM `b` WHERE "id" IN (%s, %s,  %s)'),
        ("INSERT INTO a VALUES (%s, NULL)", "INSERT INTO a VALUES (%s, %s), (%s, %s), (NULL, %s)"),
        ("SELECT 1 WHERE (a = 1 AND b = 'x')", "SELECT 2 WHERE (a = %s AND b = 'it''s') OR (a = 3 AND b = '')"),
        (
            "UPDATE a SET b = CASE WHEN c = 1 THEN 2 END",
            "UPDATE a SET b = CASE WHEN c = 1 THEN 2 WHEN c = 3 THEN 4 END",
        ),
        ("(SELECT a FROM b WHERE c = 1) UNION ALL (SELECT a FROM b WHERE c = 2)", "(SELECT a FROM b WHERE c = %s)"),
        ("a IN (%s, UNHEX(%s), %s, CONVERT(UNHEX(%s) USING utf8mb4))", "a IN (%s)"),
        (
            "(SELECT a <= (NOW(6)) FROM b WHERE (c = 1 AND (d > (NOW(6)) OR e = 2)))",
            "(SELECT a <= (NOW(6)) FROM b WHERE (c = 1 AND (d > (NOW(6)) OR e = 2)))"
            " UNION ALL (SELECT a <= (NOW(6)) FROM b WHERE (c = 3 AND (d > (NOW(6)) OR e = 4)))",
        ),
        ("SELECT t1.a FROM b t1", "SELECT t22.a FROM b t22"),
    ],
)
def test_statements_that_differ_in_values_and_lengths_have_one_shape(one, other):
    assert shape(one) == shape(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("SELECT a FROM b FOR UPDATE", "SELECT a FROM b FOR UPDATE SKIP LOCKED"),
        ("SELECT a FROM b WHERE c = %s", "SELECT a FROM b WHERE c < %s"),
        ("SELECT a FROM b WHERE c IS NULL", "SELECT a FROM b WHERE c IS NOT NULL"),
        ("UPDATE a SET b = NOW(6)", "UPDATE a SET b = UTC_TIMESTAMP(6)"),
    ],
)
def test_statements_that_do_something_else_have_another_shape(one, other):
    assert shape(one) != shape(other)


def test_transactions_have_no_shape_and_long_ones_differ_after_their_cut():
    assert shape("SAVEPOINT x_1") == shape("COMMIT") == ""
    assert key_of("a" * 500) != key_of("a" * 501)


def test_each_chosen_test_exists():
    """A statement whose test was removed may have no other: run make test-map with the tests that send it."""
    chosen = {test for database in DATABASES for test in THERE.chosen(database)}
    none_of(f"tests/{test} is in the map and does not exist" for test in sorted(chosen) if not exists(test))


def test_a_changed_room_brings_in_the_tests_of_its_statements_and_a_changed_test_itself():
    of_gates = {f"tests/{test}" for test in THERE.of_rooms(["gates"], "sqlite")}
    assert len(of_gates) > 10
    found = quick.chosen(["jobqueue/gates/rules.py", "tests/cli/test_jobs.py", "tests/process/test_kills.py"], THERE)
    assert set(found) == {*of_gates, "tests/cli/test_jobs.py"}
    # A room that sends no statement has its folder.
    assert quick.chosen(["jobqueue/alarms/rules.py"], KNOWN) == ["tests/alarms"]


@pytest.mark.django_db
def test_a_statement_of_the_package_is_recorded_with_its_room_and_one_of_a_test_is_not(monkeypatch):
    for name in ("_execute", "_executemany"):
        # So that it is as before after this test.
        monkeypatch.setattr(CursorWrapper, name, getattr(CursorWrapper, name))
    recorder = Recorder()
    recorder.install()
    enqueue("q", 1)
    recorder.test = "a test"
    enqueue("q", 2)
    assert Job.objects.filter(queue="q").count() == 2
    recorder.test = None
    found = recorder.sent["a test"]
    assert [room for text, room in found.items() if text.startswith("INSERT INTO job_queue ")] == ["producer"]
    assert not [text for text in found if "COUNT(*)" in text]


@pytest.mark.parametrize(("mode", "status"), [("short", pytest.ExitCode.TESTS_FAILED), ("", pytest.ExitCode.OK)])
def test_a_short_run_fails_for_a_statement_that_is_not_in_the_map(mode, status):
    plugin = Plugin("sqlite", mode, None)
    plugin.recorder.sent["gates/test_x.py::test_new"] = {"SELECT ? FROM nowhere": "gates"}
    session = SimpleNamespace(exitstatus=pytest.ExitCode.OK)
    next(plugin.pytest_sessionfinish(session))
    assert session.exitstatus == status


def test_a_mode_that_does_not_exist_is_refused(monkeypatch):
    monkeypatch.setenv(plugin.VARIABLE, "shrot")
    with pytest.raises(pytest.UsageError, match="is short or not set"):
        plugin.register(None, "sqlite")
