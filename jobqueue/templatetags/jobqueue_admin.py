"""{% load jobqueue_admin %}: the overview, and what all pages of the admin have above their content."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django import template
from django.apps import AppConfig, apps
from django.http import HttpRequest
from django.template import RequestContext

if TYPE_CHECKING:
    from jobqueue.admin.page.navigation import Entry

register = template.Library()


@register.inclusion_tag("admin/jobqueue/overview.html", takes_context=True)
def jobqueue_overview(context: RequestContext) -> dict[str, Any]:
    """The state of all queues and workers, as far as the user may see it."""
    # In the functions: Django imports this module in every project, also in one without its admin.
    from jobqueue.admin.overview.page import overview
    from jobqueue.admin.page.addresses import use_site
    from jobqueue.admin.page.navigation import site_of

    request = _request(context)
    # The page around the overview is one of Django's, which sets no site.
    use_site(site_of(request))
    return overview(request, context.get("app_list"))


@register.simple_tag(takes_context=True)
def jobqueue_navigation(context: RequestContext) -> list[Entry]:
    """The pages that the user may see, in the order of their use."""
    from jobqueue.admin.page.navigation import entries

    return entries(_request(context))


@register.simple_tag
def jobqueue_app() -> AppConfig:
    """This app, to which the breadcrumbs of its pages lead."""
    return apps.get_app_config("jobqueue")


def _request(context: RequestContext) -> HttpRequest:
    request = context.get("request", getattr(context, "request", None))
    assert isinstance(request, HttpRequest)
    return request
