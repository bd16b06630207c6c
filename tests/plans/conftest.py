"""Many rows, for one test or for all tests of a module."""

from contextlib import contextmanager

import pytest
from django.db import connection

from jobqueue import enqueue_many
from jobqueue.models import Job
from tests.flush import empty_tables
from tests.patience import wait_until
from tests.purge import wait_for_purge
from tests.settings import FULL, VENDOR

# PostgreSQL chooses its plans by the size of the table.
READY = 100_000 if FULL else 10_000 if VENDOR == "postgres" else 5_000
LEVELS = 5


SEED = 500
COPY = (
    "INSERT INTO job_queue (queue, status, priority, run_at, payload, dedupe_key) "
    "SELECT %s, %s, %s, run_at, payload, NULL FROM job_queue WHERE queue = 'seed'"
)


@pytest.fixture
def backlog(transactional_db):
    """READY jobs on five levels, a fifth as many delayed ones among and above them, and as many finished ones."""
    seed = enqueue_many("seed", range(SEED))
    with connection.cursor() as cursor:
        for _ in range(READY // SEED // LEVELS):
            for priority in range(LEVELS):
                cursor.execute(COPY, ["q", 0, priority])
        for _ in range(READY // SEED // 10):
            cursor.execute(COPY, ["q", 2, 9])
            cursor.execute(COPY, ["other", 0, 0])
        Job.objects.filter(pk__in=seed).update(run_at="2090-01-01T00:00:00Z")
        for _ in range(READY // SEED // 10):
            cursor.execute(COPY, ["q", 0, 2])
            cursor.execute(COPY, ["q", 0, 9])
        Job.objects.filter(pk__in=seed).delete()
        if VENDOR == "postgres":
            wait_until(lambda: is_all_visible(cursor), what="a VACUUM that no older snapshot holds up")
        else:
            cursor.execute({"sqlite": "ANALYZE"}.get(VENDOR, "ANALYZE TABLE job_queue"))
    wait_for_purge()


@pytest.fixture(scope="module")
def for_all_tests(django_db_setup, django_db_blocker):
    """for_all_tests(load): a block in which the rows that load() commits are there for all tests of the module.

    The tests themselves undo what they write. At the end all tables are empty.
    """

    def alter(change):
        if VENDOR == "postgres":
            with connection.cursor() as cursor:
                cursor.execute(f"ALTER TABLE job_queue {change}")

    @contextmanager
    def loaded(load):
        with django_db_blocker.unblock():
            # It would replace the statistics that the tests want.
            alter("SET (autovacuum_enabled = off)")
            # PostgreSQL would put the rows wherever those of undone tests have left room, in no order.
            empty_tables(connection)
            load()
            connection.close()
        try:
            yield
        finally:
            with django_db_blocker.unblock():
                empty_tables(connection)
                alter("RESET (autovacuum_enabled)")
                if VENDOR == "sqlite":
                    # Other tests have no statistics.
                    with connection.cursor() as cursor:
                        cursor.execute("ANALYZE")
                        cursor.execute("DELETE FROM sqlite_stat1")
                        cursor.execute("ANALYZE sqlite_schema")
                connection.close()

    return loaded


def is_all_visible(cursor):
    """Whether a VACUUM has found all rows visible to everybody: plans that read an index alone are cheap only then.

    While the server analyzes another table by itself, its snapshot is older than the rows.
    """
    cursor.execute("VACUUM ANALYZE job_queue")
    cursor.execute("SELECT relpages, relallvisible FROM pg_class WHERE oid = 'job_queue'::regclass")
    pages, visible = cursor.fetchone()
    return visible >= pages - 1


@pytest.fixture
def run(backlog):
    """Run one statement and give its rows."""

    def execute(statement, params=None):
        with connection.cursor() as cursor:
            cursor.execute(statement, params)
            return cursor.fetchall() if cursor.description else []

    return execute
