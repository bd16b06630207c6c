"""SQLite 3.35 and later, the embedded default: one writer at a time, no row locks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from django.db import OperationalError, transaction
from django.db.backends.base.base import BaseDatabaseWrapper

from jobqueue.db.base import Fault, Q, Vendor, stale_snapshot
from jobqueue.exceptions import StaleSnapshot

_WAIT_MS_MAX = 2**31 - 1
_FORMAT = "strftime('%%Y-%%m-%%d %%H:%%M:%%f'"


class SQLite(Vendor):
    """One writer at a time: a transaction of ours takes the write lock, so a read followed by a write is one unit."""

    name = "SQLite"
    supported = True
    claim_strategy = "sqlite-immediate"
    claim_form = "SELECT, then a guarded UPDATE, in a BEGIN IMMEDIATE transaction"
    single_writer = True
    column_types = {"tiny": "smallint", "instant": "datetime"}
    # Milliseconds, written with six digits so that text compares like time.
    now_sql = f"{_FORMAT}, 'now') || '000'"
    now_plus_sql = _FORMAT.replace("%%", "%%%%") + ", 'now', (%(expressions)s) || ' seconds') || '000'"

    def lock_rows(self, queryset: Q) -> Q:
        """The whole database is locked by the transaction already."""
        return queryset

    @contextmanager
    def transaction(self, connection: BaseDatabaseWrapper) -> Iterator[None]:
        """BEGIN IMMEDIATE: takes the write lock now and waits for it.

        A deferred transaction that reads first and writes later fails at once with "database is locked",
        without waiting.
        """
        connection.ensure_connection()
        wrapper: Any = connection
        own_mode = wrapper.transaction_mode
        wrapper.transaction_mode = own_mode or "IMMEDIATE"
        try:
            atomic = transaction.atomic(using=connection.alias)
            atomic.__enter__()
        finally:
            wrapper.transaction_mode = own_mode
        with ExitStack() as stack:
            stack.push(atomic)
            yield

    @contextmanager
    def timed_transaction(self, connection: BaseDatabaseWrapper, lock_timeout_seconds: float | None) -> Iterator[None]:
        """BEGIN IMMEDIATE, with a busy timeout of its own."""
        with ExitStack() as stack:
            if lock_timeout_seconds is not None:
                cursor = stack.enter_context(connection.cursor())
                stack.enter_context(_busy_wait(cursor, lock_timeout_seconds))
            stack.enter_context(self.transaction(connection))
            yield

    @contextmanager
    def _brief_transaction(self, connection: BaseDatabaseWrapper, lock_seconds: float) -> Iterator[None]:
        """A busy timeout of its own: whoever writes is waited for."""
        with connection.cursor() as cursor, _busy_wait(cursor, lock_seconds, at_most=True):
            with transaction.atomic(using=connection.alias):
                yield

    def waited_in_vain(self, error: BaseException) -> bool:
        """SQLITE_BUSY, but not that a snapshot is too old to write."""
        code = getattr(error.__cause__, "sqlite_errorname", "")
        return bool(code.startswith("SQLITE_BUSY")) and code != "SQLITE_BUSY_SNAPSHOT"

    def undone_by(self, connection: BaseDatabaseWrapper, errors: Sequence[BaseException]) -> BaseException | None:
        """A full disk, or an error of it, ends the transaction."""
        session: Any = connection.connection
        return errors[-1] if errors and session is not None and not session.in_transaction else None

    def take_mutex(self, connection: BaseDatabaseWrapper, table: str, key: str, timeout_seconds: float | None) -> bool:
        """The write lock of the whole database, by a write to the key's row."""
        name = connection.ops.quote_name(table)
        with connection.cursor() as cursor, _busy_wait(cursor, timeout_seconds):
            try:
                sql = f"INSERT INTO {name} (lock_key, takes, taken_at) VALUES (%s, 1, {self.now_sql}) "
                sql += f"ON CONFLICT (lock_key) DO UPDATE SET takes = takes + 1, taken_at = {self.now_sql}"
                cursor.execute(sql, [key])
            except OperationalError as error:
                code = getattr(error.__cause__, "sqlite_errorname", "")
                if code == "SQLITE_BUSY_SNAPSHOT":
                    raise stale_snapshot(key) from error
                if not code.startswith("SQLITE_BUSY"):
                    raise
                return False
        return True

    def begin_within(self, connection: BaseDatabaseWrapper, block: Any, timeout_seconds: float) -> bool:
        """There is one write lock, so whoever writes is waited for."""
        with connection.cursor() as cursor, _busy_wait(cursor, timeout_seconds):
            try:
                block.__enter__()
            except OperationalError as error:
                if not getattr(error.__cause__, "sqlite_errorname", "").startswith("SQLITE_BUSY"):
                    raise
                return False
        return True

    def insert_once(
        self, connection: BaseDatabaseWrapper, table: str, key: Any, sql: str, params: Sequence[Any], timeout: float
    ) -> bool | None:
        """Only in a caller's deferred transaction the write lock is still to be had."""
        with connection.cursor() as cursor, _busy_wait(cursor, timeout):
            try:
                cursor.execute(f"{sql} ON CONFLICT (digest) DO NOTHING", params)
            except OperationalError as error:
                code = getattr(error.__cause__, "sqlite_errorname", "")
                if code == "SQLITE_BUSY_SNAPSHOT":
                    raise StaleSnapshot(
                        "once(): this transaction read something before, and somebody has written since, so that it "
                        "cannot write any more. Nothing was written. Roll it back and begin again with once() before "
                        'the first read, or set OPTIONS["transaction_mode"] = "IMMEDIATE".'
                    ) from error
                if not code.startswith("SQLITE_BUSY"):
                    raise
                return None
            return bool(cursor.rowcount == 1)

    oldest = (3, 35, 0)

    def problems(self, connection: BaseDatabaseWrapper) -> Iterator[tuple[str, str, str]]:
        """Version: INSERT ... RETURNING came with 3.35."""
        if tuple(connection.get_database_version()) < self.oldest:
            need = ".".join(map(str, self.oldest))
            yield "E011", f"{self.describe(connection)} is older than {need}.", "Use a Python with a newer SQLite."

    def fault(self, error: BaseException) -> Fault | None:
        """Busy and locked pass; a file that cannot be opened may come back."""
        if isinstance(error, OperationalError):
            text = str(error)
            if "locked" in text or "busy" in text or "is full" in text:
                return Fault.TRANSIENT
            if "unable to open" in text or "disk I/O" in text:
                return Fault.GONE
        return None

    def never_sent(self, error: BaseException) -> bool:
        """There is no wire to lose an answer on."""
        return True


@contextmanager
def _busy_wait(cursor: Any, seconds: float | None, *, at_most: bool = False) -> Iterator[None]:
    """Wait for the write lock for `seconds`, None = as long as the pragma can say; or `at_most` for so long."""
    cursor.execute("PRAGMA busy_timeout")
    (before,) = cursor.fetchone()
    limit = _WAIT_MS_MAX if seconds is None else round(seconds * 1000)
    cursor.execute(f"PRAGMA busy_timeout = {min(limit, before) if at_most else limit}")
    try:
        yield
    finally:
        cursor.execute(f"PRAGMA busy_timeout = {before}")
