"""What the admin pages of our tables share: no editing, no counting of big tables, the queue's own database."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

from django.contrib import admin
from django.contrib.admin.views.main import ChangeList
from django.core.paginator import Paginator
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.translation import gettext

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


class NewestFirst(ChangeList):
    """A list in the order of the primary key only: sorting by anything else would read the whole table."""

    full_result_count: int | None

    def get_ordering(self, request: HttpRequest, queryset: QuerySet[Any]) -> list[Any]:
        """Whatever ?o= says."""
        return ["-pk"]

    def get_results(self, request: HttpRequest) -> None:
        """Never more than a page, and no link "Show all" where all is shown."""
        super().get_results(request)
        if not self.multi_page:
            # Django reads all rows where the count fits one page; since the count there may be many more.
            self.result_list = self.result_list[: self.list_per_page]
        if not self.query and not self.has_active_filters:
            self.full_result_count = self.result_count


class ReadOnlyAdmin(_ModelAdmin):
    """Rows can be looked at; verbs are actions."""

    paginator = CappedPaginator
    show_full_result_count = False
    # The counts beside the filters' choices would each read the whole table.
    show_facets = admin.ShowFacets.NEVER
    list_per_page = 50
    list_max_show_all = 0
    sortable_by = ()
    list_display_links: Any = ("id",)
    change_list_template = "admin/jobqueue/change_list.html"

    class Media:
        css = {"all": ("jobqueue/admin.css",)}

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        """The rows on the queue's database, with the database's time as `now`."""
        rows: QuerySet[Any] = super().get_queryset(request).using(load().database).annotate(now=UtcNow())
        return rows

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[ChangeList]:
        """The list's class."""
        return NewestFirst

    def lookup_allowed(self, lookup: str, value: Any, request: HttpRequest | None = None) -> bool:
        """Our own filters only: ?payload__contains= would tell what the page does not show, and read every row."""
        return lookup in {getattr(kind, "parameter_name", None) for kind in self.list_filter}

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

    def change_view(self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: Any = None) -> Any:
        """The page, named by its id: names come from other programs and may be long, or mislead."""
        mine = {"subtitle": self.row_name(object_id)}
        return super().change_view(request, object_id, form_url, mine | (extra_context or {}))

    def history_view(self, request: HttpRequest, object_id: str, extra_context: Any = None) -> Any:
        """Who did what, named as on the page."""
        name = self.row_name(object_id)
        mine = {"title": gettext("Change history: %s") % name, "row_name": name}
        return super().history_view(request, object_id, mine | (extra_context or {}))

    def row_name(self, object_id: object) -> str:
        """job 5, for titles and breadcrumbs."""
        return f"{self.opts.verbose_name} {object_id}"
