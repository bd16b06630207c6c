"""lease_lock(): a lock for a time, kept in a table."""

from __future__ import annotations

import os
import socket
import threading
import time
import uuid
from typing import Any

from django.db import IntegrityError, connections
from django.db.models import BooleanField, ExpressionWrapper, Q, QuerySet

from jobqueue.conf import load
from jobqueue.db import vendor
from jobqueue.db.clock import UtcNow, UtcNowPlus
from jobqueue.db.open_transaction import in_open_transaction
from jobqueue.db.retry import retry_transient
from jobqueue.exceptions import InsideTransaction
from jobqueue.failures import storable
from jobqueue.locks.floor import read_floor
from jobqueue.locks.timed import TimedLock
from jobqueue.models import LockRow
from jobqueue.names import check_seconds


def lease_lock(
    name: str, ttl_seconds: float, timeout_seconds: float | None = None, *, using: str | None = None
) -> LeaseLock:
    """A lock on `name` (1-255 characters, exact) that ends by itself `ttl_seconds` after it was acquired or renewed.

    `with lease_lock("report", 60) as lock:` holds it for the block; `.fence` grows with every holder of the name, for
    ever: hand it to what you write. Time is the database's. timeout_seconds: None waits, 0 tries once. Entering raises
    LockNotAcquired; InsideTransaction, because others must see it at once. See Lock, renew().
    """
    return LeaseLock(name, ttl_seconds, timeout_seconds, using)


class LeaseLock(TimedLock):
    """A row of job_lock: whoever has written its token there last, and in time, is the holder."""

    kind = "lease lock"

    def __init__(self, name: str, ttl_seconds: float, timeout_seconds: float | None, using: str | None) -> None:
        super().__init__(name, ttl_seconds, timeout_seconds)
        self.using = using or load().database
        self._token = b""

    def renew(self, ttl_seconds: float | None = None) -> None:
        """Let the lock end `ttl_seconds` (default: as acquired) from now. Raises LockLost if it has ended already.

        Not done by a thread of ours: a body that hangs must lose its lock. Refused inside a transaction.
        """
        self._require_held("renew")
        self._refuse_transaction("renew")
        seconds = self.ttl_seconds if ttl_seconds is None else check_seconds(ttl_seconds, "ttl_seconds")
        asked = time.monotonic()
        alive = self._rows().filter(owner_token=self._token, expires_at__gt=UtcNow())
        if not retry_transient(lambda: self._update(alive, expires_at=UtcNowPlus(seconds)), using=self.using):
            raise self._lose("its renewal")
        self._ends_at = asked + seconds

    def _prepare(self) -> None:
        super()._prepare()
        self._refuse_transaction("acquire")
        self._token = uuid.uuid4().bytes

    def _refuse_transaction(self, verb: str) -> None:
        if in_open_transaction(self.using):
            raise InsideTransaction(
                f"cannot {verb} {self.kind} {self.name!r} inside transaction.atomic() on {self.using!r}: others would "
                "not see it before the commit. Nothing was written; do it outside the block, or use mutex() inside."
            )

    def _attempt(self, wait_seconds: float | None) -> bool:
        asked = time.monotonic()
        fence = retry_transient(self._try, using=self.using)
        if fence is None:
            return False
        self._fence, self._ends_at = fence, asked + self.ttl_seconds
        return True

    def _try(self) -> int | None:
        """The fence if the lock was free; None if it was not."""
        free = ExpressionWrapper(Q(expires_at__lte=UtcNow()), output_field=BooleanField())
        row = self._rows().annotate(is_free=free).values_list("fence", "owner_token", "is_free").first()
        if row is None:
            return self._insert()
        fence, token, is_free = row
        if token == self._token:
            # Written by an earlier try, whose answer was lost.
            return int(fence)
        if not is_free:
            return None
        # The fence in the WHERE: of all who saw the lock free, one changes the row.
        seen = self._rows().filter(fence=fence, expires_at__lte=UtcNow())
        return fence + 1 if self._update(seen, fence=fence + 1, **self._mine()) else None

    def _insert(self) -> int | None:
        try:
            with vendor(self.using).transaction(connections[self.using]):
                fence = read_floor(self.using) + 1
                LockRow(lock_key=self.name, fence=fence, **self._mine()).save(using=self.using, force_insert=True)
        except IntegrityError:
            return None
        return fence

    def _give_back(self) -> bool:
        mine = self._rows().filter(owner_token=self._token)
        return bool(
            retry_transient(lambda: self._update(mine, owner_token=None, expires_at=UtcNow()), using=self.using)
        )

    def _mine(self) -> dict[str, Any]:
        return {
            "owner": storable(f"{socket.gethostname()}:{os.getpid()}:{threading.current_thread().name}", 255),
            "owner_token": self._token,
            "acquired_at": UtcNow(),
            "expires_at": UtcNowPlus(self.ttl_seconds),
        }

    def _rows(self) -> QuerySet[LockRow]:
        return LockRow.objects.using(self.using).filter(pk=self.name)

    def _update(self, rows: QuerySet[LockRow], **changes: Any) -> int:
        return vendor(self.using).update_by_key(rows, changes)
