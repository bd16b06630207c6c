"""Notes on failures of one kind, which people write for whoever meets them next.

A note belongs to a fingerprint. It is there before and after the jobs that have it: redrives, discards and the deletion
of old jobs leave it, and the next failure of the kind shows it again. Only an empty text removes it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from jobqueue.base.validation import check_int, check_text
from jobqueue.db.alias import alias_of, explain_missing_table
from jobqueue.db.retry import retry_reporting, retry_transient
from jobqueue.db.upsert import upsert
from jobqueue.exceptions import InvalidValue
from jobqueue.models import FailureNote
from jobqueue.models.failure_note import AUTHOR_CHARS
from jobqueue.runs.job_filter import check_fingerprint

#: characters of a note
NOTE_CHARS = 2000
#: notes that notes() returns
LISTED_MAX = 1000
_KEYS = 500  # of one statement


@dataclass(frozen=True, slots=True)
class Note:
    """A note on failures of one kind. The instant is aware."""

    fingerprint: str
    text: str
    by: str  # "" if nobody was named
    updated_at: datetime


def note(fingerprint: str, text: str, *, by: str = "", using: str | None = None) -> bool:
    """Write the note on all failures with this fingerprint, in place of the one before; an empty text removes it.

    `text` has up to NOTE_CHARS characters, `by` up to 150; spaces around them are left out. False if there was no note
    to remove. Raises InvalidValue, InvalidType.
    """
    alias = alias_of(using)
    kind = check_fingerprint(fingerprint)
    words, author = check_text(text, "the text of a note").strip(), check_text(by, "by").strip()
    for what, given, most in (("the text of a note", words, NOTE_CHARS), ("by", author, AUTHOR_CHARS)):
        if len(given) > most:
            raise InvalidValue(
                f"{what} has {len(given)} characters; allowed are {most}. Nothing was written; shorten it, or write "
                "where the rest is."
            )
    if not words:
        rows = FailureNote.objects.using(alias).filter(pk=kind)
        gone, again = retry_reporting("note", lambda: rows.delete()[0], using=alias)
        # An earlier try may have been committed without an answer.
        return bool(gone) or again

    def write() -> None:
        row, changed = (kind, words, author), ("note", "author")
        upsert(FailureNote, [row], keys=("fingerprint",), changed=changed, stamped=("updated_at",), using=alias)

    retry_transient("note", write, using=alias)
    return True


def notes(*, limit: int = LISTED_MAX, using: str | None = None) -> list[Note]:
    """The notes, the newest change first, whether any job has their fingerprint or not."""
    check_int(limit, "limit", 1, LISTED_MAX)
    alias = alias_of(using)
    with explain_missing_table(alias):
        return [_shown(row) for row in FailureNote.objects.using(alias).order_by("-updated_at", "pk")[:limit]]


def notes_on(fingerprints: Iterable[str | None], *, using: str) -> dict[str, Note]:
    """The notes on these fingerprints, found by their keys."""
    kinds = sorted({kind for kind in fingerprints if kind})
    found: dict[str, Note] = {}
    for begin in range(0, len(kinds), _KEYS):
        rows = FailureNote.objects.using(using).filter(pk__in=kinds[begin : begin + _KEYS])
        found |= {row.fingerprint: _shown(row) for row in rows}
    return found


def _shown(row: FailureNote) -> Note:
    return Note(fingerprint=row.fingerprint, text=row.note, by=row.author, updated_at=row.updated_at)
