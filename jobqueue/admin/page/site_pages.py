"""Pages of the admin site that show no model: their address, their place in the menu, and who may see them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from django.contrib.admin import AdminSite
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.urls import URLPattern, URLResolver, path, reverse

from jobqueue.admin.page.addresses import use_site
from jobqueue.admin.page.limited import limited

if TYPE_CHECKING:
    from django_stubs_ext import StrOrPromise

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
