"""A footprint as text and as values for JSON."""

from __future__ import annotations

from dataclasses import asdict

from jobqueue.db.lock_facts import HeldLock, LockKind
from jobqueue.inspect.lock_set import LockSet
from jobqueue.payload import JSON

VERSION = 1
_LOCKED = {
    LockKind.TABLE: "",
    LockKind.RECORD: "this entry",
    LockKind.GAP: "the gap before it",
    LockKind.NEXT_KEY: "this entry and the gap before it",
    LockKind.SUPREMUM: "the gap behind the last entry",
    LockKind.INSERT_INTENTION: "a place in the gap before it, for one insert",
}


def text(locked: LockSet) -> str:
    """A line for each lock, grouped by table, and the counts."""
    lines = [f"{locked.database}, {locked.isolation}: {counts(locked)}"]
    table = None
    for lock in locked.locks:
        if lock.table != table:
            table = lock.table
            lines.append(table)
        lines.append(_line(lock))
    if not locked.complete:
        lines.append("The server cut its list short: there are more locks than these.")
    return "\n".join(lines)


def counts(locked: LockSet) -> str:
    """The numbers of rows, index entries and gaps."""
    found = [(locked.rows, "row"), (locked.records, "index entry"), (locked.gaps, "gap")]
    if locked.rows and not any(lock.index for lock in locked.locks):
        # PostgreSQL locks neither entries of indexes nor gaps.
        del found[1:]
    return ", ".join(_count(len(locks), noun) for locks, noun in found)


def as_json(locked: LockSet) -> dict[str, JSON]:
    """Values for json.dumps()."""
    return {
        "version": VERSION,
        "database": locked.database,
        "isolation": locked.isolation,
        "complete": locked.complete,
        "unseen": locked.unseen,
        "rows": len(locked.rows),
        "records": len(locked.records),
        "gaps": len(locked.gaps),
        "locks": [asdict(lock) | {"kind": lock.kind.value} for lock in locked.locks],
    }


def key_of(lock: HeldLock) -> str:
    """The entry of the index, in brackets."""
    if lock.kind is LockKind.TABLE:
        return ""
    if lock.kind is LockKind.SUPREMUM or (lock.key or "").startswith("supremum"):
        return "(end)"
    return "(?)" if lock.key is None else f"({lock.key})"


def _line(lock: HeldLock) -> str:
    if lock.kind is LockKind.TABLE:
        return f"  {'table':<10} {lock.mode}"
    if not lock.index:
        return f"  {'row':<10} {lock.mode:<18} {key_of(lock)}"
    return f"  {lock.index:<10} {lock.mode:<2} {lock.kind:<16} {key_of(lock):<14} {_LOCKED[lock.kind]}"


def _count(number: int, noun: str) -> str:
    plural = noun.replace("entry", "entries") if noun.endswith("entry") else f"{noun}s"
    return f"{number} {noun if number == 1 else plural}"
