"""Transactions that do not wait long for what others have locked."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from django.db import transaction
from django.db.backends.base.base import BaseDatabaseWrapper

#: set on a connection within brief_transaction()
_BRIEF = "_jobqueue_brief"


class BriefWaits:
    """Part of Vendor."""

    @contextmanager
    def brief_transaction(self, connection: BaseDatabaseWrapper, lock_seconds: float) -> Iterator[None]:
        """A transaction, or a savepoint in the caller's, in which waits for locks are no longer than that.

        Nor longer than the session's own limit. Within another such block the limit of that one holds.
        """
        if getattr(connection, _BRIEF, False):
            with transaction.atomic(using=connection.alias):
                yield
            return
        setattr(connection, _BRIEF, True)
        try:
            with self._brief_transaction(connection, lock_seconds):
                yield
        finally:
            setattr(connection, _BRIEF, False)

    def _brief_transaction(
        self, connection: BaseDatabaseWrapper, lock_seconds: float
    ) -> AbstractContextManager[Any, bool | None]:
        return transaction.atomic(using=connection.alias)

    def waited_in_vain(self, error: BaseException) -> bool:
        """Whether `error` says that somebody else has kept a lock for longer than the limit."""
        return False
