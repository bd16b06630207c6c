"""The pages of this app in the order of their use: a bar on each of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from django.http import HttpRequest
from django.urls import NoReverseMatch, reverse
from django.utils.translation import gettext_lazy as _

if TYPE_CHECKING:
    from django_stubs_ext import StrOrPromise


class Page(NamedTuple):
    """A page, by the name of its URL in the admin, and the permission that it needs."""

    word: StrOrPromise
    url_name: str
    permission: str
    parts: tuple[str, ...] = ()  # the URL names of lists that belong to it


class Entry(NamedTuple):
    """A page in the bar. `current`: the page that is shown is this one, or one below it."""

    word: StrOrPromise
    address: str
    current: bool


OVERVIEW = "overview"
_PAGES = (
    Page(_("Overview"), OVERVIEW, ""),
    Page(_("Jobs"), "jobqueue_job_changelist", "view_job"),
    Page(_("Queues"), "jobqueue_flowrule_changelist", "view_flowrule"),
    Page(_("Workers"), "jobqueue_worker_changelist", "view_worker"),
    Page(_("Dead letters"), "jobqueue_redrive_changelist", "view_redrive"),
    Page(_("Schedules"), "jobqueue_schedule_changelist", "view_schedule"),
    Page(_("Groups"), "jobqueue_jobgroup_changelist", "view_jobgroup"),
    Page(_("Outbox"), "jobqueue_outboxevent_changelist", "view_outboxevent"),
    Page(
        _("Locks"),
        "jobqueue_lockstat_changelist",
        "view_lockstat",
        ("jobqueue_lockrow_changelist", "jobqueue_mutexrow_changelist"),
    ),
    Page(_("Metrics"), "jobqueue_metrics", "view_job"),
    Page(_("Audit"), "jobqueue_auditevent_changelist", "view_auditevent"),
    Page(_("Settings"), "jobqueue_settings", "view_flowrule"),
)


def entries(request: HttpRequest) -> list[Entry]:
    """The pages that this user may see, those of the admin site that shows this page."""
    site = site_of(request)
    found = []
    for page in _PAGES:
        if page.permission and not request.user.has_perm(f"jobqueue.{page.permission}"):
            continue
        address = _address(site, page.url_name)
        if address:
            below = [address, *(_address(site, name) for name in page.parts)] if page.url_name != OVERVIEW else []
            current = request.path == address or any(one and request.path.startswith(one) for one in below)
            found.append(Entry(page.word, address, current))
    return found


def site_of(request: HttpRequest) -> str:
    """The name of the admin site that serves a request."""
    return request.resolver_match.namespace if request.resolver_match else "admin"


def _address(site: str, url_name: str) -> str:
    """Empty for a page that this site does not have."""
    try:
        if url_name == OVERVIEW:
            return reverse(f"{site}:app_list", kwargs={"app_label": "jobqueue"})
        return reverse(f"{site}:{url_name}")
    except NoReverseMatch:
        return ""
