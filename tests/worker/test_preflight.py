"""A worker does not start on a table that claims cannot use."""

import logging
import types

import pytest
from django.core.management import call_command
from django.core.management.base import SystemCheckError
from django.db import connection, connections

from jobqueue.models import Job
from jobqueue.worker.monitor.preflight import MISCONFIGURED, preflight
from jobqueue.worker.shared.queue_choice import Selection
from jobqueue.worker.shared.worker_options import Options
from tests.marks import committed, finding
from tests.settings import VENDOR

pytestmark = committed


@pytest.fixture
def without_index():
    """ix_pick is gone."""
    (index,) = [index for index in Job._meta.indexes if index.name == "ix_pick"]
    with connection.schema_editor() as editor:
        editor.remove_index(Job, index)
    yield
    with connection.schema_editor() as editor:
        editor.add_index(Job, index)


def start():
    return preflight(Options(selection=Selection(), database="default"))


def test_a_good_table_is_fine(caplog):
    assert start() == 0
    assert "TASKS" not in caplog.text


@pytest.mark.parametrize(("silenced", "told"), [([], True), (["jobqueue.W028"], False)])
def test_a_worker_says_that_tasks_do_not_become_jobs(settings, caplog, silenced, told):
    settings.TASKS = {}
    settings.SILENCED_SYSTEM_CHECKS = silenced
    assert start() == 0
    assert ("TASKS is not set" in caplog.text) == told


@pytest.mark.usefixtures("without_index")
def test_a_missing_index_is_a_configuration_error(caplog):
    with caplog.at_level(logging.ERROR):
        assert start() == MISCONFIGURED
    assert "ix_pick is missing" in caplog.text


@pytest.mark.parametrize(
    ("name", "version", "code"),
    [
        ("psycopg2", "2.9.9 (dt dec pq3 ext lo64)", "E015"),
        ("psycopg", "3.1.20", "E015"),
        ("psycopg", "3.2.0", None),
        ("psycopg", "3.10.1", None),
        ("psycopg", "4.0.0.dev1", None),
    ],
)
def test_drivers_of_postgresql_whose_errors_are_not_known_are_refused(name, version, code):
    from jobqueue.db.postgresql.features import driver_problem

    problem = driver_problem(types.SimpleNamespace(__name__=name, __version__=version))
    assert (problem and problem.code) == code
    assert code is None or f"{name} {version.split()[0]}" in problem.text


@finding("R-F2")
@pytest.mark.skipif(VENDOR != "postgres", reason="the driver of PostgreSQL")
def test_check_names_a_driver_that_is_refused_and_workers_do_not_start_with_it(monkeypatch):
    known = connections["default"].Database
    found = types.SimpleNamespace(**{**vars(known), "__name__": "psycopg2", "__version__": "2.9.9"})
    monkeypatch.setattr(type(connections["default"]), "Database", found)
    with pytest.raises(SystemCheckError, match=r"E015.*psycopg2 2\.9\.9"):
        call_command("check", "--database", "default")
    assert start() == MISCONFIGURED
