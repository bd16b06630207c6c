"""Tell idle workers that a job was committed, so that they look at once instead of at their next poll.

A ring is a hint and nothing more: it may be lost, doubled or forged, and costs at most a look at the queue or the wait
that there would be without it. Rings are sent after the commit, never inside the caller's transaction: there a NOTIFY
would hold a lock of the whole server until the commit is on the disk, and could make that commit fail.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from django.db import connections

from jobqueue.conf import load
from jobqueue.db import fault_vendor
from jobqueue.wakeup.base import Bell
from jobqueue.wakeup.postgres import NotifyBell
from jobqueue.wakeup.redis import RedisBell

__all__ = ["QUIET_SECONDS", "Bell", "answer", "bell_of", "ring"]

#: a process rings once in this time for one queue; workers look a second time after it, for what came meanwhile
QUIET_SECONDS = 0.02
_QUEUES_MAX = 10_000

_rung: dict[tuple[str, str], float] = {}
_answer: Callable[[str, str], None] | None = None


def ring(queue: str, using: str) -> None:
    """When the transaction on `using` commits: wake workers of `queue`. Not when it rolls back. Never raises.

    At once in autocommit mode; not at all where Django does not see the commit (autocommit turned off by hand).
    """
    bell = bell_of(using)
    if bell is None and _answer is None:
        return

    def ring_now() -> None:
        if _answer is not None:
            _answer(queue, using)
        if bell is not None and not _rang_just_now(queue, using):
            bell.ring(queue)

    connection = connections[using]
    if connection.in_atomic_block or connection.get_autocommit():
        connection.on_commit(ring_now, robust=True)


def answer(hear: Callable[[str, str], None]) -> None:
    """From now on call hear(queue, using) for every ring of this process: it needs no messenger."""
    global _answer
    _answer = hear


def bell_of(using: str) -> Bell | None:
    """The messenger that JOBQUEUE["DOORBELL"] chose for the queue on `using`; None = workers only poll."""
    chosen = load().doorbell
    if chosen == "off":
        return None
    if chosen == "auto":
        return NotifyBell(using) if fault_vendor(using).notifies else None
    return RedisBell.at(chosen)


def _rang_just_now(queue: str, using: str) -> bool:
    now = time.monotonic()
    if now - _rung.get((using, queue), -QUIET_SECONDS) < QUIET_SECONDS:
        return True
    if len(_rung) >= _QUEUES_MAX:
        _rung.clear()
    _rung[using, queue] = now
    return False
