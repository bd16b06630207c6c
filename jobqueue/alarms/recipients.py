"""Who is told of an alarm, and how: the log, mail, a webhook, a function of the project."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Iterable, Iterator
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
from django.utils.module_loading import import_string
from django.utils.translation import override

import jobqueue
from jobqueue.alarms.alarm import RUNBOOKS, Alarm
from jobqueue.conf import Settings
from jobqueue.conf.alarms import REFUSED, Recipient
from jobqueue.db import Problem
from jobqueue.masking import mask_text

logger = logging.getLogger("jobqueue.alarms")

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
    """What `check` says about ALARMS: those who are to be told, and a figure that nobody counts."""
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
    """What opens http and https URLs only: urlopen() would also open those of files."""
    opener = OpenerDirector()
    for handler in (ProxyHandler, HTTPHandler, HTTPSHandler, HTTPErrorProcessor, _NoRedirects):
        opener.add_handler(handler())
    return opener
