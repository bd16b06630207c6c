"""Claims go by what is committed, whatever transactions of their process have written or still see."""

import threading

import pytest
from django.db import connection, transaction

from jobqueue import flow
from jobqueue.gates.rules import forget_rules, rules
from tests.gates.helpers import add, taken
from tests.patience import patient
from tests.settings import VENDOR

pytestmark = pytest.mark.django_db(transaction=True)
row_locks = pytest.mark.skipif(VENDOR == "sqlite", reason="SQLite has one writer")


def test_a_limit_that_was_rolled_back_was_never_set(limited):
    one = limited(concurrency_limit=1)
    add(3, one)
    with transaction.atomic():
        flow.set_limit("q", task=one, concurrency=None)
        one.enqueue()
        transaction.set_rollback(True)
    assert len(taken()) == 1


@pytest.fixture
def aside():
    """aside(work): call it in a transaction of another thread, which is rolled back when the test has ended."""
    done, threads = threading.Event(), []

    def run(work):
        begun = threading.Event()

        def hold():
            try:
                with transaction.atomic():
                    work()
                    begun.set()
                    done.wait()
                    transaction.set_rollback(True)
            finally:
                connection.close()

        threads.append(threading.Thread(target=hold))
        threads[-1].start()
        assert begun.wait(patient())

    yield run
    done.set()
    for thread in threads:
        thread.join()


@row_locks
def test_what_a_thread_has_written_and_not_committed_counts_for_nobody_else(limited, aside):
    one = limited(concurrency_limit=1)
    add(3, one)

    def lift():
        flow.set_limit("q", task=one, concurrency=None)
        one.enqueue()

    aside(lift)
    assert len(taken()) == 1


@row_locks
@pytest.mark.skipif(VENDOR == "mariadb", reason="as MySQL")
def test_what_a_thread_reads_in_an_old_snapshot_counts_for_nobody_else(limited, aside):
    one = limited()
    add(3, one)

    def look():
        with connection.cursor() as cursor:
            if VENDOR == "postgres":
                cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            cursor.execute("SELECT COUNT(*) FROM job_flow")

    aside(look)
    flow.set_limit("q", task=one, concurrency=1)
    aside(lambda: rules("default"))
    forget_rules()
    assert len(taken()) == 1
