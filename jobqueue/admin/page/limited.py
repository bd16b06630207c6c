"""Limits of time for pages: a table that somebody has locked must not take the web workers of a site."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial, wraps
from typing import Any

from django.contrib.admin import AdminSite
from django.db import Error, connections, transaction
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.utils.connection import ConnectionDoesNotExist
from django.utils.translation import gettext

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
