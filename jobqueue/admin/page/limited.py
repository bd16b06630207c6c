"""A limit of time for what a page reads: a table that somebody has locked must not take the web workers of a site."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from django.contrib.admin import AdminSite
from django.db import Error, connections
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.utils.connection import ConnectionDoesNotExist
from django.utils.translation import gettext

from jobqueue.conf import load
from jobqueue.db.time_limit import time_limit
from jobqueue.exceptions import StatementTimeout, WrongSettings
from jobqueue.explain import Explanation
from jobqueue.explain.row_locks import row_locks

#: how long each SELECT of a page may take
PAGE_SECONDS = 5.0


def limited(view: Callable[..., HttpResponse], site: AdminSite) -> Callable[..., HttpResponse]:
    """`view`, which answers 503 with the cause when one of its reads takes too long. What is posted has no limit."""

    @wraps(view)
    def serve(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        if request.method not in ("GET", "HEAD"):
            return view(request, *args, **kwargs)
        try:
            using = load().database
            connections[using]
        except (WrongSettings, ConnectionDoesNotExist):
            # A page says so.
            return view(request, *args, **kwargs)
        try:
            with time_limit(PAGE_SECONDS, using=using):
                response = view(request, *args, **kwargs)
                # Templates read rows, too.
                return response.render() if isinstance(response, TemplateResponse) else response
        except StatementTimeout:
            return _slow(request, site, using)

    return serve


def _slow(request: HttpRequest, site: AdminSite, using: str) -> HttpResponse:
    context = {
        **site.each_context(request),
        "title": gettext("The page took too long"),
        "text": gettext("Reading took longer than %(seconds)s s and was stopped. Nothing was changed.")
        % {"seconds": f"{PAGE_SECONDS:g}"},
        "causes": _causes(using) if request.user.has_perm("jobqueue.view_job") else [],
    }
    return TemplateResponse(request, "admin/jobqueue/slow_page.html", context, status=503).render()


def _causes(using: str) -> list[Explanation]:
    try:
        return row_locks(using)
    except Error:
        return []
