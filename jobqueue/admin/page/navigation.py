"""The menu: a bar with the pages of this app in the order of their use, and pages of the site that show no model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from django.contrib.admin import AdminSite
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.urls import NoReverseMatch, URLPattern, URLResolver, path, reverse
from django.utils.translation import gettext_lazy as _

from jobqueue.admin.page.addresses import use_site
from jobqueue.admin.page.formatting import StrOrPromise
from jobqueue.admin.page.limited import limited


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


def section_of(request: HttpRequest) -> str:
    """The word in the bar of the page that is shown, or of the one above it; "" for lists that are not in the bar."""
    site = site_of(request)
    for page in _PAGES:
        address = _address(site, page.url_name) if page.url_name != OVERVIEW else ""
        if address and request.path.startswith(address):
            return str(page.word)
    return ""


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


_APP = "jobqueue"


@dataclass(frozen=True, slots=True)
class SitePage:
    """A page at jobqueue/NAME/ of an admin site, with the URL name jobqueue_NAME."""

    name: str
    title: StrOrPromise
    permission: str  # who may see it, such as "jobqueue.view_flowrule"
    view: Callable[[HttpRequest, AdminSite], HttpResponse]

    def add_to(self, site: AdminSite) -> None:
        """Serve the page on `site`, and name it in the menu of those who may see it. Call it once for a site.

        A site's own methods are kept: a project may have a site of its own, which a ModelAdmin cannot give pages
        outside of its model.
        """
        urls, menu = site.get_urls, site.get_app_list

        def get_urls() -> list[URLPattern | URLResolver]:
            serve = limited(site.admin_view(self._serve(site)), site)
            own = path(f"{_APP}/{self.name}/", serve, name=f"{_APP}_{self.name}")
            return [own, *urls()]

        def get_app_list(request: HttpRequest, app_label: str | None = None) -> list[Any]:
            apps: list[Any] = menu(request, app_label)
            if request.user.has_perm(self.permission):
                for app in apps:
                    if app["app_label"] == _APP:
                        app["models"].append(self._entry(site))
            return apps

        site.get_urls = get_urls  # type: ignore[method-assign]
        site.get_app_list = get_app_list  # type: ignore[method-assign]

    def _serve(self, site: AdminSite) -> Callable[[HttpRequest], HttpResponse]:
        def serve(request: HttpRequest) -> HttpResponse:
            if not request.user.has_perm(self.permission):
                raise PermissionDenied
            use_site(site.name)
            return self.view(request, site)

        return serve

    def _entry(self, site: AdminSite) -> dict[str, Any]:
        """The entry as Django's templates of menus read it."""
        return {
            "name": self.title,
            "object_name": self.name,
            "perms": {"add": False, "change": False, "delete": False, "view": True},
            "admin_url": reverse(f"{site.name}:{_APP}_{self.name}"),
            "add_url": None,
            "view_only": True,
        }
