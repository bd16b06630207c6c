"""lease_lock(): a lock for a time, kept in a table, and the fence floor.

By the floor, rows of ended locks can be deleted without their fences starting again.
"""

from __future__ import annotations

import os
import socket
import threading
import time
import uuid
from contextlib import nullcontext
from functools import cache, partial
from typing import Any

from django.db import IntegrityError, connections, transaction
from django.db.models import BooleanField, ExpressionWrapper, FloatField, Q, QuerySet

from jobqueue.base.validation import check_int
from jobqueue.db import vendor
from jobqueue.db.alias import alias_of
from jobqueue.db.callers_transaction import in_open_transaction
from jobqueue.db.clock import UtcNow, UtcNowPlus
from jobqueue.db.expressions import Slot
from jobqueue.db.fields import TokenField
from jobqueue.db.prepared import Prepared, prepare_change_by_key, prepare_rows
from jobqueue.db.retry import retry_reporting, retry_transient
from jobqueue.db.statements import placeholder
from jobqueue.exceptions import InsideTransaction, LockLost, LockNotAcquired
from jobqueue.failures import storable
from jobqueue.locks.entries import Entry
from jobqueue.locks.lock import TimedLock
from jobqueue.models import CounterShard, LockRow
from jobqueue.models.counter import DELETED_LOCKS
from jobqueue.models.locks import LEASE_FLOOR, add_to_floor, floor

_TOKEN, _SECONDS = Slot("token", TokenField()), Slot("seconds", FloatField())
# A row that was inserted may be deleted by hand before it is read.
_LOOKS = 3


def lease_lock(
    name: str, ttl_seconds: float, timeout_seconds: float | None = None, *, using: str | None = None
) -> LeaseLock:
    """A lock on `name` (1-255 characters, exact) that ends by itself `ttl_seconds` after it was acquired or renewed.

    `with lease_lock("report", 60) as lock:` holds it for the block. `.fence` grows with every holder of the name, for
    ever: pass it to what you write. The clock is the database's. timeout_seconds: None waits, 0 tries once. Entering
    raises LockNotAcquired, and InsideTransaction, because others must see the lock at once. See Lock, renew().
    """
    return LeaseLock(name, ttl_seconds, timeout_seconds, using)


class LeaseLock(TimedLock):
    """A row of job_lock: the holder is who wrote its token there last, until expires_at."""

    kind = "lease lock"

    def __init__(self, name: str, ttl_seconds: float, timeout_seconds: float | None, using: str | None) -> None:
        super().__init__(name, ttl_seconds, timeout_seconds)
        self.using = alias_of(using)

    def _prepare(self, entry: Entry) -> None:
        super()._prepare(entry)
        self._refuse_transaction("acquire")
        entry.token = uuid.uuid4().bytes

    def _refuse(self, entry: Entry, verb: str) -> None:
        super()._refuse(entry, verb)
        # An uncommitted release would lock the row against those who may have it after its time to live.
        self._refuse_transaction(verb)

    def _refuse_transaction(self, verb: str) -> None:
        if in_open_transaction(self.using):
            raise InsideTransaction(
                f"cannot {verb} {self.kind} {self.name!r} inside transaction.atomic() on {self.using!r}: others would "
                "not see it before the commit. Nothing was written; do it outside the block, or use mutex() inside."
            )

    def _attempt(self, entry: Entry, wait_seconds: float | None) -> bool:
        asked = time.monotonic()
        fence = retry_transient("lock", partial(self._try, entry), using=self.using)
        if fence is None:
            return False
        entry.fence, entry.ends_at = fence, asked + self.ttl_seconds
        return True

    def _try(self, entry: Entry) -> int | None:
        """The fence if the lock was free; None if it was not."""
        for _ in range(_LOOKS):
            # Read before writing, because a read waits for nobody: the holder may be about to commit its release.
            found = _reading(self.using).rows(name=self.name)
            if not found:
                make_row(self.name, owner(), entry.token, self.ttl_seconds, using=self.using)
                continue
            ((fence, token, is_free),) = found
            if token == entry.token:
                # Inserted just now, or written by an earlier try whose answer was lost.
                return int(fence)
            if not is_free:
                return None
            # The fence is in the WHERE clause: of all that read the lock as free, one changes the row.
            mine = self._mine(entry, self.ttl_seconds)
            taken = _taking(self.using).change(seen=fence, fence=fence + 1, owner=owner(), **mine)
            return int(fence) + 1 if taken else None
        return None

    def _prolong(self, entry: Entry, seconds: float) -> bool:
        renewing = partial(_renewing(self.using).change, **self._mine(entry, seconds))
        return bool(retry_transient("lock", renewing, using=self.using))

    def _give_back(self, entry: Entry) -> bool:
        ending = partial(_ending(self.using).change, name=self.name, token=entry.token)
        ended, ran_again = retry_reporting("lock", ending, using=self.using)
        return bool(ended) or (ran_again and self._was_ended(entry))

    def _was_ended(self, entry: Entry) -> bool:
        """Whether an earlier run of the release has ended the lock: before its end nobody else can have the row."""
        if time.monotonic() < entry.ends_at:
            return True
        found = _reading(self.using).rows(name=self.name)
        return bool(found) and (found[0][0], found[0][1]) == (entry.fence, None)

    def _mine(self, entry: Entry, seconds: float) -> dict[str, object]:
        return {"name": self.name, "token": entry.token, "seconds": seconds}


def uncounted_lock(name: str, ttl_seconds: float, using: str) -> LeaseLock:
    """A lock of maintenance, tried once. Not counted: lock statistics are about the locks of the project."""
    lock = LeaseLock(name, ttl_seconds, 0, using)
    lock._counted = False
    return lock


def takes_turn(name: str, seconds: float, using: str) -> bool:
    """Return True in one process of all, and after that in none for `seconds`: the lock is left to expire."""
    try:
        uncounted_lock(name, seconds, using).acquire()
    except LockNotAcquired:
        return False
    return True


class Turn:
    """The turn of one process of all at some maintenance; another one takes it `seconds` after this one has died."""

    def __init__(self, name: str, seconds: float) -> None:
        self._name, self._seconds = name, seconds
        self._lock: LeaseLock | None = None

    def hold(self, using: str) -> bool:
        """Take the turn, or keep it for another `seconds`; False while another process has it."""
        try:
            if self._lock is None:
                # A new lock each time: the outcome of the last one does not matter.
                self._lock = uncounted_lock(self._name, self._seconds, using).acquire()
            else:
                self._lock.renew()
        except (LockLost, LockNotAcquired):
            self._lock = None
        return self._lock is not None

    def leave(self) -> None:
        """Renew no more, and let the lock expire."""
        self._lock = None


def owner() -> str:
    """Host, process and thread, for people who read the row."""
    return storable(f"{socket.gethostname()}:{os.getpid()}:{threading.current_thread().name}", 255)


def _row(using: str) -> QuerySet[LockRow]:
    return LockRow.objects.using(using).filter(pk=Slot("name", LockRow._meta.pk))


@cache
def _reading(using: str) -> Prepared:
    free = ExpressionWrapper(Q(expires_at__lte=UtcNow()), output_field=BooleanField())
    return prepare_rows(_row(using).annotate(is_free=free).values_list("fence", "owner_token", "is_free"))


@cache
def _taking(using: str) -> Prepared:
    seen = _row(using).filter(fence=Slot("seen", LockRow._meta.get_field("fence")), expires_at__lte=UtcNow())
    return prepare_change_by_key(
        seen,
        {
            "fence": Slot("fence", LockRow._meta.get_field("fence")),
            "owner": Slot("owner", LockRow._meta.get_field("owner")),
            "owner_token": _TOKEN,
            "acquired_at": UtcNow(),
            "expires_at": UtcNowPlus(_SECONDS),
        },
    )


@cache
def _renewing(using: str) -> Prepared:
    alive = _row(using).filter(owner_token=_TOKEN, expires_at__gt=UtcNow())
    return prepare_change_by_key(alive, {"expires_at": UtcNowPlus(_SECONDS)})


@cache
def _ending(using: str) -> Prepared:
    return prepare_change_by_key(_row(using).filter(owner_token=_TOKEN), {"owner_token": None, "expires_at": UtcNow()})


def make_row(name: str, owner: str, token: bytes, ttl_seconds: float, *, using: str) -> None:
    """Insert the row of a lock, held under `token`; do nothing if another process has just inserted it.

    Its fence is one above that of every deleted lock. One statement reads the floor under a lock and inserts the row:
    if the floor could rise in between, the new row could get a fence that an earlier holder had.
    """
    field: Any = LockRow._meta.get_field("owner_token")
    found, connection = vendor(using), connections[using]
    names = [found.text_parameter(connection, text) for text in (name, owner)]
    values = [*names, field.get_db_prep_save(token, connection), ttl_seconds]
    if not _insert_row(values, using):
        add_to_floor(LEASE_FLOOR, 0, using)
        _insert_row(values, using)


def _insert_row(values: list[Any], using: str) -> bool:
    """Whether the row exists now; False if there is no floor."""
    connection = connections[using]
    # Only a test case is in a transaction here.
    block = transaction.atomic(using=using) if connection.in_atomic_block else nullcontext()
    try:
        with block, connection.cursor() as cursor:
            cursor.execute(_insert_sql([placeholder(value) for value in values], using), values)
            return bool(cursor.rowcount)
    except IntegrityError:
        return True


def _insert_sql(places: list[str], using: str) -> str:
    name, owner, token, seconds = places
    found, quote = vendor(using), connections[using].ops.quote_name
    columns = ", ".join(map(quote, ["lock_key", "fence", "owner", "owner_token", "expires_at"]))
    ends = found.now_plus_sql % {"expressions": seconds}
    return (
        f"INSERT INTO {quote(LockRow._meta.db_table)} ({columns}) SELECT {name}, total + 1, {owner}, {token}, {ends} "
        f"FROM {quote(CounterShard._meta.db_table)} WHERE counter_key = '{DELETED_LOCKS}' AND shard = {LEASE_FLOOR} "
        f"{found.for_share_sql}"
    )


def sweep(limit: int = 1000, *, using: str | None = None) -> int:
    """Delete up to `limit` ended locks, the oldest first, in one transaction; the number of deleted rows.

    Any number of processes may run it. It skips rows that others have locked.
    """
    check_int(limit, "limit", 1, 10_000)
    alias = alias_of(using)
    return retry_transient("housekeeping", lambda: _sweep(limit, alias), using=alias)


def ended(using: str) -> QuerySet[LockRow]:
    """Lease locks that have ended, the oldest first."""
    return LockRow.objects.using(using).filter(expires_at__lt=UtcNow()).order_by("expires_at")


def _sweep(limit: int, using: str) -> int:
    if not ended(using).exists():
        # The usual case: no transaction, and no lock on the floor.
        return 0
    found = vendor(using)
    with found.transaction(connections[using]):
        # Lock the floor first, in the same order as make_row().
        add_to_floor(LEASE_FLOOR, 0, using)
        rows = found.force_index(ended(using), "ix_lock_expiry").values_list("pk", "fence")
        fences = dict(found.lock_rows(rows, limit))
        if not fences:
            return 0
        highest = max(fences.values())
        floor(LEASE_FLOOR, using).filter(total__lt=highest).update(total=highest)
        # Filtered again: not every database kept these rows locked since they were read.
        gone, _ = ended(using).filter(pk__in=list(fences)).order_by().delete()
    return gone
