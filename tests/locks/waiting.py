"""Sessions that really wait for each other, and deadlocks that really happen."""

import threading
from contextlib import contextmanager

from django.db import connection, connections

from jobqueue.db import vendor
from tests.blocking import let_lists_expire, somebody_waits
from tests.patience import wait_until

TABLE = "lock_story"


@contextmanager
def two_rows():
    """A table with rows 1 and 2, and two sessions of their own in open transactions."""
    sessions = [connection.copy(), connection.copy()]
    with connection.cursor() as cursor:
        cursor.execute(f"DROP TABLE IF EXISTS {TABLE}")
        cursor.execute(f"CREATE TABLE {TABLE} (id int PRIMARY KEY, note varchar(40) NOT NULL)")
        cursor.execute(f"INSERT INTO {TABLE} VALUES (1, 'one'), (2, 'two')")
    try:
        for session in sessions:
            session.inc_thread_sharing()
            session.number = number_of(session)
            session.set_autocommit(False)
        yield sessions
    finally:
        for session in sessions:
            session.close()
        with connection.cursor() as cursor:
            cursor.execute(f"DROP TABLE IF EXISTS {TABLE}")


def write(session, row, note="it's secret"):
    """Lock a row by writing it; the error, if there was one."""
    try:
        with session.cursor() as cursor:
            cursor.execute(f"UPDATE {TABLE} SET note = %s WHERE id = {row}", [note])
    except Exception as error:
        return error
    return None


def insert(session, row):
    """Lock a row by inserting it; the error, if there was one."""
    try:
        with session.cursor() as cursor:
            cursor.execute(f"INSERT INTO {TABLE} VALUES ({row}, 'new')")
    except Exception as error:
        return error
    return None


def number_of(session):
    """The server's number of a session."""
    with session.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()" if session.vendor == "postgresql" else "SELECT CONNECTION_ID()")
        return cursor.fetchone()[0]


@contextmanager
def one_waits(lock=write, row=1):
    """The first session has locked a row, and the second one waits for it until the end of the block; both."""
    with two_rows() as (holder, waiter):
        assert lock(holder, row) is None
        thread = threading.Thread(target=lock, args=(waiter, row))
        thread.start()
        try:
            wait_until(somebody_waits)
            yield holder, waiter
        finally:
            holder.rollback()
            thread.join()


def deadlock():
    """Two sessions lock rows 1 and 2 crosswise; the numbers of both, and the victim's error."""
    with two_rows() as (one, two):
        numbers = one.number, two.number
        assert write(one, 1) is None
        assert write(two, 2) is None
        errors = []
        thread = threading.Thread(target=lambda: errors.append(write(one, 2)))
        thread.start()
        wait_until(somebody_waits)
        errors.append(write(two, 1))
        # Whoever won may still hold what the other one's thread waits for.
        two.rollback()
        thread.join()
        (error,) = [error for error in errors if error is not None]
    return numbers, error


def diagnostics():
    """Of the test database."""
    return vendor("default").diagnostics


def fresh():
    """This thread's connection, with views of lock waits that are made anew."""
    let_lists_expire()
    return connections["default"]
