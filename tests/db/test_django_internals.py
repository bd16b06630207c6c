"""Names of Django and asgiref that no documentation promises: docs/explanation/django-internals.md lists them.

Each test does with them what jobqueue does, in few lines, so that a new version of Django fails here first.
"""

from concurrent.futures import ThreadPoolExecutor

import pytest
from asgiref.sync import SyncToAsync, async_to_sync, sync_to_async
from django.contrib.admin.views.main import ChangeList
from django.core.exceptions import EmptyResultSet
from django.core.management.base import DjangoHelpFormatter
from django.db import Error, connection, transaction
from django.db.migrations.recorder import MigrationRecorder
from django.db.models import F, QuerySet
from django.db.models.sql import DeleteQuery, UpdateQuery
from django.db.models.sql.datastructures import BaseTable
from django.db.transaction import TransactionManagementError
from django.utils.autoreload import StatReloader

from jobqueue.models import Job
from tests.architecture.test_layers import PACKAGE
from tests.docs.markdown import ROOT, code, table
from tests.marks import committed
from tests.settings import VENDOR

PAGE = ROOT / "docs" / "explanation" / "django-internals.md"
pytestmark = pytest.mark.django_db


@pytest.mark.skipif(VENDOR != "sqlite", reason="once is enough")
def test_each_file_of_the_list_uses_the_name():
    rows = table(PAGE, "What jobqueue uses of Django's internals")
    assert rows
    for name, files, _, risk in rows:
        assert risk in ("high", "medium", "low")
        for file in code(files):
            assert code(name)[0] in (PACKAGE / file).read_text(), f"{file} does not use {name}"


def test_a_select_is_compiled_once_and_its_rows_are_converted_as_by_the_orm():
    Job.objects.create(queue="mail", payload={"n": 1})
    rows = Job.objects.filter(queue="mail").values_list("payload", "run_at")
    compiler = rows.query.get_compiler(connection.alias)
    sql, params = compiler.as_sql()
    converters = compiler.get_converters([entry[0] for entry in compiler.select])
    with connection.cursor() as cursor:
        cursor.execute(sql, params)
        found = list(cursor.fetchone())
    for place, (functions, expression) in converters.items():
        for function in functions:
            found[place] = function(found[place], expression, connection)
    assert tuple(found) == rows.get()


def test_an_update_and_a_delete_are_compiled_without_being_run():
    job = Job.objects.create(queue="mail", payload={}, priority=1)
    rows = Job.objects.filter(pk=job.pk)
    query = rows.query.chain(UpdateQuery)
    query.add_update_values({"priority": F("priority") + 1})
    query.clear_select_clause()
    sql, params = query.get_compiler(connection.alias).as_sql()
    assert sql.startswith("UPDATE")
    with connection.cursor() as cursor:
        cursor.execute(sql, params)
    assert rows.get().priority == 2
    sql, params = rows.query.chain(DeleteQuery).get_compiler(connection.alias).as_sql()
    assert sql.startswith("DELETE")
    with connection.cursor() as cursor:
        cursor.execute(sql, params)
    assert not rows.exists()


def test_the_entry_of_from_can_be_replaced_and_survives_a_subquery():
    class Marked(BaseTable):
        def as_sql(self, compiler, connection):
            sql, params = super().as_sql(compiler, connection)
            return f"{sql} /* marked */", params

        def relabeled_clone(self, change_map):
            return Marked(self.table_name, change_map.get(self.table_alias, self.table_alias))

    rows = Job.objects.all()
    alias = rows.query.get_initial_alias()
    rows.query.alias_map[alias] = Marked(Job._meta.db_table, alias)
    assert str(rows.query).count("/* marked */") == 1
    assert str(Job.objects.filter(pk__in=rows.values("pk")).query).count("/* marked */") == 1


def test_a_condition_that_no_row_meets_has_no_statement():
    with pytest.raises(EmptyResultSet):
        Job.objects.none().query.get_compiler(connection.alias).as_sql()


def test_a_query_tells_its_limit_and_an_expression_that_it_is_one():
    rows: QuerySet = Job.objects.all()[2:7]
    assert rows.query.is_sliced
    assert (rows.query.low_mark, rows.query.high_mark) == (2, 7)
    assert not Job.objects.all().query.is_sliced
    assert hasattr(F("pk"), "resolve_expression")


@committed
def test_a_failed_statement_marks_the_callers_block():
    with transaction.atomic():
        assert connection.in_atomic_block
        assert connection.commit_on_exit
        assert not connection.needs_rollback
        with pytest.raises(Error), transaction.mark_for_rollback_on_error(), connection.cursor() as cursor:
            cursor.execute("SELECT no_such_column FROM job_queue")
        assert connection.needs_rollback
        with pytest.raises(TransactionManagementError):
            Job.objects.exists()
        transaction.set_rollback(False)
        transaction.set_rollback(True)
    assert not connection.in_atomic_block


def test_the_transaction_around_a_test_case_is_known():
    assert connection.atomic_blocks[-1]._from_testcase
    with transaction.atomic():
        assert not connection.atomic_blocks[-1]._from_testcase


@committed
@pytest.mark.skipif(VENDOR == "sqlite", reason="its transactions begin with a statement of their own")
def test_a_transaction_is_begun_and_ended_by_one_method_that_can_be_replaced(monkeypatch):
    connection.ensure_connection()
    seen, plain = [], connection._set_autocommit
    monkeypatch.setattr(connection, "_set_autocommit", lambda on: (seen.append(on), plain(on)))
    with transaction.atomic():
        Job.objects.exists()
    assert seen == [False, True]


@committed
def test_a_session_can_be_kept_behind_a_connection_that_looks_closed():
    connection.ensure_connection()
    session, connection.connection = connection.connection, None
    connection.get_new_connection = lambda wanted: session
    try:
        connection.ensure_connection()
        assert connection.connection is session
        assert Job.objects.count() == 0
        assert hasattr(connection, "close_at")
        assert hasattr(connection, "health_check_done")
    finally:
        del connection.get_new_connection


@pytest.mark.skipif(VENDOR not in ("mysql", "mariadb"), reason="the other servers have one kind")
def test_mariadb_is_told_from_mysql():
    assert connection.mysql_is_mariadb == (VENDOR == "mariadb")


def test_the_migrations_that_were_run_are_known():
    assert ("jobqueue", "0001_initial") in MigrationRecorder(connection).applied_migrations()
    assert MigrationRecorder.Migration._meta.db_table == "django_migrations"


def test_the_classes_of_commands_and_lists_are_there():
    assert any(path.name == "job.py" for path, _ in StatReloader().snapshot_files())
    assert hasattr(DjangoHelpFormatter, "add_arguments")
    assert {"get_results", "get_queryset"} <= set(dir(ChangeList))


def test_asgiref_keeps_its_threads_where_they_can_be_replaced():
    assert isinstance(SyncToAsync.single_thread_executor, ThreadPoolExecutor)
    assert hasattr(SyncToAsync.context_to_thread_executor, "clear")
    assert SyncToAsync.thread_sensitive_context.get(None) is None


def test_asgiref_keeps_the_loop_of_the_coroutine_that_waits_for_a_thread():
    async def ask():
        return await sync_to_async(lambda: SyncToAsync.threadlocal.main_event_loop.is_running())()

    assert async_to_sync(ask)()
