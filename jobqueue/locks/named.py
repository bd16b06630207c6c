"""named_lock(): a lock of the database server by name, for the life of a connection."""

from __future__ import annotations

import hashlib
import re
import threading
import weakref
from functools import partial

from django.db import Error, connections

from jobqueue.db import vendor
from jobqueue.db.alias import alias_of
from jobqueue.db.callers_transaction import in_open_transaction, once_per_session
from jobqueue.db.dialect import GONE_KINDS
from jobqueue.db.sessions import close_if_ended
from jobqueue.exceptions import InsideTransaction, LockAlreadyHeld, LockLost, LockNotAcquired, LockNotHeld, NotSupported
from jobqueue.locks.entries import Entry
from jobqueue.locks.lock import Lock


def named_lock(name: str, timeout_seconds: float | None, *, using: str | None = None) -> NamedLock:
    """GET_LOCK on MySQL and MariaDB, an advisory lock of the session on PostgreSQL; NotSupported on SQLite.

    It belongs to this thread's connection and ends with it; it has no time limit and no table. Other programs use the
    same lock by `.server_name`. timeout_seconds: None waits, 0 tries once; MySQL counts whole seconds. Entering raises
    LockNotAcquired; LockAlreadyHeld when this thread or task holds it; InsideTransaction, because it would be released
    before the commit; NotSupported where it would exclude nobody: Galera, several primaries, transaction poolers.
    """
    return NamedLock(name, timeout_seconds, using)


class NamedLock(Lock):
    """A lock that one session of the server holds."""

    kind = "named lock"
    ends = "It ends with its connection."

    def __init__(self, name: str, timeout_seconds: float | None, using: str | None) -> None:
        super().__init__(name, timeout_seconds)
        self.using = alias_of(using)

    @property
    def server_name(self) -> str:
        """At most 64 characters: the readable part of the name, and a hash of the whole name and the database's name.

        MySQL refuses longer names, ignores case, and has one set of names for all databases.
        """
        connection = connections[self.using]
        scope = vendor(self.using).locks.named_lock_scope(connection)
        digest = hashlib.sha256(f"{scope}\x00{self.name}".encode()).hexdigest()[:32]
        return f"{re.sub(r'[^a-z0-9_.:-]+', '-', self.name.lower())[:31]}.{digest}"

    def _prepare(self, entry: Entry) -> None:
        connection = connections[self.using]
        if in_open_transaction(self.using):
            raise InsideTransaction(
                f"cannot acquire {self.kind} {self.name!r} inside transaction.atomic() on {self.using!r}: it would be "
                "released before the commit, and the next holder would not see what was written. Nothing was locked; "
                "begin the transaction inside the lock, or use mutex()."
            )
        close_if_ended(connection)
        connection.ensure_connection()
        look = partial(vendor(self.using).locks.named_lock_problem, connection)
        problem = once_per_session(connection, "_jobqueue_named_problem", look)
        if problem is not None:
            raise NotSupported(f"named_lock() is refused on {self.using!r}: {problem}. Use lease_lock() or mutex().")

    def _attempt(self, entry: Entry, wait_seconds: float | None) -> bool:
        connection = connections[self.using]
        name = self.server_name
        holder = self._names().get(name)
        if holder is not None:
            # The server would count a second request of the session and grant it.
            self._refuse_twice(entry, holder, wait_seconds)
            return False
        entry.asking = True
        try:
            got = vendor(self.using).locks.get_named_lock(connection, name, wait_seconds)
        except Error as error:
            self._answered(entry, error)
            raise
        entry.asking = False
        if not got:
            return False
        entry.session, entry.thread = weakref.ref(connection.connection), threading.current_thread()
        self._names()[name] = entry
        return True

    def _answered(self, entry: Entry, error: Error) -> None:
        """Handle an error of the server: it has not granted the lock, and the connection keeps its other locks.

        Raises LockNotAcquired if the server only ended the wait.
        """
        found, connection = vendor(self.using), connections[self.using]
        kind = found.error_kind(error)
        if kind in GONE_KINDS:
            return
        # The statement before the one that failed may have been granted it.
        found.locks.release_named_lock(connection, self.server_name)
        entry.asking = False
        if kind is not None or found.locks.refuses_named_lock(error):
            raise LockNotAcquired(
                f"{self.kind} {self.name!r} was not got: the database ended the wait ({error}). Nothing was locked, "
                "and other locks of this connection are still held. Try again later; take several locks in one order."
            ) from error

    def _refuse_twice(self, entry: Entry, holder: Entry, wait_seconds: float | None) -> None:
        """Raise if waiting is useless: coroutines can wait for each other, a thread would block its own holder."""
        if entry.has_owner_of(holder):
            raise LockAlreadyHeld(
                f"{self.kind} {self.name!r}: this connection holds it already. The server would count, and let nobody "
                "in between; nothing changed. Pass the lock on, or use another thread."
            )
        if wait_seconds != 0:
            raise LockNotAcquired(
                f"{self.kind} {self.name!r} is held by {holder.owner_name}, by the connection of this thread, which "
                "cannot be waited for in this thread. Nothing changed; try again later."
            )

    def _refuse(self, entry: Entry, verb: str) -> None:
        super()._refuse(entry, verb)
        thread = entry.thread
        if thread is not None and thread is not threading.current_thread() and thread.is_alive():
            raise LockNotHeld(
                f"{self.kind} {self.name!r}: cannot {verb}, it is held by thread {thread.name!r}, and only its "
                "connection can give it back. Nothing changed; release it in that thread."
            )

    def _give_back(self, entry: Entry) -> bool:
        connection = connections[self.using]
        session, entry.session = entry.session, None
        if session is None or session() is None or session() is not connection.connection:
            return False
        self._names().pop(self.server_name, None)
        try:
            return vendor(self.using).locks.release_named_lock(connection, self.server_name)
        except Error:
            # Whatever failed: without its session the lock does not exist.
            connection.close()
            return False

    def _forget(self, entry: Entry) -> None:
        if entry.asking:
            # A statement whose answer nobody read may have been granted the lock; only closing the session is certain.
            entry.asking = False
            connections[self.using].close()
        elif entry.session is not None:
            self._give_back(entry)

    def _lost(self, before: str) -> LockLost:
        return LockLost(
            f"{self.kind} {self.name!r} was lost before {before}: its connection was closed or broke, and the lock "
            "ended with it. Somebody else may have held it meanwhile; check what the block has written."
        )

    def _names(self) -> dict[str, Entry]:
        """The names that the present session holds, with their entries."""
        names: dict[str, Entry] = once_per_session(connections[self.using], "_jobqueue_names", dict)
        return names
