"""Jobs that leave something behind in their connection: transactions that Django knows nothing of, settings, locks."""

import time

from asgiref.sync import sync_to_async
from django.db import connection, transaction

from jobqueue import handler, task
from jobqueue.exceptions import SoftTimeout
from tests.app.models import Account
from tests.patience import patient

#: what begins a transaction behind Django's back
BEGIN = {
    "begin": ["BEGIN"],
    "start transaction": ["START TRANSACTION"],
    "a failed script": ["BEGIN", "INSERT INTO no_such_table VALUES (1)", "COMMIT"],
    "autocommit off": ["SET autocommit=0"],
    "a procedure that fails": ["CALL leaves_open()"],
    "a second statement": ["SELECT 1; START TRANSACTION"],
    "xa": ["XA START 'leftover'"],
}


def _run(statements, raw):
    cursor = connection.connection.cursor() if raw else connection.cursor()
    for statement in statements:
        cursor.execute(statement)
        while cursor.nextset() if hasattr(cursor, "nextset") else False:
            pass


def leave(statements, raw=False, fails=True):
    connection.ensure_connection()
    _run(statements, raw)
    if fails:
        raise ValueError("before the COMMIT")


@task(max_attempts=1)
def leaves(statements, raw=False, fails=True):
    """Runs the statements, and has no end for what they began."""
    leave(statements, raw, fails)


@task(max_attempts=1)
async def leaves_as_a_coroutine(statements):
    """The same by a thread for calls."""
    await sync_to_async(leave)(statements)


@handler("leftovers", batch=2)
def leaves_in_a_batch(leases):
    leave(leases[0].payload)


@task(max_attempts=1)
def books(n):
    """An effect, by the connection as the job finds it."""
    Account.objects.create(balance=n)


@task(max_attempts=1)
async def books_as_a_coroutine(n):
    await Account.objects.acreate(balance=n)


@task(max_attempts=1, takes_context=True)
def books_and_finishes(context, n):
    with context.finish():
        Account.objects.create(balance=n)


@handler("bookings", batch=1)
def books_in_a_batch(leases):
    for lease in leases:
        Account.objects.create(balance=lease.payload)


@task(max_attempts=1)
def enqueues(n):
    """An order."""
    books.enqueue(n)


#: long enough for a busy machine to come to what it is to interrupt
LIMIT_SECONDS = patient(0.1)


def sleep_in_the_server(seconds):
    sleeps = {"postgresql": "SELECT pg_sleep(%s)", "mysql": "SELECT SLEEP(%s)"}[connection.vendor]
    with connection.cursor() as cursor:
        cursor.execute(sleeps, [seconds])
        cursor.fetchall()


@task(timeout_seconds=LIMIT_SECONDS, max_attempts=1)
def is_slow():
    """Its time is up while the server works."""
    sleep_in_the_server(2 * LIMIT_SECONDS)


@task(timeout_seconds=LIMIT_SECONDS, max_attempts=1)
def is_slow_and_saves(n):
    """The same, and it keeps what it has."""
    try:
        sleep_in_the_server(2 * LIMIT_SECONDS)
    except SoftTimeout:
        Account.objects.create(balance=n)


@task(timeout_seconds=LIMIT_SECONDS, max_attempts=1)
def is_slow_in_a_transaction(n):
    """Its time is up while it computes, and it keeps what it has."""
    with transaction.atomic():
        Account.objects.create(balance=n)
        try:
            while True:
                time.sleep(0.01)
        except SoftTimeout:
            Account.objects.create(balance=n)


@task
def idles():
    """Needs no connection."""
