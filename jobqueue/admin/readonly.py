"""What the admin pages of our tables share: no editing, no counting of big tables, the queue's own database."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

from django.contrib import admin
from django.core.paginator import Paginator
from django.db.models import QuerySet
from django.http import HttpRequest

from jobqueue.conf import load
from jobqueue.db.clock import UtcNow

if TYPE_CHECKING:
    _ModelAdmin = admin.ModelAdmin[Any]
    _Paginator = Paginator[Any]
else:
    _ModelAdmin, _Paginator = admin.ModelAdmin, Paginator

#: no page counts or pages further than this; COUNT(*) and OFFSET cost what they pass over
COUNT_CAP = 10_000


class CappedPaginator(_Paginator):
    """Counts up to COUNT_CAP and no further."""

    @cached_property
    def count(self) -> int:
        """The number of rows, or COUNT_CAP when there are more."""
        rows: Any = self.object_list
        return int(rows.order_by().values("pk")[:COUNT_CAP].count())


class ReadOnlyAdmin(_ModelAdmin):
    """Rows can be looked at; verbs are actions."""

    paginator = CappedPaginator
    show_full_result_count = False
    list_per_page = 50
    list_max_show_all = 0
    sortable_by = ()
    list_display_links: Any = ("id",)
    change_list_template = "admin/jobqueue/change_list.html"

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        """The rows on the queue's database, with the database's time as `now`."""
        rows: QuerySet[Any] = super().get_queryset(request).using(load().database).annotate(now=UtcNow())
        return rows

    def has_add_permission(self, request: HttpRequest) -> bool:
        """Jobs come from enqueue()."""
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """State changes through the actions only."""
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Rows go by pruning."""
        return False

    def changelist_view(self, request: HttpRequest, extra_context: Any = None) -> Any:
        """The list, with the cap for its note."""
        return super().changelist_view(request, {**(extra_context or {}), "count_cap": COUNT_CAP})
