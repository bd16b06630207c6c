"""{% load jobqueue_admin %}: the overview, and the navigation that stands on all pages of the admin."""

from __future__ import annotations

from typing import Any

from django import template
from django.http import HttpRequest
from django.template import RequestContext

from jobqueue.admin.overview.page import overview
from jobqueue.admin.page.addresses import use_site
from jobqueue.admin.page.navigation import Entry, entries, site_of

register = template.Library()


@register.inclusion_tag("admin/jobqueue/overview.html", takes_context=True)
def jobqueue_overview(context: RequestContext) -> dict[str, Any]:
    """The state of all queues and workers, as far as the user may see it."""
    request = _request(context)
    # The page around it is one of Django's.
    use_site(site_of(request))
    return overview(request, context.get("app_list"))


@register.simple_tag(takes_context=True)
def jobqueue_navigation(context: RequestContext) -> list[Entry]:
    """The pages that the user may see, in the order of their use."""
    return entries(_request(context))


def _request(context: RequestContext) -> HttpRequest:
    request = context.get("request", getattr(context, "request", None))
    assert isinstance(request, HttpRequest)
    return request
