"""Wakes idle workers when a job is committed, so that they look at the queue at once instead of at their next poll.

A wake-up is only a hint. It may be lost, duplicated or forged; the cost is one extra look at the queue, or the delay of
the next poll. It is sent after the commit and never inside the caller's transaction, where a NOTIFY would hold a
server-wide lock until the commit is on disk and could make that commit fail. Any process may send; the monitor process
of a worker subscribes.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import cache

from django.db import connections

from jobqueue.conf import load
from jobqueue.db import fault_vendor
from jobqueue.wakeup.notifiers import Notifier, PostgresNotifier, RedisNotifier

__all__ = ["QUIET_SECONDS", "Notifier", "notifier_of", "notify", "on_notify"]

#: A process sends at most one wake-up per queue in this time. Workers look again when it is over.
QUIET_SECONDS = 0.02
_QUEUES_MAX = 10_000

_notified_at: dict[tuple[str, str], float] = {}
_callback: Callable[[str, str], None] | None = None


def notify(queue: str, using: str) -> None:
    """Wake workers of `queue` when the transaction on `using` commits; immediately in autocommit mode. Never raises.

    Sends nothing after a rollback, nor where Django does not see the commit (autocommit turned off by hand).
    """
    notifier = notifier_of(using)
    if notifier is None and _callback is None:
        return

    def send() -> None:
        if _callback is not None:
            _callback(queue, using)
        if notifier is not None and not _just_notified(queue, using):
            notifier.notify(queue)

    connection = connections[using]
    if connection.in_atomic_block or connection.get_autocommit():
        connection.on_commit(send, robust=True)


def on_notify(callback: Callable[[str, str], None]) -> None:
    """Call callback(queue, using) for every wake-up that this process sends, also where no notifier is configured."""
    global _callback
    _callback = callback


def notifier_of(using: str) -> Notifier | None:
    """The notifier that JOBQUEUE["WAKEUP"] selects for the queue on `using`; None: workers only poll."""
    chosen = load().wakeup
    if chosen == "off":
        return None
    return _notifier_of_database(using) if chosen == "auto" else RedisNotifier.at(chosen)


@cache
def _notifier_of_database(using: str) -> Notifier | None:
    return PostgresNotifier(using) if fault_vendor(using).notifies else None


def _just_notified(queue: str, using: str) -> bool:
    now = time.monotonic()
    if now - _notified_at.get((using, queue), -QUIET_SECONDS) < QUIET_SECONDS:
        return True
    if len(_notified_at) >= _QUEUES_MAX:
        _notified_at.clear()
    _notified_at[using, queue] = now
    return False
