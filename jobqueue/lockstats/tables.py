"""Writes rows of the lock statistics by their own keys, so that a repeated write adds nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field

from jobqueue.db.clock import UtcNow
from jobqueue.db.digest_rows import digest, write_rows
from jobqueue.db.lock_facts import Deadlock
from jobqueue.lockstats.counters import COUNTER_NAMES, Counters, LockId, Refused, TransactionId
from jobqueue.models import LockFinding, LockStat, RedoneStat


@dataclass(frozen=True, slots=True)
class Finding:
    """Something for people to see. One `identity` and kind is one row, whichever process writes it."""

    kind: LockFinding.Kind
    identity: str
    detail: Mapping[str, object]
    seconds: float | None = field(default=None)


def deadlock_finding(report: Deadlock) -> Finding:
    return Finding(LockFinding.Kind.DEADLOCK, report.identity, asdict(report))


def write_stats(source: bytes, window: int, totals: Mapping[LockId, Counters], *, using: str) -> None:
    """Write the totals of one window of the process `source`; a later call with newer totals replaces them."""
    rows = [
        LockStat(
            id=digest(source, str(window), kind, key),
            counted_at=UtcNow(),
            kind=kind,
            lock_key=key,
            **asdict(counters),
        )
        # In order of the key: two processes never write one row, but their index entries are neighbours.
        for (kind, key), counters in sorted(totals.items())
    ]
    write_rows(rows, COUNTER_NAMES, using=using)


def write_refused(source: bytes, window: int, refused: Mapping[TransactionId, Refused], *, using: str) -> None:
    """Write the transactions that one window of the process `source` redid or gave up; a later call replaces them."""
    rows = [
        RedoneStat(
            id=digest(source, str(window), verb, error),
            last_seen_at=UtcNow(),
            verb=verb,
            error=error,
            **asdict(counters),
        )
        for (verb, error), counters in sorted(refused.items())
    ]
    write_rows(rows, ("last_seen_at", "redone", "given_up"), using=using)


def keep_findings(findings: Sequence[Finding], *, using: str) -> None:
    """Write one row per finding; a finding that is seen again gets its newer details and keeps first_seen_at."""
    by_id = {digest(b"", found.kind.value, found.identity): found for found in findings}
    rows = [
        LockFinding(
            id=key,
            kind=found.kind.value,
            first_seen_at=UtcNow(),
            last_seen_at=UtcNow(),
            seconds=found.seconds,
            detail=dict(found.detail),
        )
        for key, found in sorted(by_id.items())
    ]
    write_rows(rows, ("last_seen_at", "seconds", "detail"), using=using)
