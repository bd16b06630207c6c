"""What the pages about locks share: links to each other, and lists without pages of single rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from django.contrib.admin.utils import unquote
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils.text import capfirst
from django.utils.translation import gettext_lazy as _

from jobqueue.admin.page.addresses import list_address
from jobqueue.admin.page.readonly import ReadOnlyAdmin

if TYPE_CHECKING:
    from django_stubs_ext import StrOrPromise

KEY_CHARS = 255
_LISTS: dict[str, StrOrPromise] = {"lockstat": _("Activity"), "lockrow": _("Lease locks"), "mutexrow": _("mutexes")}


class Listed(NamedTuple):
    """A page about locks, and whether it is the one that is shown."""

    word: StrOrPromise
    address: str
    current: bool


def lists_of(request: HttpRequest, current: str) -> list[Listed]:
    """The pages that this user may see, by the names of their models."""
    return [
        Listed(word, list_address(name), name == current)
        for name, word in _LISTS.items()
        if request.user.has_perm(f"jobqueue.view_{name}")
    ]


class LockListAdmin(ReadOnlyAdmin):
    """A list of rows that have no pages of their own: a key may be any text, and the list tells all of it."""

    list_display_links = None
    actions = None
    change_list_template = "admin/jobqueue/lock_list.html"
    title: StrOrPromise | None = ""
    note: StrOrPromise = ""

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        lists = lists_of(request, str(self.opts.model_name))
        own = {"title": capfirst(str(self.title)), "note": self.note, "lists": lists}
        return super().changelist_view(request, own | (extra_context or {}))

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """The row in the list."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        return HttpResponseRedirect(list_address(str(self.opts.model_name), q=unquote(object_id)))

    def history_view(
        self, request: HttpRequest, object_id: str, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        return self.change_view(request, object_id)
