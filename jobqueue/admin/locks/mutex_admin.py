"""The list of mutexes: which keys there are, and how often and when each was taken."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from django.contrib import admin
from django.db.models import Model, QuerySet
from django.db.models.expressions import Combinable
from django.http import HttpRequest
from django.utils.translation import gettext_lazy as _

from jobqueue.admin.locks.lists import KEY_CHARS, LockListAdmin
from jobqueue.admin.page.formatting import NOTHING, hint, label, moment, number, plain, relative
from jobqueue.admin.page.readonly import Facts, NewestFirst
from jobqueue.exceptions import JobQueueError
from jobqueue.locks.mutex_rows import encode
from jobqueue.models import MutexRow

if TYPE_CHECKING:
    from django_stubs_ext import WithAnnotations

    ShownMutex = WithAnnotations[MutexRow, Facts]


def _parts(text: str) -> list[Any]:
    """The parts of a key, as its row stores them; [] if the text is no key, or was cut because it was too long."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return []
    return found if isinstance(found, list) else []


class ByKey(NewestFirst):
    """In the order of the keys: the time of the last use has no index."""

    page_words = (_("First"), _("Previous"), _("Next"))

    def get_ordering(self, request: HttpRequest, queryset: QuerySet[Model]) -> list[str | Combinable]:
        return ["pk"]


@admin.register(MutexRow)
class MutexAdmin(LockListAdmin):
    """Mutexes. Only the server knows whether one is held, because a mutex is a lock of the server."""

    title = MutexRow._meta.verbose_name_plural
    note = _(
        "A mutex is held by a transaction and ends with it. A row does not tell whether it is held now: the page of "
        "the activity shows who waits for whom."
    )
    list_display = ("key", "times", "taken", "made")
    search_fields = ("lock_key",)
    search_help_text = _('Exact key; of several parts as a JSON list: ["refund", 42]')

    def get_changelist(self, request: HttpRequest, **kwargs: object) -> type[NewestFirst]:
        return ByKey

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Model], search_term: str
    ) -> tuple[QuerySet[Model], bool]:
        """The mutex of a key of one part, or of several as a JSON list."""
        if not search_term:
            return queryset, False
        keys = {search_term}
        for parts in ((search_term,), _parts(search_term)):
            try:
                keys.add(encode(tuple(parts)))
            except JobQueueError:
                continue
        return queryset.filter(pk__in=keys), False

    @admin.display(description=label(MutexRow, "lock_key"))
    def key(self, mutex: ShownMutex) -> str:
        """The key as it was given if it has one part, else its parts as a list."""
        parts = _parts(mutex.lock_key)
        text = str(parts[0]) if len(parts) == 1 else json.dumps(parts, ensure_ascii=False) if parts else mutex.lock_key
        return hint(plain(text, KEY_CHARS), plain(mutex.lock_key, KEY_CHARS))

    @admin.display(description=label(MutexRow, "takes"))
    def times(self, mutex: ShownMutex) -> str:
        return number(mutex.takes)

    @admin.display(description=label(MutexRow, "taken_at"))
    def taken(self, mutex: ShownMutex) -> str:
        if mutex.taken_at is None:
            return NOTHING
        return hint(relative(mutex.taken_at, mutex.now), moment(mutex.taken_at, mutex.now))

    @admin.display(description=label(MutexRow, "created_at"))
    def made(self, mutex: ShownMutex) -> str:
        return hint(relative(mutex.created_at, mutex.now), moment(mutex.created_at, mutex.now))
