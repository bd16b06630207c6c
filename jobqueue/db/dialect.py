"""What the product asks of a database: types, clock, capabilities, faults, sessions, settings. Subclasses answer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from enum import StrEnum
from typing import Any, NamedTuple, TypeAlias

from django.db import transaction
from django.db.backends.base.base import BaseDatabaseWrapper

from jobqueue.db.diagnostics import Diagnostics
from jobqueue.db.locks import LockDialect
from jobqueue.db.statements import Parameter, Statements, one_value
from jobqueue.exceptions import NotSupported
from jobqueue.failures import FailureCause


class ErrorKind(StrEnum):
    """Why the database refused a transaction that may be redone."""

    DEADLOCK = "deadlock"
    LOCK_TIMEOUT = "lock_timeout"  # another transaction has kept a lock for too long
    SERIALIZATION = "serialization"  # what it read has changed, or a cluster refused its commit
    BUSY = "busy"  # SQLite: another connection writes
    CANCELED = "canceled"  # a limit of the statement's time, or an operator
    NO_ROOM = "no_room"  # on disk, in memory, or for locks
    NO_CONNECTION = "no_connection"  # the server, the account or a pool has none left
    LOST_CONNECTION = "lost_connection"


#: there is no usable connection: close it, connect again, then redo if that is safe; after others redo the transaction
GONE_KINDS = (ErrorKind.LOST_CONNECTION, ErrorKind.NO_CONNECTION)


#: an error of the driver, and what does to the session what the server does to it then; None: nothing
Simulated: TypeAlias = tuple[BaseException, Callable[[], object] | None]


class Problem(NamedTuple):
    """Something wrong with a server, a session or a table, as a system check reports it."""

    code: str
    text: str
    hint: str


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


class SettingRule(NamedTuple):
    """What a setting of the server should be; `id` is that of the doctor's finding if it is not."""

    name: str
    is_right: Callable[[str], bool]
    id: str
    text: str
    fix: str


#: the text of a rule
LOST_WRITES = "a job whose enqueue was committed, or the end of one, can be lost in a power cut."


class TableIndex(NamedTuple):
    """An index that the server uses. `name` is "" where a constraint has made it, and the server has renamed it."""

    table: str
    name: str
    columns: tuple[str, ...]


def fail_on_purpose(connection: Any, statement: str) -> None:
    """Run a statement that fails, without Django noticing."""
    with suppress(connection.Database.Error):
        connection.connection.cursor().execute(statement)


class Dialect(Statements):
    """The answers for a database that we know nothing about; each subclass is one database."""

    name = "unsupported"
    supported = False
    #: the oldest version that works, and how to get a newer one
    oldest: tuple[int, ...] = ()
    upgrade = "Upgrade the server."
    #: how workers claim: for the banner of a worker, and in words for the checks
    claim_strategy = "conditional-update"
    claim_form = "an UPDATE whose row count shows whether the job was free"

    #: the page on its settings
    page = "docs/howto/production.md"
    #: options of the driver that limit how long it waits for an answer: without them, a thread whose connection is lost
    #: waits for ever
    timeout_options: tuple[str, ...] = ()
    #: for the values of settings()
    rules: tuple[SettingRule, ...] = ()
    #: the setting after whose seconds the server ends a session that idles; "" = it ends none
    idle_setting = ""

    # The other parts of what is asked of a database.
    locks = LockDialect()
    diagnostics = Diagnostics()

    # ---- capabilities
    #: whether a second writer of the same process would only wait
    single_writer = False
    #: the driver's option for the most seconds that opening a connection may take; None: there is no server
    opening_option: str | None = None
    #: an UPDATE can lock rows, write them and return them, so that a claim is one statement
    has_update_returning = False
    #: sessions can send messages to each other (NOTIFY)
    notifies = False
    #: an UPDATE of an indexed column adds an entry to every index, and every search for the row reads the old ones too
    copies_updated_rows = False
    #: an index keeps rows that are equal in its columns in the order of their primary key
    indexes_end_with_key = True

    # ---- types and the clock
    column_types: dict[str, str] = {}
    #: instants are kept without a zone, and mean UTC
    stores_utc_naive = True
    #: the server's time in UTC at the start of the statement; %% because parameters are always passed
    now_sql = "CURRENT_TIMESTAMP"
    #: the same plus "%(expressions)s" seconds
    now_plus_sql = ""
    #: an instant for a list of selected columns: as text, or microseconds since 1970, where the driver parses slowly
    selected_instant_sql = "%(expressions)s"
    #: "%(instant)s" bounded to the years of Python's datetime, where columns can hold others; None: as it is
    bounded_instant_sql: str | None = None

    def binary_collation(self, connection: BaseDatabaseWrapper) -> str | None:
        """The collation for names: byte for byte, and without padding where the server has one like that."""
        return None

    def json_parameter(self, connection: BaseDatabaseWrapper, text: str) -> Parameter:
        """What the driver takes for a JSON column, from JSON text."""
        return text

    def text_parameter(self, connection: BaseDatabaseWrapper, text: str) -> Parameter:
        """What a statement takes at placeholder() for a name or other text."""
        return text

    def binary_parameter(self, connection: BaseDatabaseWrapper, value: bytes) -> Parameter:
        """What a statement takes at placeholder() for a binary column."""
        return connection.Database.Binary(value)  # type: ignore[attr-defined]

    def max_statement_bytes(self, connection: BaseDatabaseWrapper) -> int | None:
        """The longest statement that the server takes in this session; None: no such limit."""
        return None

    def statement_bytes(self, text: str) -> int:
        """How many bytes of a statement `text` takes as a parameter."""
        return len(text.encode())

    @contextmanager
    def transaction(self, connection: BaseDatabaseWrapper) -> Iterator[None]:
        """A transaction of ours that reads and then writes; a savepoint inside a caller's transaction."""
        with transaction.atomic(using=connection.alias):
            yield

    @contextmanager
    def limited_transaction(self, connection: BaseDatabaseWrapper, seconds: float) -> Iterator[None]:
        """transaction(), which the server rolls back if the session idles in it for `seconds`, where it can do that.

        For one transaction on a session whose others may take longer; see limit_idle_transactions().
        """
        with self.transaction(connection):
            yield

    def next_id(self, connection: BaseDatabaseWrapper, table: str) -> int:
        """The lowest id that the next row can get."""
        return int(one_value(connection, f"SELECT MAX(id) FROM {connection.ops.quote_name(table)}") or 0) + 1

    # ---- faults
    def error_kind(self, error: BaseException) -> ErrorKind | None:
        """Which of the errors that pass `error` is; None: none of them, raise it again."""
        return None

    def never_sent(self, error: BaseException) -> bool:
        """Whether the statement that raised one of GONE_KINDS surely wrote nothing: it was not sent, or was refused."""
        return False

    def error_code(self, error: BaseException) -> str:
        """The database's own code of an error, for counters and logs."""
        return type(error).__name__

    def is_missing_table(self, error: BaseException) -> bool:
        """Whether `error` says that a table does not exist."""
        return False

    #: words of a driver's error without a code which say that there is no connection, or no lock, left
    refusals: tuple[str, ...] = ()

    def cause(self, error: BaseException) -> FailureCause | None:
        """Why an attempt of a job failed, by the code of an error of this database or of its drivers.

        None: it has no such code, or the code does not tell. Errors of jobs may be of other databases than the queue's.
        """
        return None

    def simulated(self, connection: BaseDatabaseWrapper, kind: ErrorKind) -> Simulated:
        """A DEADLOCK, a LOCK_TIMEOUT or a LOST_CONNECTION, for jobqueue.testing."""
        raise self._cannot_simulate()

    def later_sql(self, sql: str, seconds: float) -> str:
        """A statement in which now_sql is so much later, for jobqueue.testing; not the defaults of columns."""
        raise self._cannot_simulate()

    def _cannot_simulate(self) -> NotSupported:
        return NotSupported(f"jobqueue.testing cannot simulate {self.name}; use a supported database.")

    # ---- the session and the server
    def in_transaction(self, connection: BaseDatabaseWrapper, *, begun: bool = False) -> bool:
        """Whether the session has a transaction open, or, unless `begun`, would open one. Any error may be raised."""
        return False

    def is_left_open(self, connection: BaseDatabaseWrapper, words: Sequence[str]) -> bool:
        """Whether the session has a transaction, or tables locked, that Django does not know of.

        `words`: the first one of each statement that it ran, as "SELECT". Any error may be raised.
        """
        return self.in_transaction(connection)

    def reset_session(self, connection: BaseDatabaseWrapper) -> bool:
        """Undo all that was set, locked or made in the session; False: not possible. After an error, close it."""
        return False

    def limit_idle_transactions(self, connection: BaseDatabaseWrapper, seconds: float) -> None:
        """Have the server end this session if a transaction idles for so long. By default, and in pools, no limit."""

    @contextmanager
    def limit_reads(self, connection: BaseDatabaseWrapper, seconds: float) -> Iterator[None]:
        """A block whose SELECTs are stopped after `seconds` each; their error is_stopped(). By default no limit."""
        yield

    @contextmanager
    def limit_waits(self, connection: BaseDatabaseWrapper, seconds: float) -> Iterator[None]:
        """A block whose statements wait for a lock for `seconds` at most, unless a pooler could change the session."""
        yield

    def waited_too_long(self, error: BaseException) -> bool:
        """Whether `error` says that others have kept a lock for too long, or that a statement was stopped."""
        return self.error_kind(error) in (ErrorKind.LOCK_TIMEOUT, ErrorKind.BUSY) or self.is_stopped(error)

    def is_stopped(self, error: BaseException) -> bool:
        """Whether `error` says that a statement was stopped, by a limit of time or by an operator."""
        return self.error_kind(error) is ErrorKind.CANCELED

    def is_pooled(self, connection: BaseDatabaseWrapper) -> bool:
        """Whether a pooler stands between driver and server, and may change the session between transactions."""
        return False

    def notify(self, connection: BaseDatabaseWrapper, channel: str, text: str) -> None:
        """Send `text` to every session that listens to `channel`, when the transaction commits. Needs `notifies`."""
        raise NotImplementedError

    def listen(self, connection: BaseDatabaseWrapper, channel: str) -> None:
        """Subscribe this session to `channel`. Needs `notifies`."""
        raise NotImplementedError

    def notifications(self, connection: BaseDatabaseWrapper, seconds: float) -> list[str]:
        """What was received since the last call; waits up to `seconds` for something. Needs `notifies`."""
        raise NotImplementedError

    def isolation(self, connection: BaseDatabaseWrapper) -> str:
        """The isolation level of the session, in the server's words."""
        return "serializable"

    def write_refusal(self, connection: BaseDatabaseWrapper) -> str:
        """The setting for which the server refuses the writes of this session; "" if it accepts them."""
        return ""

    def problems(self, connection: BaseDatabaseWrapper, table: str) -> Iterator[Problem]:
        """What is wrong with the server, the session or `table` for a queue; here that it is too old."""
        if tuple(connection.get_database_version()) < self.oldest:
            need = ".".join(map(str, self.oldest))
            yield Problem("E011", f"{self.describe(connection)} is older than {need}.", self.upgrade)

    def requirement(self) -> str:
        """The name and the oldest version: MySQL 8.0.17+."""
        return f"{self.name} {'.'.join(map(str, self.oldest))}+"

    def describe(self, connection: BaseDatabaseWrapper) -> str:
        version = ".".join(str(part) for part in connection.get_database_version())
        return f"{self.name} {version}"

    def options_problems(self, alias: str, options: Mapping[str, Any], file: str) -> Iterator[Problem]:
        """What is wrong with the OPTIONS and the NAME of an entry of DATABASES, which is not connected to."""
        return iter(())

    # ---- the set-up; NotSupported, with a sentence for people, where the account has no right to ask
    def plan(self, connection: BaseDatabaseWrapper, table: str, sql: str, params: Sequence[Parameter]) -> Plan | None:
        """The plan of a SELECT on `table`, which is not run. None: it cannot be read here."""
        return None

    def indexes(self, connection: BaseDatabaseWrapper, tables: Sequence[str]) -> list[TableIndex]:
        """The indexes of these tables; not those that are invalid or hidden from the planner. A single statement."""
        return []

    def grants(self, connection: BaseDatabaseWrapper, account: str, rights: str, tables: Sequence[str]) -> list[str]:
        """The statements that give `account` these rights on tables; empty where there are no accounts."""
        return []

    def end_session_sql(self, session: int) -> str:
        """The statement for an operator who ends another session."""
        return ""

    def analyze_sql(self, table: str) -> str:
        """The statement that renews the statistics of the planner."""
        return f"ANALYZE {table}"

    def session_use(self, connection: BaseDatabaseWrapper) -> SessionUse | None:
        """None: the number of sessions has no limit, or a pooler hides it."""
        return None

    def default_isolation(self, connection: BaseDatabaseWrapper) -> str | None:
        """The level of sessions that set none, in lower case. None: there is only one level."""
        return None

    def zone_seconds(self, connection: BaseDatabaseWrapper) -> float | None:
        """How far NOW() of this session is ahead of UTC. None: instants have a zone, or there is none."""
        return None

    def settings(self, connection: BaseDatabaseWrapper) -> dict[str, str]:
        """The settings that matter for a queue, by the server's names, as this session has them."""
        return {}
