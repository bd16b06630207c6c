"""Reads the server's locks at intervals and keeps findings for people: long waits, deadlocks, slow statements.

One worker of all does this per interval: the one that gets the lease lock TURN, which is left to expire.
"""

from __future__ import annotations

import hashlib
import logging
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, field

from django.db import connections

from jobqueue.conf import Settings
from jobqueue.db import vendor
from jobqueue.db.diagnostics import Diagnostics
from jobqueue.exceptions import NotSupported
from jobqueue.locks.lease import takes_turn
from jobqueue.lockstats.recorder import Finding, deadlock_finding, keep_findings
from jobqueue.models import LockFinding

logger = logging.getLogger("jobqueue.locks")

#: the interval of the reads
INTERVAL_SECONDS = 15.0
TURN, TURN_SECONDS = "jobqueue: lock watch", 0.75 * INTERVAL_SECONDS
#: shorter waits are not kept
WAIT_SECONDS = 1.0
#: statements that have waited for less in all their runs are not kept
SLOW_SECONDS = 1.0
KEPT_MAX = 20


@dataclass(slots=True)
class _Memory:
    """The last reads of this process."""

    deadlocks: int | None = None
    lock_seconds: dict[str, float] = field(default_factory=dict)
    logged: set[str] = field(default_factory=set)


_memories: dict[str, _Memory] = {}


def run_once(settings: Settings, *, using: str) -> Counter[str]:
    """Read once if it is this process's turn; returns how many findings are new.

    It costs two statements on job_lock and three on the server's tables.
    """
    diagnostics = vendor(using).diagnostics
    if settings.lock_metrics_seconds is None or not diagnostics.available or not takes_turn(TURN, TURN_SECONDS, using):
        return Counter()
    memory = _memories.setdefault(using, _Memory())
    parts = [_ask(memory, read, using) for read in (_waits, _deadlocks, _slow)]
    for findings in parts:
        keep_findings(findings, using=using)
    return Counter(dict(zip(("waits", "deadlocks", "slow_statements"), map(len, parts), strict=True)))


def _ask(memory: _Memory, read: Callable[[_Memory, Diagnostics, str], list[Finding]], using: str) -> list[Finding]:
    try:
        return read(memory, vendor(using).diagnostics, using)
    except NotSupported as error:
        if str(error) not in memory.logged:
            memory.logged.add(str(error))
            logger.info("lock monitoring is limited: %s", error)
        return []


def _waits(memory: _Memory, server: Diagnostics, using: str) -> list[Finding]:
    waits = [wait for wait in server.waits(connections[using], KEPT_MAX) if wait.seconds >= WAIT_SECONDS]
    return [Finding(LockFinding.Kind.WAIT, wait.identity, asdict(wait), wait.seconds) for wait in waits]


def _deadlocks(memory: _Memory, server: Diagnostics, using: str) -> list[Finding]:
    """Read the report only when the counter has changed, and the first time."""
    count = server.deadlocks(connections[using])
    if count == memory.deadlocks:
        return []
    first, memory.deadlocks = memory.deadlocks is None, count
    report = server.latest_deadlock(connections[using])
    if report is None:
        return []
    if not first:
        logger.warning("the database resolved a deadlock; see manage.py jobs locks")
    return [deadlock_finding(report)]


def _slow(memory: _Memory, server: Diagnostics, using: str) -> list[Finding]:
    found = []
    for slow in server.slow_statements(connections[using], KEPT_MAX):
        if slow.lock_seconds < SLOW_SECONDS or slow.lock_seconds == memory.lock_seconds.get(slow.statement):
            continue
        memory.lock_seconds[slow.statement] = slow.lock_seconds
        identity = hashlib.sha256(slow.statement.encode()).hexdigest()
        found.append(Finding(LockFinding.Kind.SLOW, identity, asdict(slow), slow.lock_seconds))
    return found
