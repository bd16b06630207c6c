"""What the product asks a server about its set-up: plans, sessions, defaults, settings, old transactions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from django.db.backends.base.base import BaseDatabaseWrapper

from jobqueue.db.parameters import Parameter


class Plan(NamedTuple):
    """How the server would run a statement."""

    text: str  # in the server's words, a step per line
    scans: bool  # a step reads a whole table
    sorts: bool  # a step sorts, or keeps its rows in a temporary table
    is_small: bool = False  # the server may prefer to read and sort rows, of which there are few

    def uses(self, index: str) -> bool:
        """Whether a step goes by this index."""
        return index.lower() in self.text.lower()


class SessionUse(NamedTuple):
    """How many sessions the server lets this account have, and how many of all accounts are open now."""

    limit: int
    used: int


class OldTransaction(NamedTuple):
    """A transaction of another session that has been open for long."""

    session: int
    seconds: float
    idles: bool  # its session runs no statement
    locks: bool  # it has locked rows; on PostgreSQL, of the table that was asked for


class DeadRows(NamedTuple):
    """Rows of a table, as the server estimates them."""

    dead: int
    live: int


class TableIndex(NamedTuple):
    """An index that the server uses. `name` is "" where a constraint has made it, and the server has renamed it."""

    table: str
    name: str
    columns: tuple[str, ...]


class SetUp:
    """The answers for a database that has no server; each subclass is one database.

    A method raises NotSupported, with a sentence for people, where the account has no right to ask.
    """

    def plan(self, connection: BaseDatabaseWrapper, table: str, sql: str, params: Sequence[Parameter]) -> Plan | None:
        """The plan of a SELECT on `table`, which is not run. None: it cannot be read here."""
        return None

    def indexes(self, connection: BaseDatabaseWrapper, tables: Sequence[str]) -> list[TableIndex]:
        """The indexes of these tables; not those that are invalid or hidden from the planner. A single statement."""
        return []

    def grants(self, connection: BaseDatabaseWrapper, account: str, rights: str, tables: Sequence[str]) -> list[str]:
        """The statements that give `account` these rights on tables; empty where there are no accounts."""
        return []

    def session_use(self, connection: BaseDatabaseWrapper) -> SessionUse | None:
        """None: the number of sessions has no limit, or a pooler hides it."""
        return None

    def default_isolation(self, connection: BaseDatabaseWrapper) -> str | None:
        """The level of sessions that set none, in lower case. None: there is only one level."""
        return None

    def zone_seconds(self, connection: BaseDatabaseWrapper) -> float | None:
        """How far NOW() of this session is ahead of UTC. None: instants have a zone, or there is none."""
        return None

    def values(self, connection: BaseDatabaseWrapper) -> dict[str, str]:
        """The settings that matter for a queue, by the server's names, as this session has them."""
        return {}

    def old_transactions(
        self, connection: BaseDatabaseWrapper, table: str, seconds: float, limit: int
    ) -> list[OldTransaction]:
        """Up to `limit` transactions of other sessions that are open for longer, the oldest first.

        `table`: whether it has locks there is told on PostgreSQL; other servers do not know the table.
        """
        return []

    def dead_rows(self, connection: BaseDatabaseWrapper, table: str) -> DeadRows | None:
        """None: the server removes dead rows by itself, or has none."""
        return None
