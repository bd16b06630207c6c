"""Tells recipients what is due: records each try before it and its outcome after it.

A try without an outcome, because its process was killed, is repeated after notices.TRY_SECONDS: a
recipient may get that notice twice, and no other one.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from functools import partial

from django.db import connections
from django.db.models import Q

from jobqueue.alarms import notices
from jobqueue.alarms.alarm import Alarm
from jobqueue.alarms.notices import Notice
from jobqueue.alarms.recipients import key_of, tell
from jobqueue.conf import Settings
from jobqueue.conf.alarms import Recipient
from jobqueue.db import vendor
from jobqueue.db.clock import UtcNow, read_now
from jobqueue.db.retry import retry_transient
from jobqueue.log_format import one_line
from jobqueue.masking import mask_text
from jobqueue.models import JobAlarm

logger = logging.getLogger("jobqueue.alarms")

#: a recipient that takes longer counts as failed, although the message may still arrive
TELL_SECONDS = 20.0
#: rows of one read
ROWS_MAX = 100
_ERROR_CHARS = 200

#: recipients by key whose last try still runs in this process: they are not tried until it has ended
_running: dict[str, threading.Thread] = {}


@dataclass(frozen=True, slots=True)
class Told:
    """What one pass did."""

    told: int = 0
    failed: int = 0


def is_anything_due(*, using: str) -> bool:
    """Whether somebody is to be told now. An index seek."""
    return JobAlarm.objects.using(using).filter(send_at__lte=UtcNow()).exists()


def tell_due(settings: Settings, *, using: str, ending: Callable[[], bool] = lambda: False) -> Told:
    """Tell each recipient what is due. Any number of processes may do this at once.

    One that fails is left out for the rest of the pass, so that the others do not wait for it again. Once ending() is
    true, nobody else is told.
    """
    by_key = {key_of(recipient): recipient for recipient in settings.alarms.notify}
    told = failed = 0
    for pk in _each_due(using):
        while not ending() and (found := _take(pk, by_key, using)) is not None:
            notice, key = found
            error = _tell_in_time(by_key[key], key, notice.alarm)
            _note(pk, notice, key, error, using)
            told, failed = (told + 1, failed) if error is None else (told, failed + 1)
            if error is not None:
                del by_key[key]
    return Told(told, failed)


def _each_due(using: str) -> Iterator[int]:
    """Rows of which somebody is to be told, longest first: those that one recipient keeps there keep back no others."""
    rows = JobAlarm.objects.using(using).filter(send_at__lte=UtcNow()).order_by("send_at", "pk")
    page = list(rows.values_list("pk", "send_at")[:ROWS_MAX])
    while page:
        yield from (pk for pk, _ in page)
        pk, send_at = page[-1]
        behind = rows.filter(Q(send_at__gt=send_at) | Q(send_at=send_at, pk__gt=pk))
        page = list(behind.values_list("pk", "send_at")[:ROWS_MAX]) if len(page) == ROWS_MAX else []


def _take(pk: int, keys: Collection[str], using: str) -> tuple[Notice, str] | None:
    """What is to be told next of a row, recorded as tried."""
    free = {key for key in keys if not _is_busy(key)}
    return retry_transient("housekeeping", partial(_take_once, pk, free, using), using=using)


def _take_once(pk: int, keys: Collection[str], using: str) -> tuple[Notice, str] | None:
    with vendor(using).transaction(connections[using]):
        row = _locked(pk, using)
        if row is None:
            return None
        now = read_now(using)
        pending = notices.decode(row.notices, row.queue, row.name)
        dropped = notices.drop_old(pending, now)
        found = notices.take_due(pending, now, keys)
        if found is not None or dropped:
            _save(row, pending, using)
    for notice in dropped:
        logger.error("gave up telling %s of: %s", ", ".join(notice.pending), notice.alarm.text)
    return found


def _note(pk: int, notice: Notice, key: str, error: str | None, using: str) -> None:
    """Record the outcome of a try."""
    retry_transient("housekeeping", partial(_note_once, pk, notice, key, error, using), using=using)
    if error is not None:
        logger.warning("%s was not told, and is tried again: %s: %s", key, error, notice.alarm.text)


def _note_once(pk: int, notice: Notice, key: str, error: str | None, using: str) -> None:
    with vendor(using).transaction(connections[using]):
        row = _locked(pk, using)
        if row is None:
            return
        pending = notices.decode(row.notices, row.queue, row.name)
        if error is None:
            notices.note_told(pending, notice, key)
        else:
            notices.note_failed(pending, notice, key, error, read_now(using))
        _save(row, pending, using)


def _locked(pk: int, using: str) -> JobAlarm | None:
    # Waits for the lock of another process: without the outcome, the notice would be sent again.
    return JobAlarm.objects.using(using).select_for_update().filter(pk=pk).first()


def _save(row: JobAlarm, pending: list[Notice], using: str) -> None:
    row.notices, row.send_at = notices.encode(pending), notices.next_at(pending)
    row.save(using=using, update_fields=["notices", "send_at"])


def _is_busy(key: str) -> bool:
    thread = _running.get(key)
    return thread is not None and thread.is_alive()


def _tell_in_time(recipient: Recipient, key: str, alarm: Alarm) -> str | None:
    """Tell a recipient in a thread of its own, which is left alone after TELL_SECONDS; what went wrong, or None."""
    outcome: list[str | None] = []

    def work() -> None:
        try:
            tell(recipient, alarm)
        except Exception as error:
            outcome.append(mask_text(one_line(f"{type(error).__name__}: {error}"))[:_ERROR_CHARS])
        else:
            outcome.append(None)
        finally:
            # A hook may have used the database.
            connections.close_all()

    thread = _running[key] = threading.Thread(target=work, name=f"alarm to {key}", daemon=True)
    thread.start()
    thread.join(TELL_SECONDS)
    return outcome[0] if outcome else f"it did not end within {TELL_SECONDS:g} s"
