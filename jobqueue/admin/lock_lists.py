"""The lists of lease locks and of mutexes. All of it only shows."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from django.contrib import admin
from django.contrib.admin.utils import unquote
from django.core.exceptions import PermissionDenied
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils.text import capfirst
from django.utils.translation import gettext_lazy as _

from jobqueue.admin.page.addresses import list_address
from jobqueue.admin.page.formatting import (
    StrOrPromise,
    ago_of,
    badge,
    hint,
    label,
    name_of,
    number,
    plain,
)
from jobqueue.admin.page.navigation import Entry
from jobqueue.admin.page.readonly import ConditionFilter, Facts, ReadOnlyAdmin
from jobqueue.db.clock import UtcNow
from jobqueue.exceptions import JobQueueError
from jobqueue.locks.mutex_rows import encode
from jobqueue.models import LockRow, MutexRow

if TYPE_CHECKING:
    from django_stubs_ext import WithAnnotations

    ShownLock = WithAnnotations[LockRow, Facts]
    ShownMutex = WithAnnotations[MutexRow, Facts]
else:
    ShownLock, ShownMutex = LockRow, MutexRow

KEY_CHARS = 255
_LISTS: dict[str, StrOrPromise] = {"lockstat": _("Activity"), "lockrow": _("Lease locks"), "mutexrow": _("mutexes")}


def lists_of(request: HttpRequest, current: str) -> list[Entry]:
    """The pages that this user may see, by the names of their models."""
    return [
        Entry(word, list_address(name), name == current)
        for name, word in _LISTS.items()
        if request.user.has_perm(f"jobqueue.view_{name}")
    ]


class LockListAdmin(ReadOnlyAdmin):
    """A list of rows that have no pages of their own: a key may be any text, and the list tells all of it."""

    list_display_links = None
    search_is_exact = True
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


LABELS: dict[str, StrOrPromise] = {"held": _("held now"), "expired": _("expired"), "free": _("free")}
_BADGES = {"held": "running", "expired": "expired", "free": "canceled"}


def state_of(lock: ShownLock) -> str:
    """A key of LABELS: "expired" if its time is over and its holder has not released it."""
    if lock.owner_token is None:
        return "free"
    return "held" if lock.expires_at > lock.now else "expired"


class LockStateFilter(ConditionFilter):
    """Filter locks into held and expired by the database's clock."""

    labels = LABELS
    conditions = {
        "held": {"expires_at__gt": UtcNow(), "owner_token__isnull": False},
        "expired": {"expires_at__lte": UtcNow(), "owner_token__isnull": False},
        "free": {"owner_token__isnull": True},
    }


@admin.register(LockRow)
class LockAdmin(LockListAdmin):
    """Lease locks. No button takes a lock from its holder, because no function of the product does."""

    title = _("Lease locks")
    note = _(
        "A lease lock ends when its holder releases it, and at the latest at the time shown here. It cannot be taken "
        "from its holder, who would work on without it. The rows of locks that have ended are deleted after a while."
    )
    list_display = ("key", "state", "holder", "fence", "since", "until")
    list_filter = (LockStateFilter,)
    # Held locks come first. PostgreSQL has no such index and sorts the rows; a sweep deletes those that have ended, so
    # they are few.
    order = ("-expires_at", "-pk")
    search_fields = ("lock_key",)
    search_help_text = _("The exact key")
    holder = name_of(LockRow, "owner")
    since, until = ago_of(LockRow, "acquired_at"), ago_of(LockRow, "expires_at")

    def find(self, request: HttpRequest, rows: QuerySet[Any], term: str) -> QuerySet[Any]:
        return rows.filter(pk=term)

    @admin.display(description=label(LockRow, "lock_key"))
    def key(self, lock: ShownLock) -> str:
        return plain(lock.lock_key, KEY_CHARS)

    @admin.display(description=_("state"))
    def state(self, lock: ShownLock) -> str:
        return badge(_BADGES[state_of(lock)], str(LABELS[state_of(lock)]))


def _parts(text: str) -> list[Any]:
    """The parts of a key, as its row stores them; [] if the text is no key, or was cut because it was too long."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return []
    return found if isinstance(found, list) else []


@admin.register(MutexRow)
class MutexAdmin(LockListAdmin):
    """Mutexes. Only the server knows whether one is held, because a mutex is a lock of the server."""

    title = MutexRow._meta.verbose_name_plural
    note = _(
        "A mutex is held by a transaction and ends with it. A row does not tell whether it is held now: the page of "
        "the activity shows who waits for whom."
    )
    list_display = ("key", "times", "taken", "made")
    # The time of the last use has no index.
    order = ("pk",)
    search_fields = ("lock_key",)
    search_help_text = _('Exact key; of several parts as a JSON list: ["refund", 42]')
    taken, made = ago_of(MutexRow, "taken_at"), ago_of(MutexRow, "created_at")

    def find(self, request: HttpRequest, rows: QuerySet[Any], term: str) -> QuerySet[Any]:
        """The mutex of a key of one part, or of several as a JSON list."""
        keys = {term}
        for parts in ((term,), _parts(term)):
            try:
                keys.add(encode(tuple(parts)))
            except JobQueueError:
                continue
        return rows.filter(pk__in=keys)

    @admin.display(description=label(MutexRow, "lock_key"))
    def key(self, mutex: ShownMutex) -> str:
        """The key as it was given if it has one part, else its parts as a list."""
        parts = _parts(mutex.lock_key)
        text = str(parts[0]) if len(parts) == 1 else json.dumps(parts, ensure_ascii=False) if parts else mutex.lock_key
        return hint(plain(text, KEY_CHARS), plain(mutex.lock_key, KEY_CHARS))

    @admin.display(description=label(MutexRow, "takes"))
    def times(self, mutex: ShownMutex) -> str:
        return number(mutex.takes)
