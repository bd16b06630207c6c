"""Guards for a block that one commit must hold: they refuse other commits, and writes to other databases."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache

from django.db import connections

from jobqueue.db import fault_vendor
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
