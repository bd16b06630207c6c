"""Transactions that the database refused: what is redone, and what is given up, reported to observers.

Nothing is counted or written here: an observer adds to numbers in memory, also between two tries of a transaction.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple, TypeAlias, get_args

from jobqueue.db.dialect import ErrorKind

#: what the transaction was for; docs/reference/commands.md says what each one covers
Verb: TypeAlias = Literal[
    "enqueue", "claim", "heartbeat", "progress", "ack", "fail", "snooze", "release", "settle", "cancel", "discard",
    "retry", "note", "resume", "pause", "limit", "breaker", "reap", "promote", "notify", "relay", "lock", "take",
    "once", "counter", "bulk", "result", "retry_transaction", "check", "housekeeping", "schedule",
    "job",
]  # fmt: skip
VERBS: tuple[Verb, ...] = get_args(Verb)


class Refusal(NamedTuple):
    """One try of a transaction that the database refused."""

    verb: Verb
    kind: ErrorKind
    redone: bool  # False: the caller gets the error


Observer: TypeAlias = Callable[[Refusal], None]
_observers: list[Observer] = []


def observe(observer: Observer) -> None:
    """Call `observer` with each refusal in this process and its forks. It must not use the database, nor raise."""
    if observer not in _observers:
        _observers.append(observer)


def report(refusal: Refusal) -> None:
    """Tell all observers."""
    for observer in _observers:
        observer(refusal)
