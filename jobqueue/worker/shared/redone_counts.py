"""Redone transactions in the shared memory of a worker: one number for each verb, kind of error and outcome.

The process that redoes a transaction adds to its own numbers at once, without the database. The process that is
started in its place goes on with them.
"""

from __future__ import annotations

import ctypes
from collections import Counter
from collections.abc import Iterable
from threading import RLock
from typing import NamedTuple

from jobqueue.db.dialect import ErrorKind
from jobqueue.db.redone import VERBS, Refusal, Verb

_IDS = [Refusal(verb, kind, redone) for verb in VERBS for kind in ErrorKind for redone in (True, False)]
_INDEX = {refusal: index for index, refusal in enumerate(_IDS)}
#: the numbers of one process
Numbers = ctypes.c_int64 * len(_IDS)


class RedoneCounts:
    """The numbers of one process; Refusal is both the event and the name of its number."""

    def __init__(self, numbers: ctypes.Array[ctypes.c_int64]) -> None:
        self._numbers = numbers
        # Threads of one process; reentrant, because a signal handler may count while this thread does.
        self._lock = RLock()

    def add(self, refusal: Refusal) -> None:
        """Count one. Observes jobqueue.db.redone."""
        with self._lock:
            self._numbers[_INDEX[refusal]] += 1

    def counter(self) -> Counter[Refusal]:
        """The numbers that are not 0."""
        return Counter({refusal: number for refusal, number in zip(_IDS, self._numbers, strict=True) if number})


class RedoneTotal(NamedTuple):
    """Transactions of one verb that one kind of error ended, in all processes of a worker."""

    verb: Verb
    kind: ErrorKind
    redone: int
    given_up: int


def totals(processes: Iterable[RedoneCounts]) -> list[RedoneTotal]:
    """The sums over `processes`, without those that are 0."""
    found: Counter[Refusal] = sum((each.counter() for each in processes), Counter())
    return [
        RedoneTotal(verb, kind, found[Refusal(verb, kind, True)], found[Refusal(verb, kind, False)])
        for verb, kind in dict.fromkeys((refusal.verb, refusal.kind) for refusal in found)
    ]
