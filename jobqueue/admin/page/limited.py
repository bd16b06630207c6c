"""Reads of pages: each has a limit of time, and what was read is kept in the cache of Django for a moment.

A table that somebody has locked must not take the web workers of a site, and ten open tabs cost the reads of one. A
cache that fails costs reads, not the page.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial, wraps
from typing import Any, TypeVar

from django.contrib.admin import AdminSite
from django.core.cache import cache
from django.db import Error, connections, transaction
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.utils.connection import ConnectionDoesNotExist
from django.utils.translation import gettext

from jobqueue import __version__
from jobqueue.conf import load
from jobqueue.db import fault_vendor
from jobqueue.db.time_limit import lock_limit, time_limit
from jobqueue.exceptions import DatabaseBusy, StatementTimeout, WrongSettings
from jobqueue.explain.row_locks import waits_in_words

#: how long each SELECT of a page may take; and all sections together that are left out when they take too long
PAGE_SECONDS, TOGETHER_SECONDS = 5.0, 4.0


def limited(view: Callable[..., HttpResponse], site: AdminSite) -> Callable[..., HttpResponse]:
    """`view`, which answers 503 with the cause when one of its reads takes too long.

    What is posted takes as long as it works, but waits for no lock for long: then it answers 503, too.
    """

    @wraps(view)
    def serve(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        try:
            using = load().database
            connections[using]
        except (WrongSettings, ConnectionDoesNotExist):
            # A page says so.
            return view(request, *args, **kwargs)
        reads = request.method in ("GET", "HEAD")
        try:
            limit = partial(time_limit, PAGE_SECONDS, using=using, together=TOGETHER_SECONDS)
            with limit() if reads else _posted(using):
                response = view(request, *args, **kwargs)
                # Templates read rows, too.
                return response.render() if isinstance(response, TemplateResponse) else response
        except StatementTimeout:
            return _slow(request, site, using, reads)
        except (Error, DatabaseBusy) as error:
            if reads or not (isinstance(error, DatabaseBusy) or fault_vendor(using).waited_too_long(error)):
                raise
            return _slow(request, site, using, reads)

    return serve


@contextmanager
def _posted(using: str) -> Iterator[None]:
    """In the transaction of a request a savepoint: after an error, the page with the cause must be able to read."""
    own = transaction.atomic(using=using) if connections[using].in_atomic_block else nullcontext()
    with lock_limit(using=using), own:
        yield


def _slow(request: HttpRequest, site: AdminSite, using: str, reads: bool) -> HttpResponse:
    if reads:
        text = gettext("Reading took longer than %(seconds)s s and was stopped. Nothing was changed.")
    else:
        text = gettext(
            "The database kept this request waiting for a lock, so it was stopped. Look at what was changed before you "
            "repeat it."
        )
    context = {
        **site.each_context(request),
        "title": gettext("The page took too long"),
        "text": text % {"seconds": f"{PAGE_SECONDS:g}"},
        "causes": waits_in_words(using) if request.user.has_perm("jobqueue.view_job") else [],
    }
    return TemplateResponse(request, "admin/jobqueue/slow_page.html", context, status=503).render()


T = TypeVar("T")
logger = logging.getLogger("jobqueue.admin")
#: how long it is remembered that a read took too long, so that a slow database is not asked again by each who looks
SLOW_SECONDS = 15
#: how long a process does not use a cache that has failed: each call of a cache that is down may take its full timeout
WITHOUT_SECONDS = 30.0


def kept(name: str, read: Callable[[], T], seconds: float) -> T | None:
    """What read() gives, or gave to somebody in the last `seconds`; None if it took too long, now or shortly before.

    `name`: ASCII without spaces, and different for each thing that is read.
    """
    # With the version: while servers are updated, an older one may not know what a newer one has written.
    key = f"jobqueue-{__version__}-{name}"
    found: list[T | None] | None = safely.ask(lambda: cache.get(key))
    if found is None:
        try:
            found = [read()]
        except StatementTimeout:
            found = [None]
        value, until = found, SLOW_SECONDS if found[0] is None else seconds
        safely.ask(lambda: cache.set(key, value, until))
    return found[0]


class Safely:
    """Calls the cache of a process. `until`: when a cache that has failed is called again."""

    def __init__(self) -> None:
        self.until: float | None = None

    def ask(self, call: Callable[[], list[T | None] | None]) -> list[T | None] | None:
        """What the cache answers; None if it fails, or has failed in the last WITHOUT_SECONDS."""
        if self.until is not None and time.monotonic() < self.until:
            return None
        try:
            found = call()
        except Exception:  # each backend raises errors of its own
            self.until = time.monotonic() + WITHOUT_SECONDS
            logger.warning(
                "Django's cache failed; pages read their figures from the database for each who looks. "
                "They ask the cache again in %d s.",
                WITHOUT_SECONDS,
                exc_info=True,
            )
            return None
        self.until = None
        return found


safely = Safely()
