"""Servers that speak MySQL's protocol and are not MySQL: what they lack is found out, not taken for granted."""

from contextlib import contextmanager

import pytest
from django.core.management import call_command
from django.db import connection, models
from django.test.utils import isolate_apps

from jobqueue import checks
from jobqueue.db import vendor
from jobqueue.db.fields import NameField
from tests.marks import committed, finding
from tests.settings import VENDOR

pytestmark = [committed, pytest.mark.skipif(VENDOR not in ("mysql", "mariadb"), reason="others speak MySQL's protocol")]
OWN = {"mysql": "utf8mb4_0900_bin", "mariadb": "utf8mb4_nopad_bin"}.get(VENDOR, "")


@contextmanager
def without(name):
    """The server does not know `name`: it reads another one there, which nobody knows."""

    def unknown(text):
        return text.replace(name, "utf8mb4_9999_bin") if isinstance(text, str) else text

    def execute(execute, sql, params, many, context):
        return execute(unknown(sql), params and [unknown(one) for one in params], many, context)

    connection.close()
    with connection.execute_wrapper(execute):
        yield
    connection.close()


def warnings():
    return [found.id for found in checks.check_database(databases=["default"])]


@finding("item-3")
@isolate_apps("tests.app")
def test_a_server_without_the_collation_gets_the_one_that_it_has():
    class Named(models.Model):
        name = NameField(max_length=20)

        class Meta:
            app_label = "app"
            db_table = "named_elsewhere"

    with without(OWN), connection.schema_editor() as editor:
        editor.create_model(Named)
    try:
        with connection.cursor() as cursor:
            cursor.execute("SHOW FULL COLUMNS FROM named_elsewhere WHERE Field = 'name'")
            assert cursor.fetchone()[2] == "utf8mb4_bin"
    finally:
        with connection.schema_editor() as editor:
            editor.delete_model(Named)


@finding("item-3")
def test_names_that_differ_in_padding_are_warned_about_there():
    with without(OWN):
        assert "jobqueue.W025" in warnings()
    assert "jobqueue.W025" not in warnings()


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param([], id="no row", marks=finding("item-3")),
        pytest.param([("InnoDB", "", "")], id="empty"),
        pytest.param([("InnoDB", "", None)], id="null"),
    ],
)
def test_a_status_of_innodb_without_text_tells_of_no_deadlock(monkeypatch, answer):
    class Silent:
        """A cursor that has nothing to tell of InnoDB's status."""

        def __init__(self, cursor):
            self._cursor, self._silent = cursor, False

        def __getattr__(self, name):
            return getattr(self._cursor, name)

        def __enter__(self):
            return self

        def __exit__(self, *error):
            self._cursor.close()

        def execute(self, sql, params=None):
            self._silent = sql == "SHOW ENGINE INNODB STATUS"
            return None if self._silent else self._cursor.execute(sql, params)

        def fetchall(self):
            return answer if self._silent else self._cursor.fetchall()

        def fetchone(self):
            return next(iter(answer), None) if self._silent else self._cursor.fetchone()

    real = connection.cursor
    monkeypatch.setattr(connection, "cursor", lambda: Silent(real()))
    found = vendor("default")
    assert found.diagnostics.latest_deadlock(connection) is None
    if VENDOR == "mariadb":
        assert found.diagnostics.held(connection).locks == frozenset()


def test_the_tables_of_this_server_have_its_own_collation():
    call_command("migrate", verbosity=0)
    with connection.cursor() as cursor:
        cursor.execute("SHOW FULL COLUMNS FROM job_queue WHERE Field = 'queue'")
        assert cursor.fetchone()[2] == OWN
