"""mutex(): a row lock for a key, until the transaction ends."""

from __future__ import annotations

import hashlib
import time
import uuid
import weakref
from collections.abc import Iterable
from typing import Self

from asgiref.sync import sync_to_async
from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper

from jobqueue.base.validation import LOCK_CHARS, check_seconds, key_text
from jobqueue.db import vendor
from jobqueue.db.alias import alias_of, explain_missing_table
from jobqueue.db.callers_transaction import in_test_case
from jobqueue.db.locks import MutexTable
from jobqueue.exceptions import InvalidValue, LockNotAcquired, TransactionRequired
from jobqueue.locks.deadline import Deadline
from jobqueue.lockstats import recorder
from jobqueue.models import CounterShard, MutexRow
from jobqueue.models.counter import DELETED_LOCKS
from jobqueue.models.locks import MUTEX_FLOOR

Part = str | int | uuid.UUID
KIND = "mutex"
#: rows of mutexes that nobody has taken for so long are deleted
MUTEX_IDLE_SECONDS = 86_400
_COUNTERS = CounterShard._meta.db_table
_ROWS = MutexTable(
    table=MutexRow._meta.db_table,
    key="lock_key",
    takes="takes",
    taken_at="taken_at",
    created_at="created_at",
    deletions_sql=f"SELECT total FROM {_COUNTERS} WHERE counter_key = '{DELETED_LOCKS}' AND shard = {MUTEX_FLOOR}",
    no_deletion_sql=f"INSERT INTO {_COUNTERS} (counter_key, shard, total) VALUES ('{DELETED_LOCKS}', {MUTEX_FLOOR}, 0)",
    idle_seconds=MUTEX_IDLE_SECONDS,
)


class Mutex:
    """A mutex that this transaction holds until it ends. A `with` block only shows what the lock is for."""

    def __init__(self, key: str) -> None:
        self.key = key

    def __repr__(self) -> str:
        return f"<mutex {self.key}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        return None


def mutex(*key: Part, timeout_seconds: float | None = None, using: str | None = None) -> Mutex:
    """Lock `key` until the caller's transaction ends; needs no row of yours. Locks when called, not by `with`.

    A key is one or more str, int or UUID, compared exactly: ("a", 1) is neither ("a", "1") nor ("a1",). Locking it
    again in the same transaction is free; do so after the rollback of a savepoint, which may release what was first
    locked within it. timeout_seconds: None waits, 0 tries once; MySQL and MariaDB count whole seconds. Raises
    TransactionRequired outside transaction.atomic(); LockNotAcquired, after which the transaction can go on;
    StaleSnapshot; InvalidType, InvalidValue; for several keys use mutex_many().
    """
    return _take([encode(key)], timeout_seconds, using)[0]


def mutex_many(
    keys: Iterable[Part | tuple[Part, ...]], *, timeout_seconds: float | None = None, using: str | None = None
) -> list[Mutex]:
    """mutex() for several keys, each a tuple or a single part; duplicates are locked once.

    It locks from the lowest key to the highest, so two transactions that want the same keys cannot deadlock.
    timeout_seconds is for all of them together; after LockNotAcquired those already locked stay locked until the
    transaction ends.
    """
    return _take([encode(key if isinstance(key, tuple) else (key,)) for key in keys], timeout_seconds, using)


async def amutex(*key: Part, timeout_seconds: float | None = None, using: str | None = None) -> Mutex:
    """mutex() in the thread of sync_to_async; the transaction must have been opened there too."""
    return await sync_to_async(mutex)(*key, timeout_seconds=timeout_seconds, using=using)


def encode(key: tuple[Part, ...]) -> str:
    """The key of the row: the parts as a JSON list in ASCII; over 255 characters it ends in its SHA-256."""
    if not key:
        raise InvalidValue("mutex() needs a key of at least one part. Nothing was locked.")
    text = key_text(key, (str, int, uuid.UUID), "a mutex key")
    if len(text) <= LOCK_CHARS:
        return text
    digest = hashlib.sha256(text.encode()).hexdigest()
    return f"{text[: LOCK_CHARS - 1 - len(digest)]}#{digest}"


def _take(keys: list[str], timeout_seconds: float | None, using: str | None) -> list[Mutex]:
    seconds = None if timeout_seconds is None else check_seconds(timeout_seconds, "timeout_seconds", zero=True)
    alias = alias_of(using)
    connection = connections[alias]
    if not connection.in_atomic_block and connection.get_autocommit():
        raise TransactionRequired(
            f"mutex() was called outside transaction.atomic() on {alias!r}: its lock would end with the statement. "
            "Nothing was locked; call it inside the block, or use lease_lock() for work without a transaction."
        )
    deadline = Deadline(seconds)
    for key in sorted(set(keys)):
        waited = Deadline(None)
        with explain_missing_table(alias):
            got = vendor(alias).locks.take_mutex(connection, _ROWS, key, deadline.left_seconds())
        if not got:
            recorder.failed(KIND, key, waited.waited_seconds())
            raise LockNotAcquired(
                f"mutex {key} was not free in time: another transaction holds it. Nothing was written, and this "
                "transaction can go on; try again later, or wait longer with timeout_seconds."
            )
        recorder.acquired(KIND, key, waited.waited_seconds(), contended=False)
        _count_release(connection, key)
    return [Mutex(key) for key in keys]


def _count_release(connection: BaseDatabaseWrapper, key: str) -> None:
    """Record how long the mutex is held, which is until the transaction ends.

    Commit and rollback both drop the on_commit hook; its finalizer records the time. Not in a test case, where the hook
    would show up among those of the code under test.
    """
    if not connection.in_atomic_block or in_test_case(connection):
        return
    begun = time.monotonic()

    def hook() -> None:
        """Do nothing: only a commit calls it."""

    weakref.finalize(hook, lambda: recorder.released(KIND, key, time.monotonic() - begun)).atexit = False
    connection.on_commit(hook, robust=True)
