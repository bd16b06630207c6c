"""Locks on the rows of gates: those that others have locked are left alone, and nobody waits for them.

A claim is a transaction of several statements. Of a process that is frozen within one (SIGSTOP, a paused machine) the
locks stay, and one that was frozen while it waited for a lock gets it and keeps it: all who wait would stop with it.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from django.db import connections
from django.db.models import QuerySet

from jobqueue.db import vendor
from jobqueue.db.clock import Selected, UtcNow, read_now
from jobqueue.db.retry import Verb, retry_transient
from jobqueue.models import Gate

#: between the tries to lock what others have locked: a claim that is not frozen has it for a few milliseconds
PAUSES_SECONDS = (0.005, 0.01, 0.02, 0.04)
#: after so long the time of the database is read again
_WAITED_SECONDS = 0.005


def tries(pauses: Sequence[float] = PAUSES_SECONDS) -> Iterator[None]:
    """One for each try to lock something, with pauses between them."""
    yield
    for pause in pauses:
        time.sleep(pause)
        yield


def lock_gates(reasons: Mapping[int, str], using: str, *, make: bool = True) -> dict[int, Any]:
    """The gates of these subjects, locked until the open transaction ends; made with this wait_reason if need be.

    Those that others keep locked are not among them, nor, without `make`, those that are not there. Each has the
    database's time as `now`, which was read after `read_at` (monotonic).
    """
    rows = vendor(using).lock_rows(Gate.objects.using(using).filter(pk__in=sorted(reasons)).order_by("pk"))
    found: dict[int, Any] = {}
    for _ in tries():
        found |= _read(rows)
        if make and (new := _unmade(sorted(reasons.keys() - found.keys()), using)):
            made = [Gate(subject=subject, wait_reason=reasons[subject]) for subject in new]
            vendor(using).insert_missing(connections[using], made)
            found |= _read(rows)
        if len(found) == len(reasons):
            break
    return found


def make_gate(subject: int, wait_reason: str, using: str) -> None:
    """Make the gate if it is not there, and commit: in a claim's transaction, other claims could wait for the row."""

    def make() -> None:
        if _unmade([subject], using):
            vendor(using).insert_missing(connections[using], [Gate(subject=subject, wait_reason=wait_reason)])

    retry_transient("claim", make, using=using)


def _read(rows: QuerySet[Gate]) -> dict[int, Any]:
    read_at, found = time.monotonic(), dict[int, Any]()
    for row in rows.annotate(now=Selected(UtcNow())):
        row.read_at = read_at  # type: ignore[attr-defined]
        found[row.pk] = row
    return found


def _unmade(subjects: Collection[int], using: str) -> list[int]:
    """Those of these subjects that have no gate, and that nobody makes just now as far as the database tells."""
    if not subjects:
        return []
    made = set(Gate.objects.using(using).filter(pk__in=subjects).values_list("pk", flat=True))
    missing = [subject for subject in subjects if subject not in made]
    busy = vendor(using).locks.being_inserted(connections[using], Gate, ("subject",), [(one,) for one in missing])
    return [subject for subject in missing if (subject,) not in busy]


def unlocked_of(subjects: Collection[int], using: str) -> set[int]:
    """Those of these subjects whose gate can be written without a wait; it is locked if it exists."""
    rows = vendor(using).lock_rows(Gate.objects.using(using).filter(pk__in=sorted(subjects)).order_by("pk"))
    found: set[int] = set()
    for _ in tries():
        found |= set(rows.values_list("pk", flat=True))
        found |= {*_unmade(sorted(set(subjects) - found), using)}
        if len(found) == len(subjects):
            break
    return found


def free_of(subjects: Collection[int], using: str) -> set[int]:
    """Those of these subjects whose gates no other transaction has locked at this moment."""
    rows = vendor(using).lock_rows(Gate.objects.using(using).filter(pk__in=sorted(subjects)).order_by("pk"))

    def look() -> set[int]:
        with vendor(using).transaction(connections[using]):
            return set(rows.values_list("pk", flat=True))

    return retry_transient("promote", look, using=using) if subjects else set()


def time_of(gate: Any, using: str) -> Any:
    """The time at which the tokens of a locked gate are drawn: now, if it was read a while ago.

    Dated as it was read, the tokens would be there again while the jobs that have drawn them start: too close together.
    """
    return gate.now if time.monotonic() - gate.read_at <= _WAITED_SECONDS else read_now(using)


def read_all(rows: QuerySet[Any], using: str) -> list[Any]:
    """Read these rows, again after a deadlock or a lost connection."""
    return retry_transient("promote", partial(list, rows), using=using)


def update_unlocked(rows: QuerySet[Any], using: str, verb: Verb = "promote", /, **changes: object) -> int:
    """Update those of `rows` that no other transaction has locked; how many. A claim that has one writes what it knows.

    In a transaction of its own, or in the open one.
    """

    def write() -> int:
        with vendor(using).transaction(connections[using]):
            free = vendor(using).lock_rows(rows.order_by("pk"))
            ids = list(free.values_list("pk", flat=True))
            return rows.model._base_manager.using(using).filter(pk__in=ids).update(**changes) if ids else 0

    return retry_transient(verb, write, using=using)
