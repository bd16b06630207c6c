"""A footprint as SVG: each index is a line of entries, marked with its locks."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from itertools import groupby

from jobqueue.db.diagnostics import HeldLock, LockKind
from jobqueue.inspect.lock_set import GAP_KINDS, RECORD_KINDS, LockSet, counts, key_of

ENTRIES_MAX = 40
_WIDE, _LEFT, _GAP, _ENTRY, _ROW = 1000, 20, 46, 84, 74
_STYLE = (
    "text{font:12px system-ui,sans-serif;fill:#24292f}.m{text-anchor:middle}.h{font-weight:600}"
    ".e{fill:none;stroke:#8c959f}.r{fill:#cf222e;fill-opacity:.35;stroke:#cf222e}"
    ".g{fill:#bf8700;fill-opacity:.35;stroke:#bf8700;stroke-dasharray:4 3}"
    ".i{fill:#1a7f37;fill-opacity:.35;stroke:#1a7f37}"
    "@media(prefers-color-scheme:dark){text{fill:#e6edf3}}"
)
_LEGEND = [("r", "record: nobody changes the entry"), ("g", "gap: nobody inserts here"), ("i", "insert intention")]


def draw(locked: LockSet) -> str:
    """One line per index; after ENTRIES_MAX entries of an index only the number of the others."""
    title = f"Locks of a block on {locked.database}, {locked.isolation}: {counts(locked)}"
    body = [f'<text x="{_LEFT}" y="22" class="h">{escape(title)}</text>']
    y = 46
    x = _LEFT
    for style, meaning in _LEGEND:
        body.append(f'<rect x="{x}" y="{y - 11}" width="14" height="14" class="{style}"/>')
        body.append(f'<text x="{x + 20}" y="{y}">{escape(meaning)}</text>')
        x += 260
    y += 34
    on_entries = [lock for lock in locked.locks if lock.kind is not LockKind.TABLE]
    for (table, index), found in groupby(on_entries, key=lambda lock: (lock.table, lock.index)):
        entries = [(key, list(same)) for key, same in groupby(found, key=key_of)]
        name = escape(f"{table}: {index or 'rows'}")
        body.append(f'<text x="{_LEFT}" y="{y}" class="h">{name}</text>')
        for line in range(0, min(len(entries), ENTRIES_MAX), _per_line()):
            body += _entries(entries[line : min(line + _per_line(), ENTRIES_MAX)], y + 14)
            y += _ROW
        if len(entries) > ENTRIES_MAX:
            body.append(f'<text x="{_LEFT}" y="{y}">and {len(entries) - ENTRIES_MAX} entries more</text>')
            y += 22
    if not on_entries:
        body.append(f'<text x="{_LEFT}" y="{y}">no row, entry or gap</text>')
        y += 22
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDE} {y}" role="img">'
    return "\n".join([head, f"<title>{escape(title)}</title>", f"<style>{_STYLE}</style>", *body, "</svg>", ""])


def _per_line() -> int:
    return (_WIDE - 2 * _LEFT) // (_GAP + _ENTRY)


def _entries(entries: list[tuple[str, list[HeldLock]]], y: int) -> Iterator[str]:
    """The gap before each entry, and the entry."""
    for number, (key, locks) in enumerate(entries):
        x = _LEFT + number * (_GAP + _ENTRY)
        kinds = {lock.kind for lock in locks}
        modes = "/".join(sorted({lock.mode for lock in locks}))
        has_gap = bool(kinds & set(GAP_KINDS))
        has_record = bool(kinds & set(RECORD_KINDS))
        locks_text = ", ".join(f"{lock.mode} {lock.kind}" for lock in locks)
        yield f"<g><title>{escape(key)}: {escape(locks_text)}</title>"
        if has_gap:
            yield f'<rect x="{x}" y="{y}" width="{_GAP}" height="30" class="g"/>'
            yield f'<text x="{x + _GAP / 2:g}" y="{y + 19}" class="m">gap</text>'
        if LockKind.INSERT_INTENTION in kinds:
            yield f'<rect x="{x + _GAP - 12}" y="{y}" width="12" height="30" class="i"/>'
        style = "r" if has_record else "e"
        yield f'<rect x="{x + _GAP}" y="{y}" width="{_ENTRY}" height="30" class="{style}"/>'
        short = key if len(key) <= 13 else key[:11] + "…)"
        yield f'<text x="{x + _GAP + _ENTRY / 2:g}" y="{y + 19}" class="m">{escape(short)}</text>'
        yield f'<text x="{x + _GAP + _ENTRY / 2:g}" y="{y + 43}" class="m">{escape(modes)}</text></g>'
