"""The progress that a running job reports."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from django.db import Error

from jobqueue.db.callers_transaction import in_open_transaction
from jobqueue.exceptions import DatabaseBusy, InvalidType, InvalidValue
from jobqueue.failures import storable

if TYPE_CHECKING:
    from jobqueue.transitions import Lease

logger = logging.getLogger("jobqueue")

WRITE_SECONDS = 1.0  # a job that reports more often is written no more often
NOTE_BYTES = 500


@dataclass(frozen=True, slots=True)
class Progress:
    """`done` of `total` (None: unknown), in any unit, and a note for people."""

    done: float
    total: float | None = None
    note: str = ""

    def __str__(self) -> str:
        share = f"{self.done:g}" if self.total is None else f"{self.done:g} / {self.total:g}"
        if self.total:
            share += f" ({100 * self.done / self.total:.0f} %)"
        return f"{share}: {self.note}" if self.note else share


def new_progress(done: object, total: object, note: object) -> Progress:
    """A checked Progress. Raises InvalidType or InvalidValue."""
    if not isinstance(note, str):
        raise InvalidType(f"note must be a str, got {type(note).__name__}. Nothing was written.")
    most = None if total is None else _number(total, "total")
    return Progress(_number(done, "done"), most, storable(note, NOTE_BYTES))


def read_progress(stored: Any) -> Progress | None:
    """The Progress in a row; None if there is none, or another program wrote it in another form."""
    try:
        return new_progress(stored["done"], stored.get("total"), stored.get("note") or "")
    except (AttributeError, KeyError, TypeError, ValueError):
        return None


class Reporter:
    """Writes the newest progress of one attempt at most once per WRITE_SECONDS, and the last one at the end.

    Never inside a transaction, which would keep the job's row locked and its lease from being renewed.
    """

    def __init__(self, lease: Lease) -> None:
        self._lease = lease
        self._next = 0.0
        self.waiting: Progress | None = None

    def report(self, progress: Progress) -> None:
        """Keep `progress`, and write it if WRITE_SECONDS are over."""
        self.waiting = progress
        if time.monotonic() >= self._next and not _on_a_loop() and not in_open_transaction(self._lease.using):
            self.write()

    def write(self) -> None:
        """Write the kept progress. Errors are logged: they must not end the job."""
        from jobqueue.transitions.renewing import note_progress

        progress, self.waiting = self.waiting, None
        if progress is None:
            return
        self._next = time.monotonic() + WRITE_SECONDS
        try:
            note_progress(self._lease, asdict(progress))
        except (Error, DatabaseBusy) as error:
            logger.warning("the progress of job %d could not be written: %s", self._lease.job_id, error)


def _number(value: object, what: str) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise InvalidType(f"{what} must be a number, got {type(value).__name__}. Nothing was written.")
    if not 0 <= value < 2**63 or not math.isfinite(value):
        raise InvalidValue(f"{what} must be at least 0 and below 2**63. Nothing was written.")
    return value


def _on_a_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
