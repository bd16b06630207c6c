"""Refuse what another database would commit by itself while one commit is to hold all that a block does."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from django.db import connections

from jobqueue.db.open_transaction import in_open_transaction
from jobqueue.exceptions import TransactionRequired, WrongDatabase

# Comments may come before the first word; after WITH the statement that writes may be anywhere.
_BEFORE = r"(?:\s|\(|/\*.*?\*/|--[^\n]*\n)*"
_WORD = r"(?:INSERT|UPDATE|DELETE|REPLACE|MERGE|TRUNCATE)\b"
_INSIDE = r"\b(?:(?:INSERT|REPLACE|MERGE)\s+INTO|DELETE\s+FROM|UPDATE\s+\S+(?:\s+(?:AS\s+)?\S+)?\s+SET)\b"
_WRITES = re.compile(rf"{_BEFORE}(?:{_WORD}|WITH\b.*{_INSIDE})", re.IGNORECASE | re.DOTALL)
# Locks, and the heartbeats and progress of the job that the block runs in: nothing that a repeat could double.
_NO_EFFECT = re.compile(
    r"(?:(?:INSERT\s+INTO|UPDATE|DELETE\s+FROM)\s+[\"`]?job_lock(?:_\w+)?|UPDATE\s+[\"`]?job_queue)\b", re.IGNORECASE
)


@contextmanager
def refuse_writes_elsewhere(
    alias: str,
    who: str,
    *,
    advice: str = "write there before or after it, with context.fence, or publish an event",
    locks: bool = False,
) -> Iterator[None]:
    """Raise WrongDatabase before a statement of this thread that writes on another alias than `alias` is sent.

    `advice` ends its text; with `locks`, locks and heartbeats are let through. Known by its words: a function or
    procedure that writes is not seen, nor a connection of others.
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


def _refusing(text: str, locks: bool) -> Callable[..., Any]:
    def refuse(execute: Callable[..., Any], sql: str, params: Any, many: bool, context: Any) -> Any:
        if _WRITES.match(str(sql)) and not (locks and _NO_EFFECT.match(str(sql))):
            raise WrongDatabase(text)
        return execute(sql, params, many, context)

    return refuse
