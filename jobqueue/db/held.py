"""One lock that a session holds, in words that are the same for every database."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class LockKind(StrEnum):
    """What of an index or a table is locked."""

    TABLE = "table"
    RECORD = "record"  # the entry alone (on PostgreSQL: the row)
    GAP = "gap"  # the space before the entry: nobody inserts there
    NEXT_KEY = "next-key"  # the entry and the space before it
    SUPREMUM = "supremum"  # the space behind the last entry
    INSERT_INTENTION = "insert-intention"  # the right to insert into a gap, after a wait for it


@dataclass(frozen=True, slots=True)
class HeldLock:
    """A lock as the server tells it. `index` is "" for tables and for rows of PostgreSQL."""

    table: str
    index: str
    kind: LockKind
    #: X, S, IX, IS on InnoDB; on PostgreSQL the name of the lock
    mode: str
    #: the entry's columns, None where the server does not show them
    key: str | None = None
    #: the entry is a row itself: of the clustered index, or of PostgreSQL's heap
    is_row: bool = False


@dataclass(frozen=True, slots=True)
class HeldLocks:
    """All locks of one transaction that the server shows."""

    locks: frozenset[HeldLock]
    #: of this transaction, which need not be the session's
    isolation: str
    #: False if the server cut its list short
    complete: bool = True


CLUSTERED = ("PRIMARY", "GEN_CLUST_INDEX")


def innodb_lock(table: str, index: str, words: frozenset[str], key: str | None) -> HeldLock:
    """A record lock of InnoDB by the words of its mode (X, S, GAP, REC_NOT_GAP, INSERT_INTENTION)."""
    if "INSERT_INTENTION" in words:
        kind = LockKind.INSERT_INTENTION
    elif key is not None and key.startswith("supremum"):
        kind, key = LockKind.SUPREMUM, None
    elif "GAP" in words:
        kind = LockKind.GAP
    else:
        kind = LockKind.RECORD if "REC_NOT_GAP" in words else LockKind.NEXT_KEY
    has_record = kind in (LockKind.RECORD, LockKind.NEXT_KEY)
    return HeldLock(table, index, kind, "S" if "S" in words else "X", key, has_record and index in CLUSTERED)
