"""What the product asks a server about its locks: who holds them, who waits, deadlocks, slow statements."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from django.db.backends.base.base import BaseDatabaseWrapper

from jobqueue.db.lock_facts import Deadlock, HeldLocks, LockWait, RowHolder, SlowStatement
from jobqueue.db.lock_facts import marked as _
from jobqueue.exceptions import NotSupported


class Diagnostics:
    """The answers for a database that we know nothing about; each subclass is one database.

    A method raises NotSupported, with a sentence for people, where the server does not report what it asks for.
    """

    name = "this database"
    #: whether there is anything to ask for
    available = False
    refusal = _(
        "This database does not tell who waits for whom: on SQLite a writer waits for the whole file. "
        "The statistics of your own locks are complete."
    )
    #: what held() cannot know here, for people
    held_unseen = ""

    def held(self, connection: BaseDatabaseWrapper) -> HeldLocks:
        """The locks that this session's transaction holds."""
        raise NotSupported(
            f"{self.name} has no row locks to show: a transaction that writes locks the whole database. "
            "Nothing was changed; look at locks on the database that you use in production."
        )

    def waits(self, connection: BaseDatabaseWrapper, limit: int = 20) -> list[LockWait]:
        """Up to `limit` waits for locks that go on now, the longest first."""
        raise NotSupported(self.refusal)

    def may_lock(self, connection: BaseDatabaseWrapper, session: int, table: str) -> bool:
        """Whether a session may have locked rows of `table`: False only if the server says that it has not."""
        return True

    def row_holders(
        self, connection: BaseDatabaseWrapper, rows: Mapping[str, tuple[str, Sequence[int | str]]], seconds: float
    ) -> list[RowHolder]:
        """The sessions that hold locks on some of these rows in transactions older than `seconds`, the oldest first.

        `rows` maps a table to the first column of its primary key and values of it. [] if the server does not tell.
        """
        return []

    def table_holders(self, connection: BaseDatabaseWrapper, tables: Sequence[str]) -> list[RowHolder]:
        """The sessions that have locked one of these whole tables against readers. [] if the server does not tell."""
        return []

    def deadlocks(self, connection: BaseDatabaseWrapper) -> int:
        """How many deadlocks the server has ended since it began to count."""
        raise NotSupported(self.refusal)

    def latest_deadlock(self, connection: BaseDatabaseWrapper) -> Deadlock | None:
        """The report of the newest one, where the server keeps it."""
        raise NotSupported(self.refusal)

    def deadlock_in(self, error: BaseException) -> Deadlock | None:
        """The report in an error that this process received; None where the server keeps it, or it was no deadlock."""
        return None

    def slow_statements(self, connection: BaseDatabaseWrapper, limit: int = 10) -> list[SlowStatement]:
        """Up to `limit` kinds of statements of this database by their time spent waiting for locks."""
        raise NotSupported(self.refusal)
