"""The view: who may read the metrics, and how often the database is asked for them."""

from __future__ import annotations

import hmac
import logging
import threading
import time
from collections.abc import Callable
from typing import NamedTuple

from django.contrib.auth.decorators import login_not_required
from django.db import Error, transaction
from django.http import HttpRequest, HttpResponse
from django.views.decorators.http import require_safe

from jobqueue.conf import load
from jobqueue.db.alias import alias_of
from jobqueue.exceptions import NotMigrated, StatementTimeout
from jobqueue.metrics.families import prometheus_text, read_figures

logger = logging.getLogger("jobqueue")

#: how long a process gives the same answer again
CACHE_SECONDS = 5.0
PERMISSION = "jobqueue.view_jobstat"
_REFUSED = (
    "These metrics are for a request with the header 'Authorization: Bearer TOKEN', where TOKEN is "
    'JOBQUEUE["METRICS_TOKEN"], and for staff with the permission jobqueue.view_jobstat.\n'
)
_NOT_INSTALLED = "prometheus-client is not installed, so there are no metrics. Run: pip install prometheus-client\n"
_NO_DATABASE = "The database did not answer, so there are no metrics now. The next scrape tries again.\n"


class Answer(NamedTuple):
    """What a scrape gets."""

    status: int
    text: str


class Cache:
    """The newest answer of this process. Requests that come while it is made wait for it, and do not ask again."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._answer: Answer | None = None
        self._made_at = 0.0

    def get(self, make: Callable[[], Answer]) -> Answer:
        """The answer, from make() if it is older than CACHE_SECONDS."""
        with self._lock:
            if self._answer is None or time.monotonic() - self._made_at > CACHE_SECONDS:
                self._answer = make()
                # After the reads: slow ones must not follow each other without a pause.
                self._made_at = time.monotonic()
            return self._answer

    def clear(self) -> None:
        """Forget the answer."""
        with self._lock:
            self._answer = None


cache = Cache()


@require_safe
@login_not_required
@transaction.non_atomic_requests
def view(request: HttpRequest) -> HttpResponse:
    """Answer a scrape of Prometheus with the figures of the whole queue, up to CACHE_SECONDS old.

    For requests with METRICS_TOKEN, and for staff with the permission view_jobstat; others get 403. 501 without
    prometheus-client; 503 while the database does not answer, or is so slow that the reads were stopped. The text of
    each says what to do.
    """
    try:
        allowed = _has_token(request) or _may_view(request)
    except Error as error:
        # The session of a person is in a database too.
        return _response(_failed(error))
    return _response(cache.get(_make) if allowed else Answer(403, _REFUSED))


def _has_token(request: HttpRequest) -> bool:
    token = load().metrics_token
    scheme, _, given = request.headers.get("Authorization", "").partition(" ")
    if token is None or scheme.lower() != "bearer":
        return False
    return hmac.compare_digest(given.strip().encode(errors="replace"), token.encode())


def _may_view(request: HttpRequest) -> bool:
    user = getattr(request, "user", None)
    return user is not None and user.is_active and user.is_staff and user.has_perm(PERMISSION)


def _make() -> Answer:
    try:
        return Answer(200, prometheus_text(read_figures(using=alias_of(None))))
    except ImportError:
        return Answer(501, _NOT_INSTALLED)
    except (StatementTimeout, NotMigrated) as error:
        logger.warning("metrics: %s", error)
        return Answer(503, f"{error}\n")
    except Error as error:
        return _failed(error)


def _failed(error: Error) -> Answer:
    # The words of a driver may name hosts and accounts: they are for the log.
    logger.warning("metrics: the database did not answer: %s", error)
    return Answer(503, _NO_DATABASE)


def _response(answer: Answer) -> HttpResponse:
    # The format of generate_latest(): version 0.0.4 of Prometheus' text.
    kind = "text/plain; version=0.0.4; charset=utf-8" if answer.status == 200 else "text/plain; charset=utf-8"
    response = HttpResponse(answer.text, status=answer.status, content_type=kind)
    # A proxy must not give it to somebody who may not read it.
    response["Cache-Control"] = "private, no-store"
    return response
