"""A footprint in words: text for people, values for JSON."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from jobqueue.db.lock_facts import HeldLock, LockKind

if TYPE_CHECKING:
    from jobqueue.inspect.footprint import Footprint

VERSION = 1
_SAID = {
    LockKind.TABLE: "",
    LockKind.RECORD: "this entry",
    LockKind.GAP: "the gap before it",
    LockKind.NEXT_KEY: "this entry and the gap before it",
    LockKind.SUPREMUM: "the gap behind the last entry",
    LockKind.INSERT_INTENTION: "a place in the gap before it, for one insert",
}


def text(footprint: Footprint) -> str:
    """A line for each lock, grouped by table, and the counts."""
    lines = [f"{footprint.database}, {footprint.isolation}: {counts(footprint)}"]
    table = None
    for lock in footprint.locks:
        if lock.table != table:
            table = lock.table
            lines.append(table)
        lines.append(_line(lock))
    if not footprint.complete:
        lines.append("The server cut its list short: there are more locks than these.")
    return "\n".join(lines)


def counts(footprint: Footprint) -> str:
    """How much of everything."""
    found = [(footprint.rows, "row"), (footprint.records, "index entry"), (footprint.gaps, "gap")]
    if footprint.rows and not any(lock.index for lock in footprint.locks):
        # PostgreSQL locks neither entries of indexes nor gaps.
        del found[1:]
    return ", ".join(_count(len(locks), noun) for locks, noun in found)


def as_json(footprint: Footprint) -> dict[str, Any]:
    """Plain values."""
    return {
        "version": VERSION,
        "database": footprint.database,
        "isolation": footprint.isolation,
        "complete": footprint.complete,
        "unseen": footprint.unseen,
        "rows": len(footprint.rows),
        "records": len(footprint.records),
        "gaps": len(footprint.gaps),
        "locks": [
            {
                "table": lock.table,
                "index": lock.index,
                "kind": lock.kind.value,
                "mode": lock.mode,
                "key": lock.key,
                "is_row": lock.is_row,
            }
            for lock in footprint.locks
        ],
    }


def key_of(lock: HeldLock) -> str:
    """The entry as people read it."""
    if lock.kind is LockKind.TABLE:
        return ""
    if lock.kind is LockKind.SUPREMUM or (lock.key or "").startswith("supremum"):
        return "(end)"
    return "(?)" if lock.key is None else f"({lock.key})"


def sortable(key: str | None) -> list[tuple[int, int, str]]:
    """Entries in the order of the index, as far as numbers and text can tell."""
    parts = [] if key is None else re.split(r", (?=(?:[^']*'[^']*')*[^']*$)", key)
    return [(0, int(part), "") if re.fullmatch(r"-?\d+", part) else (1, 0, part) for part in parts]


def _line(lock: HeldLock) -> str:
    if lock.kind is LockKind.TABLE:
        return f"  {'table':<10} {lock.mode}"
    if not lock.index:
        return f"  {'row':<10} {lock.mode:<18} {key_of(lock)}"
    return f"  {lock.index:<10} {lock.mode:<2} {lock.kind:<16} {key_of(lock):<14} {_SAID[lock.kind]}"


def _count(number: int, noun: str) -> str:
    plural = noun.replace("entry", "entries") if noun.endswith("entry") else f"{noun}s"
    return f"{number} {noun if number == 1 else plural}"
