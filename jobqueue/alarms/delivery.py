"""Tells people of alarms: the log, mail, a webhook, or a function of the project.

Each try is recorded before it begins, and its outcome after it. A try without an outcome, because its process was
killed, is repeated after TRY_SECONDS: a recipient may get that notice twice, and no other one.
"""

from __future__ import annotations

import hashlib
import json
import logging
import threading
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from http.client import HTTPException
from typing import IO, Any
from urllib.error import HTTPError
from urllib.request import (
    HTTPDefaultErrorHandler,
    HTTPErrorProcessor,
    HTTPHandler,
    HTTPSHandler,
    OpenerDirector,
    ProxyHandler,
    Request,
)

from django.conf import settings
from django.core.mail import EmailMessage, mail_admins
from django.db import connections
from django.db.models import Q
from django.utils.module_loading import import_string
from django.utils.translation import override

import jobqueue
from jobqueue.alarms import RUNBOOKS, Alarm, names_in
from jobqueue.backoff import Backoff
from jobqueue.conf import Settings
from jobqueue.conf.alarms import REFUSED, Recipient
from jobqueue.db import Problem, vendor
from jobqueue.db.clock import UtcNow, read_now
from jobqueue.db.retry import retry_transient
from jobqueue.log_format import one_line
from jobqueue.masking import mask_text
from jobqueue.models import JobAlarm

#: notices of one row; the oldest are dropped
NOTICES_MAX = 20
#: a notice that could not be told for so long is dropped
GIVE_UP_SECONDS = 86_400.0
#: between a try and the next one of another process, if this process says nothing more about it
TRY_SECONDS = 60.0
BACKOFF = Backoff(base_seconds=15.0, factor=2.0, cap_seconds=900.0)


@dataclass(slots=True)
class Pending:
    """One recipient that is still to be told."""

    again_at: datetime
    tries: int = 0
    error: str = ""  # of the last try


@dataclass(slots=True)
class Notice:
    """The beginning or the end of one incident."""

    alarm: Alarm
    at: datetime
    pending: dict[str, Pending] = field(default_factory=dict)  # by the key of the recipient

    @classmethod
    def of(cls, alarm: Alarm, at: datetime, keys: Iterable[str]) -> Notice:
        """A notice that nobody was told yet."""
        return cls(alarm, at, {key: Pending(at) for key in keys})


def decode(raw: object, queue: str, name: str) -> list[Notice]:
    """The notices of a row."""
    return [_decoded(one, queue, name) for one in raw if isinstance(one, dict)] if isinstance(raw, list) else []


def _decoded(raw: dict[str, Any], queue: str, name: str) -> Notice:
    ended_at = _instant(raw["ended_at"]) if raw["ended_at"] else None
    since, about = _instant(raw["since"]), names_in(raw.get("about"))
    alarm = Alarm(queue, name, raw["value"], raw["threshold"], since, raw["incident"], ended_at, about)
    pending = {
        key: Pending(_instant(each["again_at"]), each["tries"], each["error"]) for key, each in raw["pending"].items()
    }
    return Notice(alarm, _instant(raw["at"]), pending)


def encode(notices: Iterable[Notice]) -> list[dict[str, Any]]:
    """Encode notices for the column."""
    return [
        {
            "incident": notice.alarm.incident,
            "since": notice.alarm.since.isoformat(),
            "ended_at": notice.alarm.ended_at.isoformat() if notice.alarm.ended_at else None,
            "value": notice.alarm.value,
            "threshold": notice.alarm.threshold,
            "about": list(notice.alarm.about),
            "at": notice.at.isoformat(),
            "pending": {
                key: {"again_at": each.again_at.isoformat(), "tries": each.tries, "error": each.error}
                for key, each in notice.pending.items()
            },
        }
        for notice in notices
    ]


def _instant(text: str) -> datetime:
    return datetime.fromisoformat(text)


def next_at(notices: Iterable[Notice]) -> datetime | None:
    """When the next recipient is to be told; None if all were told."""
    return min((pending.again_at for _, pending in _first_with_notice(notices).values()), default=None)


def take_due(notices: Iterable[Notice], now: datetime, keys: Collection[str]) -> tuple[Notice, str] | None:
    """A notice that is due, and the one of `keys` to tell; None if there is none. It counts as tried from now on.

    A recipient gets the notices of a row in their order: the end of an incident waits for its beginning.
    """
    for key, (notice, pending) in _first_with_notice(notices).items():
        if key in keys and pending.again_at <= now:
            pending.tries += 1
            pending.again_at = now + timedelta(seconds=TRY_SECONDS)
            return notice, key
    return None


def note_told(notices: list[Notice], notice: Notice, key: str) -> None:
    """Record that the recipient was told."""
    for one in _same(notices, notice):
        one.pending.pop(key, None)
    notices[:] = [one for one in notices if one.pending]


def note_failed(notices: list[Notice], notice: Notice, key: str, error: str, now: datetime) -> None:
    """Record that the recipient could not be told: it is tried again after a pause that grows."""
    for one in _same(notices, notice):
        if (pending := one.pending.get(key)) is not None:
            pending.error = error
            pending.again_at = now + timedelta(seconds=BACKOFF.delay_seconds(pending.tries))


def drop_old(notices: list[Notice], now: datetime) -> list[Notice]:
    """Take out what could not be told for GIVE_UP_SECONDS, and the oldest beyond NOTICES_MAX; returns it."""
    limit = now - timedelta(seconds=GIVE_UP_SECONDS)
    kept = [notice for notice in notices if notice.at > limit][-NOTICES_MAX:]
    dropped = [notice for notice in notices if notice not in kept]
    notices[:] = kept
    return dropped


def _same(notices: Iterable[Notice], wanted: Notice) -> list[Notice]:
    """The notice that `wanted` was read as: the row may have changed since."""
    identity = _identity(wanted)
    return [notice for notice in notices if _identity(notice) == identity]


def _identity(notice: Notice) -> tuple[object, ...]:
    return notice.alarm.incident, notice.alarm.since, notice.alarm.ended_at is None


def _first_with_notice(notices: Iterable[Notice]) -> dict[str, tuple[Notice, Pending]]:
    found: dict[str, tuple[Notice, Pending]] = {}
    for notice in notices:
        for key, pending in notice.pending.items():
            found.setdefault(key, (notice, pending))
    return found


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
    """The result of one pass."""

    told: int = 0
    failed: int = 0


def is_anything_due(*, using: str) -> bool:
    """Return whether a notice is due now. An index seek."""
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
    """Take the next notice of a row, recorded as tried."""
    free = {key for key in keys if not _is_busy(key)}
    return retry_transient("housekeeping", partial(_take_once, pk, free, using), using=using)


def _take_once(pk: int, keys: Collection[str], using: str) -> tuple[Notice, str] | None:
    with vendor(using).transaction(connections[using]):
        row = _locked(pk, using)
        if row is None:
            return None
        now = read_now(using)
        pending = decode(row.notices, row.queue, row.name)
        dropped = drop_old(pending, now)
        found = take_due(pending, now, keys)
        if found is not None or dropped:
            _save(row, pending, using)
    for notice in dropped:
        logger.error("gave up notifying %s of: %s", ", ".join(notice.pending), notice.alarm.text)
    return found


def _note(pk: int, notice: Notice, key: str, error: str | None, using: str) -> None:
    """Record the outcome of a try."""
    retry_transient("housekeeping", partial(_note_once, pk, notice, key, error, using), using=using)
    if error is not None:
        logger.warning("could not notify %s, will try again: %s: %s", key, error, notice.alarm.text)


def _note_once(pk: int, notice: Notice, key: str, error: str | None, using: str) -> None:
    with vendor(using).transaction(connections[using]):
        row = _locked(pk, using)
        if row is None:
            return
        pending = decode(row.notices, row.queue, row.name)
        if error is None:
            note_told(pending, notice, key)
        else:
            note_failed(pending, notice, key, error, read_now(using))
        _save(row, pending, using)


def _locked(pk: int, using: str) -> JobAlarm | None:
    # Waits for the lock of another process: without the outcome, the notice would be sent again.
    return JobAlarm.objects.using(using).select_for_update().filter(pk=pk).first()


def _save(row: JobAlarm, pending: list[Notice], using: str) -> None:
    row.notices, row.send_at = encode(pending), next_at(pending)
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
    return outcome[0] if outcome else f"no end within {TELL_SECONDS:g} s"


#: a webhook must connect, and then answer, within this time each
WEBHOOK_SECONDS = 5.0


def key_of(recipient: Recipient) -> str:
    """The name of a recipient in the rows. Places are hashed: a URL may hold a password."""
    if not recipient.places:
        return recipient.kind
    digest = hashlib.sha256("\n".join(recipient.places).encode()).hexdigest()[:16]
    return f"{recipient.kind} {digest}"


def keys_of(recipients: Iterable[Recipient]) -> list[str]:
    """The names of recipients."""
    return [key_of(recipient) for recipient in recipients]


def tell(recipient: Recipient, alarm: Alarm) -> None:
    """Tell one recipient. Raises whatever goes wrong."""
    with override(None):
        if recipient.kind == "log":
            logger.log(logging.INFO if alarm.ended_at else logging.WARNING, "%s", alarm.text)
        elif recipient.kind == "HOOK":
            import_string(recipient.places[0])(alarm)
        elif recipient.kind == "WEBHOOK":
            _post(recipient.places[0], alarm)
        else:
            _mail(recipient, alarm)


def facts(alarm: Alarm) -> dict[str, Any]:
    """An alarm as JSON, for mails and webhooks. Any text may be a secret where it is not expected: it is masked."""
    return {
        "state": "ended" if alarm.ended_at else "firing",
        "queue": mask_text(alarm.queue),
        "name": alarm.name,
        "value": alarm.value,
        "threshold": alarm.threshold,
        "about": list(alarm.about),
        "since": alarm.since.isoformat(),
        "ended_at": alarm.ended_at.isoformat() if alarm.ended_at else None,
        "incident": alarm.incident,
        "text": alarm.text,
        "runbook": RUNBOOKS[alarm.name],
    }


def alarm_problems(found: Settings) -> Iterator[Problem]:
    """The problems of ALARMS that `check` reports: recipients, and a figure that nobody counts."""
    if REFUSED in found.alarms.workers and found.lock_metrics_seconds is None:
        text = f"JOBQUEUE: ALARMS has {REFUSED}, but LOCK_METRICS_SECONDS is None, so nobody counts them."
        yield Problem("W035", text, f"Set LOCK_METRICS_SECONDS, or remove {REFUSED} from WORKERS.")
    for recipient in found.alarms.notify:
        if recipient.kind == "mail" and not settings.ADMINS:
            text = "JOBQUEUE: ALARMS: NOTIFY has 'mail', but ADMINS is empty, so nobody gets these mails."
            yield Problem("W034", text, "Set ADMINS, or give addresses: {'MAIL': ['ops@example.com']}.")
        if recipient.kind == "HOOK" and (text := _hook_problem(recipient.places[0])):
            yield Problem("E009", f"JOBQUEUE: ALARMS: HOOK {recipient.places[0]!r}: {text}.", "Correct the path.")


def _hook_problem(path: str) -> str:
    try:
        found = import_string(path)
    except Exception as error:
        return f"cannot be imported: {mask_text(str(error))}"
    return "" if callable(found) else "is no function"


def _mail(recipient: Recipient, alarm: Alarm) -> None:
    state = "over" if alarm.ended_at else "fires"
    subject = f"alarm {state}: {mask_text(alarm.queue) or 'workers'} {alarm.name}"
    shown = facts(alarm) | {"about": mask_text(alarm.names)}
    lines = [f"{name}: {value}" for name, value in shown.items() if value not in (None, "")]
    body = "\n".join(lines) + "\n"
    if recipient.kind == "mail":
        mail_admins(subject, body)
    else:
        EmailMessage(f"{settings.EMAIL_SUBJECT_PREFIX}{subject}", body, to=list(recipient.places)).send()


def _post(url: str, alarm: Alarm) -> None:
    body = json.dumps({"version": 1, **facts(alarm)}).encode()
    head = {"Content-Type": "application/json", "User-Agent": f"jobqueue/{jobqueue.__version__}"}
    try:
        with _opener().open(Request(url, body, head, method="POST"), timeout=WEBHOOK_SECONDS):
            pass
    except HTTPError as error:
        error.close()
        raise
    except HTTPException as error:
        raise OSError(f"the answer is no HTTP: {type(error).__name__}") from error


class _NoRedirects(HTTPDefaultErrorHandler):
    """Every answer but 2xx is an error, also a redirect: the URL of the settings is the only one that gets alarms."""

    def http_error_default(self, req: Request, fp: IO[bytes], code: int, msg: str, hdrs: Any) -> Any:
        raise HTTPError(req.full_url, code, msg, hdrs, fp)


def _opener() -> OpenerDirector:
    """An opener of http and https URLs only: urlopen() would also open those of files."""
    opener = OpenerDirector()
    for handler in (ProxyHandler, HTTPHandler, HTTPSHandler, HTTPErrorProcessor, _NoRedirects):
        opener.add_handler(handler())
    return opener
