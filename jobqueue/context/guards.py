"""Guards for a block of user code: no other commit, no write elsewhere, nothing left open, no error swallowed."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import cache

from django.db import Error, connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.transaction import TransactionManagementError

from jobqueue.db import fault_vendor, vendor
from jobqueue.db.callers_transaction import in_open_transaction
from jobqueue.exceptions import NotSupported, TransactionRequired, WrongDatabase

# Comments may precede the first word. After WITH, the writing statement may be anywhere.
_BEFORE = r"(?:\s|\(|/\*.*?\*/|--[^\n]*\n)*"
_WORD = r"(?:INSERT|UPDATE|DELETE|REPLACE|MERGE|TRUNCATE)\b"
_INSIDE = r"\b(?:(?:INSERT|REPLACE|MERGE)\s+INTO|DELETE\s+FROM|UPDATE\s+\S+(?:\s+(?:AS\s+)?\S+)?\s+SET)\b"
_WRITES = re.compile(rf"{_BEFORE}(?:{_WORD}|WITH\b.*{_INSIDE})", re.IGNORECASE | re.DOTALL)
# Locks, and the heartbeats and progress of the job that runs the block: a retry cannot duplicate them.
_NO_EFFECT = re.compile(
    r"(?:(?:INSERT\s+INTO|UPDATE|DELETE\s+FROM)\s+[\"`]?job_lock(?:_\w+)?|UPDATE\s+[\"`]?job_queue)\b"
    # What deleted locks leave behind, but no counter: models.locks.add_to_floor().
    r"|INSERT\s+INTO\s+[\"`]?job_counter[\"`]?\s+\([^)]*\)\s+VALUES\s+\(''",
    re.IGNORECASE,
)
# Statements that end a transaction on every database, or begin another; savepoints do not.
_ENDS = r"(?:COMMIT|END|ABORT|BEGIN|START\s+TRANSACTION|ROLLBACK(?!\s+(?:WORK\s+)?TO\b)|PREPARE\s+TRANSACTION)\b"


@cache
def _commits(definitions: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile(rf"{_BEFORE}(?:{'|'.join([_ENDS, *definitions])})", re.IGNORECASE | re.DOTALL)


@contextmanager
def refuse_commits(alias: str, who: str) -> Iterator[None]:
    """Raise NotSupported before a statement of this thread on `alias` that would end the transaction.

    Those are COMMIT and the like, and data definitions (CREATE TABLE) where the database cannot roll them back.
    Detected from the SQL text: stored procedures are not covered.
    """
    commits = _commits(fault_vendor(alias).commits_before)

    def refuse(execute: Callable[..., object], sql: str, params: object, many: bool, context: object) -> object:
        if commits.match(str(sql)):
            raise NotSupported(
                f"{' '.join(str(sql).split()[:2])} inside {who} would commit the first half of the block by itself. "
                f"Nothing of the block is kept; run the statement before or after {who}."
            )
        return execute(sql, params, many, context)

    with connections[alias].execute_wrapper(refuse):
        yield


@contextmanager
def refuse_writes_elsewhere(
    alias: str,
    who: str,
    *,
    advice: str = "write there before or after it, with context.fence, or publish an event",
    locks: bool = False,
) -> Iterator[None]:
    """Raise WrongDatabase before a statement of this thread that writes on another alias than `alias` is sent.

    `advice` ends the error's text. `locks`: allow locks and heartbeats. Detected from the SQL text: stored procedures
    and other threads' connections are not covered.
    """
    with ExitStack() as stack:
        for other in connections:
            if other != alias:
                text = (
                    f"{who} commits on {alias!r}; a write to {other!r} cannot be in that commit. "
                    f"Nothing of the block is kept; {advice}."
                )
                stack.enter_context(connections[other].execute_wrapper(_refusing(text, locks)))
        yield


def refuse_transaction_elsewhere(alias: str, who: str) -> None:
    """Raise TransactionRequired if transaction.atomic() is open on another alias, but no transaction on `alias`."""
    if in_open_transaction(alias):
        return
    for connection in connections.all(initialized_only=True):
        if connection.in_atomic_block and connection.alias != alias and in_open_transaction(connection.alias):
            other = connection.alias
            raise TransactionRequired(
                f"{who} writes on {alias!r}, and the open transaction is on {other!r}: it would be committed at once, "
                f"and a rollback there would not undo it. Nothing was written; give using={other!r}, or call it "
                f"outside that transaction, or inside one on {alias!r}."
            )


def _refusing(text: str, locks: bool) -> Callable[..., object]:
    def refuse(execute: Callable[..., object], sql: str, params: object, many: bool, context: object) -> object:
        if _WRITES.match(str(sql)) and not (locks and _NO_EFFECT.match(str(sql))):
            raise WrongDatabase(text)
        return execute(sql, params, many, context)

    return refuse


class LeftOpen(TransactionManagementError):
    """A function returned without ending its transaction; the transaction is rolled back."""


@contextmanager
def close_left_open(using: str) -> Iterator[None]:
    """A block of user code. A transaction that it leaves open in this thread is rolled back, and the connection closed.

    Raises LeftOpen then, unless the block itself raises. Costs no round trip; on MySQL and MariaDB one or two if the
    block ran other statements on `using` than those that read and write rows.
    """
    before = {connection.alias: len(connection.atomic_blocks) for connection in connections.all(initialized_only=True)}
    words: list[str] = []

    def notice(execute: Callable[..., object], sql: object, *rest: object) -> object:
        words.append(str(sql).lstrip()[:12].partition(" ")[0].upper())
        return execute(sql, *rest)

    try:
        with connections[using].execute_wrapper(notice):
            yield
    except BaseException:
        _tidy(before, words)
        raise
    if left := _tidy(before, words):
        raise LeftOpen(
            f"it returned and left a transaction, or locked tables, open on {', '.join(map(repr, left))}. "
            "What it wrote there is undone, and the connection closed. Use transaction.atomic() as a with block."
        )


def _tidy(before: dict[str, int], words: list[str]) -> list[str]:
    """Roll back and close what is open; returns the aliases of those connections."""
    left = []
    for connection in connections.all(initialized_only=True):
        depth = before.get(connection.alias, 0)
        if _is_open(connection, depth, words):
            left.append(connection.alias)
            _undo(connection, depth)
    return left


def _is_open(connection: BaseDatabaseWrapper, depth: int, words: list[str]) -> bool:
    if len(connection.atomic_blocks) > depth:
        return True
    if connection.connection is None or connection.in_atomic_block:
        return False
    if connection.autocommit != connection.settings_dict["AUTOCOMMIT"]:
        return True
    try:
        return fault_vendor(connection.alias).is_left_open(connection, words)
    except Exception:
        # The session cannot be used any more.
        return True


def _undo(connection: BaseDatabaseWrapper, depth: int) -> None:
    error = LeftOpen("undone")
    while len(connection.atomic_blocks) > depth:
        with suppress(Exception):
            connection.atomic_blocks[-1].__exit__(LeftOpen, error, None)
    if depth:
        return
    with suppress(Exception):
        connection.close()
    if connection.connection is not None or connection.in_atomic_block:
        del connections[connection.alias]


@contextmanager
def raise_swallowed_errors(using: str) -> Iterator[None]:
    """A block inside a transaction: raises at its end an error that it swallowed and that rolled the transaction back.

    Without it the end would look like a commit: a transaction that Django has marked for a rollback, or that the server
    has given up, ends without an error. set_rollback(True) without an error stays as it is: the caller wants that.
    """
    connection, errors = connections[using], list[Error]()

    def watch(execute: Callable[..., object], *statement: object) -> object:
        try:
            return execute(*statement)
        except Error as error:
            errors.append(error)
            raise

    with connection.execute_wrapper(watch):
        yield
    cause = vendor(using).locks.rollback_cause(connection, errors)
    if cause is None and errors and transaction.get_rollback(using=using):
        cause = errors[-1]
    if cause is not None:
        cause.add_note(
            "This was caught, but it has undone the whole transaction: nothing is stored. "
            "Put what may fail into a transaction.atomic() of its own."
        )
        raise cause
