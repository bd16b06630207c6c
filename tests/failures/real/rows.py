"""What the databases raise through Django."""

from __future__ import annotations

import threading
from contextlib import closing

from django.db import connection, transaction
from django.db.utils import DatabaseError

from jobqueue.models import Job
from tests.app.models import Account
from tests.blocking import is_held_up
from tests.failures.real import Real
from tests.settings import VENDOR

SERVERS = ("mysql", "mariadb", "postgres")
TABLE = Account._meta.db_table


def run(sql, *parameters):
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(sql, parameters)


def refused(sql):
    """A statement about the job of the world."""
    return lambda world: run(sql.format(id=world.job_id))


def session():
    """Another connection, which does not wait for locks for long."""
    other = connection.copy()
    if VENDOR == "sqlite":
        other.settings_dict = {**other.settings_dict, "OPTIONS": {**other.settings_dict["OPTIONS"], "timeout": 0.05}}
    waits = {"postgres": "SET lock_timeout = '50ms'", "sqlite": "SELECT 1"}
    with other.cursor() as cursor:
        cursor.execute(waits.get(VENDOR, "SET innodb_lock_wait_timeout = 1"))
    return other


def add_to(other, account):
    with other.cursor() as cursor:
        cursor.execute(f"UPDATE {TABLE} SET balance = balance + 1 WHERE id = %s", [account.pk])


def wait_for_a_row(_):
    account = Account.objects.create(owner="locked")
    with closing(session()) as other, transaction.atomic():
        add_to(connection, account)
        add_to(other, account)


def do_not_wait_for_a_row(_):
    account = Account.objects.create(owner="locked")
    with closing(session()) as other, transaction.atomic():
        add_to(connection, account)
        with other.cursor() as cursor:
            cursor.execute(f"SELECT id FROM {TABLE} WHERE id = %s FOR UPDATE NOWAIT", [account.pk])


def deadlock(_):
    """Two sessions update two rows in opposite order; the server ends one of them."""
    rows = [Account.objects.create(owner="locked") for _ in range(2)]
    found = []
    first, second = connection.copy(), connection.copy()

    def go_on(other, account):
        try:
            add_to(other, account)
        except DatabaseError as error:
            found.append(error)
        finally:
            other.rollback()
            other.close()

    for other, account in ((first, rows[0]), (second, rows[1])):
        other.set_autocommit(False)
        add_to(other, account)
    first.inc_thread_sharing()
    thread = threading.Thread(target=go_on, args=(first, rows[1]))
    thread.start()
    is_held_up(lambda: not thread.is_alive())
    go_on(second, rows[0])
    thread.join()
    raise found[0]


def take_too_long(_):
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SET LOCAL statement_timeout = 20")
        cursor.execute("SELECT pg_sleep(1)")


def connect_to_a_port_that_refuses(world):
    gone = connection.copy()
    gone.settings_dict = {**gone.settings_dict, "HOST": "127.0.0.1", "PORT": str(world.closed_port)}
    gone.ensure_connection()


def use_a_session_that_was_killed(_):
    with closing(connection.copy()) as other, other.cursor() as cursor, connection.cursor() as killer:
        if VENDOR == "postgres":
            cursor.execute("SELECT pg_backend_pid()")
            killer.execute("SELECT pg_terminate_backend(%s)", cursor.fetchone())
        else:
            cursor.execute("SELECT CONNECTION_ID()")
            killer.execute("KILL %s", cursor.fetchone())
        cursor.execute("SELECT 1")


OBJECTS = [
    Real("Django: a row that is not there", lambda _: Job.objects.get(pk=0), "data", Job.DoesNotExist),
    Real("Django: a row that is there twice", lambda _: Job.objects.get(pk__gt=0), "data", Job.MultipleObjectsReturned),
]
REFUSED = [
    Real(f"SQL: {how}", refused(sql), "data")
    for how, sql in {
        "a key that is taken": "INSERT INTO job_queue (id, queue, status, priority, payload) "
        "SELECT id, queue, 0, 0, '1' FROM job_queue WHERE id = {id}",
        "a CHECK": "UPDATE job_queue SET status = 9 WHERE id = {id}",
        "NOT NULL": "UPDATE job_queue SET queue = NULL WHERE id = {id}",
        "a table that does not exist": "SELECT * FROM no_such_table",
        "a column that does not exist": "SELECT no_such_column FROM job_queue",
        "a word that is no SQL": "SELEKT",
    }.items()
]
TOO_LONG = [
    Real(
        "SQL: a value that is too long",
        refused(f"UPDATE job_queue SET cause = '{'x' * 99}' WHERE id = {{id}}"),
        "data",
        databases=SERVERS,
    )
]
LOCKED = [
    Real("SQL: a lock wait, or a busy file of SQLite", wait_for_a_row, "resource"),
    Real("SQL: NOWAIT", do_not_wait_for_a_row, "resource", databases=SERVERS),
    Real("SQL: a deadlock", deadlock, "resource", databases=SERVERS),
    Real("SQL: statement_timeout", take_too_long, "resource", databases=("postgres",)),
]
AWAY = [
    Real("SQL: a server that is away", connect_to_a_port_that_refuses, "dependency", databases=SERVERS),
    Real("SQL: a session that was killed", use_a_session_that_was_killed, "dependency", databases=SERVERS),
]
GROUPS = [OBJECTS, REFUSED, TOO_LONG, LOCKED, AWAY]


def here(reals):
    """Those that this database can raise."""
    return [real for real in reals if not real.databases or VENDOR in real.databases]
