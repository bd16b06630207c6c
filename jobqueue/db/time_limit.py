"""Limits of time: for reads, for waits for locks, and for statements that the server does not answer.

A page or a command ends instead of hanging on a large table, or one that is locked. A thread that gets no answer cannot
notice, so another thread ends its session.
"""

from __future__ import annotations

import logging
import math
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from typing import Any

from django.db import Error, connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.signals import connection_created

from jobqueue.db import fault_vendor, vendor, vendor_of
from jobqueue.db.retry import LOCK_TRIES
from jobqueue.exceptions import StatementTimeout

logger = logging.getLogger("jobqueue.db")

#: the least and the most seconds for which StuckStatements waits for an answer
SECONDS_MIN, SECONDS_MAX = 5.0, 600.0


class TimeLimit:
    """The limit of a block of several reads."""

    def __init__(self, seconds: float) -> None:
        self.seconds, self._until = seconds, time.monotonic() + seconds

    def check(self) -> None:
        """Raise StatementTimeout if the time is over. Call it between two statements."""
        if time.monotonic() > self._until:
            raise self.exceeded()

    def exceeded(self) -> StatementTimeout:
        return StatementTimeout(
            f"Reading took longer than {self.seconds:g} s and was stopped. Nothing was written. Try again when the "
            "database is less busy, or ask for less."
        )


#: how long a page or a command that may write waits for each lock, and for how long it tries a transaction again
LOCK_SECONDS, TRIES_SECONDS = 1.0, 2.5


#: set on a connection within time_limit(together=): until when (monotonic) the limits of blocks within it may reach
_TOGETHER = "_jobqueue_time_limit"
#: what a block within it has at least
LEAST_SECONDS = 0.1


@contextmanager
def time_limit(seconds: float, *, using: str, together: float | None = None) -> Iterator[TimeLimit]:
    """A block whose SELECTs the database stops after `seconds` each; with check() it limits the whole block.

    After `together` seconds, blocks within it have LEAST_SECONDS each: those of a page that goes on after one of them.
    Raises StatementTimeout; a transaction of the caller stays usable. On MySQL the limit is max_execution_time, on
    MariaDB max_statement_time, on PostgreSQL statement_timeout; on SQLite a thread interrupts the statement.
    """
    connection = connections[using]
    before: float = getattr(connection, _TOGETHER, math.inf)
    seconds = min(seconds, max(LEAST_SECONDS, before - time.monotonic()))
    found, limit = vendor(using), TimeLimit(seconds)
    if together is not None:
        setattr(connection, _TOGETHER, min(before, time.monotonic() + together))
    try:
        with found.limit_reads(connection, seconds):
            yield limit
    except Error as error:
        if found.is_stopped(error):
            raise limit.exceeded() from error
        if not found.waited_too_long(error):
            raise
        raise StatementTimeout(
            f"A read waited in vain for a lock: {error}. Nothing was written. Look for what holds it, or try again "
            "later."
        ) from error
    finally:
        setattr(connection, _TOGETHER, before)


@contextmanager
def lock_limit(seconds: float = LOCK_SECONDS, *, using: str) -> Iterator[None]:
    """A block of which no statement, reading or writing, waits for a lock for longer than that, also of a whole table.

    Those of this thread, on the session to `using` that it has and on those that it opens. No statement is stopped that
    works; a transaction of ours that meets locks is tried again for TRIES_SECONDS. Behind a pooler of PostgreSQL waits
    have no limit.
    """
    own = connections[using]
    before = getattr(own, LOCK_TRIES, math.inf)
    with ExitStack() as stack:

        def limit(connection: BaseDatabaseWrapper, **_: object) -> None:
            # A session without the limit works, and one that is lost already is noticed by the next statement.
            with suppress(Error):
                if connection is own:
                    stack.enter_context(vendor_of(own).limit_waits(own, seconds))

        connection_created.connect(limit)
        setattr(own, LOCK_TRIES, TRIES_SECONDS)
        try:
            if own.connection is not None:
                limit(own)
            yield
        finally:
            connection_created.disconnect(limit)
            setattr(own, LOCK_TRIES, before)


class StatementTimer:
    """A block in which another thread may cut() the connection that this thread uses; its statement then fails.

    The driver sees a lost connection, as if the server had stopped.
    """

    def __init__(self, connection: BaseDatabaseWrapper) -> None:
        self.connection = connection
        #: when the last statement was sent (monotonic)
        self.since = 0.0
        self.over = self.was_cut = False
        self._session: Any = None
        self._fileno = -1

    def __enter__(self) -> None:
        self.since = time.monotonic()
        self._note_session()
        self.connection.execute_wrappers.append(self._execute)

    def __exit__(self, *_: object) -> None:
        self.over = True
        self.connection.execute_wrappers.pop()

    def cut(self) -> bool:
        """End the session, so that the server rolls back; returns whether that was done. Called by another thread.

        The socket is shut down; the driver's object is not touched, because it may be in use.
        """
        since, session = self.since, self._session
        try:
            # A copy: meanwhile its thread may close the number, and the system may give it to another file.
            line = socket.socket(fileno=os.dup(self._fileno))
        except OSError:
            return False  # no connection, or none by a socket
        with line:
            if self.over or self.since != since or self.connection.connection is not session:
                return False
            self.since, self.was_cut = time.monotonic(), True
            with suppress(OSError):
                line.shutdown(socket.SHUT_RDWR)
        return True

    def end_session(self) -> None:
        """cut(), and also end a session without a socket: the thread will not use it again."""
        if self.cut() or self.over or self._session is None:
            return
        if not hasattr(self._session, "fileno"):
            # SQLite: no server, and its own lock makes this safe.
            with suppress(Exception):
                self._session.close()

    def _execute(self, execute: Callable[..., object], *statement: object) -> object:
        if self.connection.connection is not self._session:
            self._note_session()
        self.since = time.monotonic()
        return execute(*statement)

    def _note_session(self) -> None:
        # In the thread that uses it: while mysqlclient waits for an answer, it raises in every other one.
        session, number = self.connection.connection, -1
        with suppress(Exception):  # of a driver that has noticed the end of its session
            number = session.fileno()
        self._fileno, self._session = number, session


class StuckStatements:
    """The statements that threads of this process wait for; cut() ends those that take longer than `seconds`.

    Their work is then done again on another connection, as after any lost answer. Each cut of a thread doubles the
    time until its next one, up to ten minutes, until it gets an answer: otherwise the sessions that were cut would
    accumulate in the server behind a lock of the whole table.
    """

    def __init__(self, name: str, seconds: float) -> None:
        self._name, self._seconds = name, max(SECONDS_MIN, seconds)
        self.timers: set[_WatchedStatements] = set()
        #: thread name -> seconds, for threads that have had no answer since a cut
        self._limits: dict[str, float] = {}
        self._looked_at = time.monotonic()

    def watched(self, connection: BaseDatabaseWrapper) -> AbstractContextManager[None]:
        """A block in which each statement of this thread on `connection` is timed; it must not be long without one.

        From now on this process also gives up opening a connection to this database after that time, unless its OPTIONS
        say how long that may take: there is no session yet that another thread could end.
        """
        if option := fault_vendor(connection.alias).opening_option:
            connection.settings_dict["OPTIONS"].setdefault(option, math.ceil(self._seconds))
        return _WatchedStatements(connection, self)

    def end(self, timer: _WatchedStatements) -> None:
        """Stop timing the statements of a thread, which calls this."""
        self.timers.discard(timer)
        if self._limits and not timer.was_cut:
            self._limits.pop(timer.thread, None)

    def cut(self) -> None:
        """Cut the connections on which a statement takes too long. Called by another thread, at least every second."""
        now = time.monotonic()
        gap, self._looked_at = now - self._looked_at, now
        for timer in list(self.timers):
            if gap > SECONDS_MIN / 2:
                # This process was suspended, or a job kept the interpreter: the answer may be there, but not read.
                timer.since = min(now, timer.since + gap)
            limit = self._limits.get(timer.thread, self._seconds)
            seconds = now - timer.since
            if seconds > limit and timer.cut():
                self._limits[timer.thread] = min(SECONDS_MAX, 2 * limit)
                logger.error(
                    "%s: the database has not answered for %.0f s (thread %s); cutting that connection, to try on "
                    "another one", self._name, seconds, timer.thread,
                )  # fmt: skip


class _WatchedStatements(StatementTimer):
    """A StatementTimer among the StuckStatements of its process."""

    def __init__(self, connection: BaseDatabaseWrapper, stuck: StuckStatements) -> None:
        super().__init__(connection)
        self._stuck, self.thread = stuck, threading.current_thread().name

    def __enter__(self) -> None:
        super().__enter__()
        self._stuck.timers.add(self)

    def __exit__(self, *_: object) -> None:
        super().__exit__()
        self._stuck.end(self)


_stuck: StuckStatements | None = None
_UNWATCHED: AbstractContextManager[None] = nullcontext()


def watch_with(stuck: StuckStatements) -> None:
    """Time the statements of this process in watched() blocks from now on; the caller calls stuck.cut()."""
    global _stuck
    _stuck = stuck


def watched(connection: BaseDatabaseWrapper) -> AbstractContextManager[None]:
    """A block in which a statement on `connection` fails if it is not answered for too long.

    It fails only in a process with a watchdog (watch_with()).
    """
    return _UNWATCHED if _stuck is None else _stuck.watched(connection)


LOOK_SECONDS = 0.1


class Watchdog:
    """Cuts connections of this process on which the database has not answered for `seconds`, and runs `duties`."""

    def __init__(self, name: str, seconds: float) -> None:
        stuck = StuckStatements(name, seconds)
        watch_with(stuck)
        self.duties: list[Callable[[], None]] = [stuck.cut]
        self._failing = False

    def start(self) -> None:
        """Start the thread. Raises RuntimeError if the system has no room for it."""
        threading.Thread(target=self._work, name="watchdog", daemon=True).start()

    def _work(self) -> None:
        while True:
            time.sleep(LOOK_SECONDS)
            try:
                for duty in self.duties:
                    duty()
                self._failing = False
            except Exception:
                # The log handlers of a project may raise, too, and no other thread does these duties.
                with suppress(Exception):
                    if not self._failing:
                        logger.exception("the watchdog of this process raised an unexpected error; it continues")
                self._failing = True
