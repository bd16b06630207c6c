"""Jobs that leave something behind in their connection: transactions that Django knows nothing of, settings, locks."""

import asyncio
import time
from weakref import WeakSet

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

_COLUMNS = "owner, balance, changed_at"
BOOK = f"INSERT INTO {Account._meta.db_table} ({_COLUMNS}) VALUES ('', %s, CURRENT_TIMESTAMP)"


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
def books_in(statements, n, autocommit=True):
    """An effect behind Django's back, in a transaction of its own that these statements begin and perhaps end."""
    connection.ensure_connection()
    if not autocommit:
        connection.set_autocommit(False)
    with connection.cursor() as cursor:
        for statement in statements:
            if statement == "BOOK":
                cursor.execute(BOOK, [n])
            elif statement == "COMMIT" and not autocommit:
                connection.commit()
            else:
                cursor.execute(statement)
    return "booked"


@handler("books in a batch", batch=2)
def books_in_batch(leases):
    with connection.cursor() as cursor:
        cursor.execute("BEGIN")
        cursor.execute(BOOK, [1])


@task(max_attempts=1)
def leaves_in_own_loop(statements, fails=True):
    """The same on an event loop of its own."""
    asyncio.run(sync_to_async(leave)(statements, fails=fails))


@task(max_attempts=1)
def books_in_own_loop(n):
    async def main():
        await Account.objects.acreate(balance=n)

    asyncio.run(main())


@task(max_attempts=1)
def enqueues_in_own_loop(n):
    async def main():
        await books.aenqueue(n)

    asyncio.run(main())


#: what the jobs below have found
zones = []


def _note_and_set_zone():
    reads, sets = {
        "mysql": ("SELECT @@session.time_zone", "SET SESSION time_zone = '+05:00'"),
        "postgresql": ("SHOW TIME ZONE", "SET TIME ZONE 'Asia/Karachi'"),
    }[connection.vendor]
    with connection.cursor() as cursor:
        cursor.execute(reads)
        zones.append(cursor.fetchone()[0])
        cursor.execute(sets)


@task(max_attempts=1)
def sets_zone_in_own_loop():
    """Notes the zone of the session that its loop's calls find, and sets another."""
    asyncio.run(sync_to_async(_note_and_set_zone)())


@task(max_attempts=1)
def books_in_a_transaction_of_two_calls(n):
    """The calls of a job that has a loop run in one thread."""

    async def main():
        await sync_to_async(_run)(["BEGIN"], raw=False)
        await sync_to_async(_run)([BOOK.replace("%s", str(n)), "COMMIT"], raw=False)

    asyncio.run(main())


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


class Big:
    """What a job has in its variables."""

    alive = WeakSet()

    def __init__(self):
        self.alive.add(self)


def _fail():
    big = Big()
    raise ValueError(id(big))


@task(max_attempts=1)
def fails_with_something_big(how):
    big = Big()
    if how == "local":
        raise ValueError(id(big))
    try:
        _fail()
    except ValueError as error:
        raise LookupError(big) from error


@task(max_attempts=1)
async def fails_with_something_big_as_a_coroutine():
    big = Big()
    raise ValueError(id(big))
