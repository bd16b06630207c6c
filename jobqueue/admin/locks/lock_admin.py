"""The list of lease locks: who holds which key until when."""

from __future__ import annotations

from typing import TYPE_CHECKING

from django.contrib import admin
from django.db.models import Model, QuerySet
from django.db.models.expressions import Combinable
from django.http import HttpRequest
from django.utils.translation import gettext_lazy as _

from jobqueue.admin.locks.lists import KEY_CHARS, LockListAdmin
from jobqueue.admin.page.formatting import badge, hint, label, moment, name_of, plain, relative
from jobqueue.admin.page.readonly import ConditionFilter, Facts, NewestFirst
from jobqueue.db.clock import UtcNow
from jobqueue.models import LockRow

if TYPE_CHECKING:
    from django_stubs_ext import StrOrPromise, WithAnnotations

    ShownLock = WithAnnotations[LockRow, Facts]

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


class LastToEndFirst(NewestFirst):
    """In the order of the index on expires_at: held locks come first. PostgreSQL has no such index and sorts the
    rows; a sweep deletes those that have ended, so they are few.
    """

    page_words = (_("First"), _("Previous"), _("Next"))

    def get_ordering(self, request: HttpRequest, queryset: QuerySet[Model]) -> list[str | Combinable]:
        return ["-expires_at", "-pk"]


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
    search_fields = ("lock_key",)
    search_help_text = _("The exact key")
    holder = name_of(LockRow, "owner")

    def get_changelist(self, request: HttpRequest, **kwargs: object) -> type[NewestFirst]:
        return LastToEndFirst

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Model], search_term: str
    ) -> tuple[QuerySet[Model], bool]:
        return (queryset.filter(pk=search_term) if search_term else queryset), False

    @admin.display(description=label(LockRow, "lock_key"))
    def key(self, lock: ShownLock) -> str:
        return plain(lock.lock_key, KEY_CHARS)

    @admin.display(description=_("state"))
    def state(self, lock: ShownLock) -> str:
        return badge(_BADGES[state_of(lock)], str(LABELS[state_of(lock)]))

    @admin.display(description=label(LockRow, "acquired_at"))
    def since(self, lock: ShownLock) -> str:
        return hint(relative(lock.acquired_at, lock.now), moment(lock.acquired_at, lock.now))

    @admin.display(description=label(LockRow, "expires_at"))
    def until(self, lock: ShownLock) -> str:
        return hint(relative(lock.expires_at, lock.now), moment(lock.expires_at, lock.now))
