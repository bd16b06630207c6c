"""What the lock tests share."""

import asyncio
import time
from contextlib import contextmanager

from django.db import connection, transaction

from jobqueue.db.clock import UtcNowPlus
from jobqueue.locks import lease_lock, mutex, named_lock, redis_lock
from jobqueue.models import LockRow
from tests.settings import VENDOR

MYSQL = VENDOR in ("mysql", "mariadb")


def make_lock(kind, name="k", timeout_seconds=0, ttl_seconds=60):
    """An object of one of the three kinds that have one."""
    if kind == "named":
        return named_lock(name, timeout_seconds)
    return (lease_lock if kind == "lease" else redis_lock)(name, ttl_seconds, timeout_seconds)


def expire(name="k"):
    """Let a lease lock run out now, by the database's clock."""
    assert LockRow.objects.filter(pk=name).update(expires_at=UtcNowPlus(-1)) == 1


def row(name="k"):
    """Every column of a lease lock."""
    return LockRow.objects.filter(pk=name).values().get()


#: what a lock guards lasts so long that somebody who may come in does
STAY_SECONDS = 0.02


def stay():
    """Be inside for a while."""
    time.sleep(STAY_SECONDS)


async def astay():
    """The same in a coroutine."""
    await asyncio.sleep(STAY_SECONDS)


async def begun_to_wait(lock):
    """Start a task that acquires a lock, and return it when its first try has failed."""
    tries, attempt = [], lock._attempt

    def note(*args, **options):
        found = attempt(*args, **options)
        tries.append(found)
        return found

    lock._attempt = note
    task = asyncio.ensure_future(lock.aacquire())
    while not tries:
        await asyncio.sleep(0)
    assert not tries[0]
    return task


@contextmanager
def repeatable_read():
    """A transaction with one snapshot, as a project may have set its sessions."""
    with connection.cursor() as cursor:
        if VENDOR == "postgres":
            cursor.execute("SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        else:
            cursor.execute("SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ")
    try:
        with transaction.atomic():
            yield
    finally:
        # The setting ends with the session.
        connection.close()


def mutex_in_transaction(*key, **options):
    """Lock, and end the transaction at once."""
    with transaction.atomic():
        return mutex(*key, **options)
