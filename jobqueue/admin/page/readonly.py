"""What all admin pages share: they edit nothing, never count a large table, and read the queue's own database."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from functools import cache, cached_property, partial, wraps
from typing import TYPE_CHECKING, Any, NamedTuple, TypedDict, cast

from django.contrib import admin
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.contrib.admin.models import LogEntry
from django.contrib.admin.options import IncorrectLookupParameters
from django.contrib.admin.views.main import ChangeList
from django.core.exceptions import SuspiciousOperation
from django.core.paginator import Paginator
from django.db.models import Model, QuerySet
from django.db.models.expressions import Combinable
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import URLPattern, reverse
from django.utils.formats import number_format
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.text import capfirst
from django.utils.translation import get_language, gettext
from django.utils.translation import gettext_lazy as _

from jobqueue.admin.page.addresses import id_of, on_site
from jobqueue.admin.page.formatting import StrOrPromise, plain
from jobqueue.admin.page.history import LOOKED_AT, among_newest
from jobqueue.admin.page.keyset import CURSOR, Keyset, Page
from jobqueue.admin.page.limited import limited
from jobqueue.admin.page.navigation import section_of
from jobqueue.conf import load
from jobqueue.db.clock import UtcNow

if TYPE_CHECKING:
    _ModelAdmin = admin.ModelAdmin[Model]
    _Paginator = Paginator[Model]
else:
    _ModelAdmin, _Paginator = admin.ModelAdmin, Paginator

#: pages count no more rows than this: COUNT(*) reads every row that it counts
COUNT_CAP = 2_000
NEWEST_FIRST = ("-pk",)
#: characters of a name in a title
LABEL_CHARS = 80


class Facts(TypedDict):
    """What pages read with a row: the database's time and, in a list with verbs, the end of the last error."""

    now: datetime
    error_tail: str | None


def check_selected(request: HttpRequest) -> list[str]:
    """The ids of the selected rows, each a number. Raises SuspiciousOperation for what no page has shown."""
    chosen = request.POST.getlist(ACTION_CHECKBOX_NAME)
    if any(id_of(text) is None for text in chosen):
        raise SuspiciousOperation("a selected id is not a number")
    return chosen


class CappedPaginator(_Paginator):
    """Counts up to COUNT_CAP rows."""

    @cached_property
    def count(self) -> int:
        rows = self.object_list
        assert isinstance(rows, QuerySet)
        return rows.order_by().values("pk")[:COUNT_CAP].count()


class NewestFirst(ChangeList):
    """A list that is always in the order of its admin: newest first, unless ReadOnlyAdmin.order is another one.

    It has no page numbers: a cursor leads to the rows before or behind a page, however many there are.
    """

    full_result_count: int | None
    #: there may be more rows than result_count
    is_at_least = False
    model_admin: ReadOnlyAdmin

    def get_ordering(self, request: HttpRequest, queryset: QuerySet[Model]) -> list[str | Combinable]:
        return [*self.model_admin.order]

    def get_queryset(self, request: HttpRequest, exclude_parameters: list[str | None] | None = None) -> QuerySet[Model]:
        # No filter; and the links of the filters lead to the first page.
        self.params.pop(CURSOR, None)
        self.filter_params.pop(CURSOR, None)
        rows: QuerySet[Model] = super().get_queryset(request, exclude_parameters)
        return rows.defer(*self.model_admin.list_defer)

    def get_results(self, request: HttpRequest) -> None:
        """Read and count one page, and offer no link "Show all"."""
        # Django's templates want one.
        self.paginator = self.model_admin.get_paginator(request, self.queryset, self.list_per_page)
        self.cursor = request.GET.get(CURSOR)
        page = self.read_page(request)
        self.result_list = page.rows
        self.page_links = self._links(page)
        self.page_num, self.show_all, self.can_show_all, self.multi_page = 1, False, False, False
        self.show_full_result_count, self.show_admin_actions = False, bool(page.rows)
        unfiltered = not self.query and not self.has_active_filters
        self.full_result_count = self.result_count if unfiltered else None

    def read_page(self, request: HttpRequest) -> Page:
        """The rows to show; also sets result_count, the number of rows of all pages up to COUNT_CAP."""
        self.result_count = self.paginator.count
        return self.keyset(request).page(self.queryset, self.cursor, self.list_per_page)

    def keyset(self, request: HttpRequest) -> Keyset:
        """The order of the rows."""
        return Keyset(self.model, self.get_ordering(request, self.queryset))

    def _links(self, page: Page) -> list[tuple[StrOrPromise, str, str]]:
        """(word, address, kind) of the links to other pages of the same filter."""
        by_age = self.model_admin.order == NEWEST_FIRST
        first, before, behind = (
            (_("Newest"), _("Newer"), _("Older")) if by_age else (_("First"), _("Previous"), _("Next"))
        )
        found: list[tuple[StrOrPromise, str, str]] = []
        if self.cursor is not None:
            found.append((first, self.get_query_string(), "first"))
        for word, cursor, kind in ((before, page.before, "prev"), (behind, page.behind, "next")):
            if cursor:
                found.append((word, self.get_query_string({CURSOR: cursor}), kind))
        return found

    def state_tabs(
        self, kind: type[ConditionFilter], figures: Mapping[str | None, str] | None = None
    ) -> list[tuple[StrOrPromise, str, str, bool]]:
        """(word, figure, address, whether it is chosen) of all rows, and of each choice of a filter."""
        name, counts = kind.parameter_name, figures or {}
        chosen = self.params.get(name)
        return [
            (word, counts.get(state, ""), self.get_query_string({name: state}), state == chosen)
            for state, word in ((None, _("all")), *((state, kind.labels[state]) for state in kind.conditions))
        ]

    @property
    def count_words(self) -> str:
        """The number of rows, such as "1,234 jobs", or "835+ jobs" where there may be more."""
        name = self.opts.verbose_name if self.result_count == 1 else self.opts.verbose_name_plural
        return f"{capped(self.result_count, self.result_count if self.is_at_least else None)} {name}"


def capped(count: int, cap: int | None = None) -> str:
    """A count that stopped at `cap`, by default COUNT_CAP, with its thousands apart."""
    text = str(number_format(count, force_grouping=True))
    return f"{text}+" if count >= (COUNT_CAP if cap is None else cap) else text


class ConditionFilter(admin.SimpleListFilter):
    """A filter with one condition for each choice."""

    title = _("state")
    parameter_name = "state"
    labels: Mapping[str, StrOrPromise]
    conditions: Mapping[str, Mapping[str, object]]

    def lookups(self, request: HttpRequest, model_admin: admin.ModelAdmin[Any]) -> list[tuple[str, StrOrPromise]]:
        return [(name, self.labels[name]) for name in self.conditions]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Model]) -> QuerySet[Model]:
        value = self.value()
        if value is None:
            return queryset
        if value not in self.conditions:
            # An unknown value must not mean "all": the next click may be an action on the listed rows.
            raise IncorrectLookupParameters
        return queryset.filter(**self.conditions[value])


class _Named(NamedTuple):
    """A row as its checkbox reads it."""

    pk: object
    name: str

    def __str__(self) -> str:
        return self.name


@cache
def _checkbox(language: str | None) -> SafeString:
    """Django's checkbox in a language, with places for the key and the name of a row.

    Django renders two templates for it, which was a sixth of the time of a list if done for each row.
    """
    places: Any = _Named("{0}", "{1}")
    return admin.ModelAdmin.action_checkbox(cast(Any, None), places)


class ReadOnlyAdmin(_ModelAdmin):
    """Shows rows; nothing can be added, changed or deleted. No SELECT of a page takes longer than PAGE_SECONDS."""

    paginator = CappedPaginator
    show_full_result_count = False
    # The counts beside the choices of a filter would read the whole table, each of them.
    show_facets = admin.ShowFacets.NEVER
    list_per_page = 50
    list_max_show_all = 0
    list_class: type[ChangeList] = NewestFirst
    #: whether blanks around a search count, as they do in a key that may be any text
    search_is_exact = False
    #: the order of the list, which an index has: any other one would read the whole table
    order: tuple[str, ...] = NEWEST_FIRST
    sortable_by = ()
    list_display_links: tuple[str, ...] | None = ("id",)
    #: large columns that the list does not read
    list_defer: tuple[str, ...] = ()
    change_list_template = "admin/jobqueue/change_list.html"

    class Media:
        css = {"all": ("jobqueue/admin.css",)}

    def get_paginator(self, request: HttpRequest, queryset: QuerySet[Any], per_page: int, *args: Any) -> Any:
        """Also of the history of a row, which Django would look for among all entries of the model."""
        rows = among_newest(queryset) if queryset.model is LogEntry else queryset
        return super().get_paginator(request, rows, per_page, *args)

    @property
    def urls(self) -> list[URLPattern]:
        """The pages; their links lead to pages of the same site."""
        return on_site(self.admin_site.name, self.get_urls(), partial(limited, site=self.admin_site))

    def get_queryset(self, request: HttpRequest) -> QuerySet[Model]:
        """The rows on the queue's database, with the database's time as `now`."""
        rows: QuerySet[Model] = super().get_queryset(request).using(load().database).annotate(now=UtcNow())
        return rows

    # With the attributes that some releases of Django draw the head of the column by.
    @wraps(admin.ModelAdmin.action_checkbox)
    def action_checkbox(self, obj: Model) -> SafeString:  # type: ignore[override]
        """The checkbox of a row, whose name may be a text of a program."""
        return format_html(_checkbox(get_language()), obj.pk, plain(obj))

    def get_changelist(self, request: HttpRequest, **kwargs: object) -> type[ChangeList]:
        return self.list_class

    def response_action(
        self, request: HttpRequest, queryset: QuerySet[Model], *args: Any, **kwargs: Any
    ) -> HttpResponse | None:
        """Run the action; return to the page of the row if the button on that page was used."""
        chosen = check_selected(request)
        response = super().response_action(request, queryset, *args, **kwargs)
        if response is not None and "jobqueue_page" in request.POST and len(chosen) == 1:
            page = f"{self.admin_site.name}:{self.opts.app_label}_{self.opts.model_name}_change"
            return HttpResponseRedirect(reverse(page, args=chosen))
        return response

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Model], search_term: str
    ) -> tuple[QuerySet[Model], bool]:
        term = search_term if self.search_is_exact else search_term.strip()
        return (self.find(request, queryset, term) if term else queryset), False

    def find(self, request: HttpRequest, rows: QuerySet[Any], term: str) -> QuerySet[Any]:
        """The rows that a search finds, by an index; all of them in a list without a search."""
        return rows

    def lookup_allowed(self, lookup: str, value: str, request: HttpRequest | None = None) -> bool:
        """Allow our own filters only: ?payload__contains= would reveal hidden content, and read every row."""
        return lookup in {getattr(kind, "parameter_name", None) for kind in self.list_filter}

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        # Django would ask to "select a job to view".
        own = {"title": self._section(request)}
        return super().changelist_view(request, own | (extra_context or {}))

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """The page of a row; its id stands in the breadcrumbs, and its title names it."""
        own = {"row_name": self.row_name(object_id), "section": self._section(request)}
        return super().change_view(request, object_id, form_url, own | (extra_context or {}))

    def render_change_form(
        self, request: HttpRequest, context: dict[str, Any], *args: Any, **kwargs: Any
    ) -> HttpResponse:
        """Title the page with the row: Django would call every page "View job"."""
        row = context.get("original")
        name = context.get("row_name", "")
        if row is not None and name:
            context |= {"title": self.title_of(row, name), "subtitle": None}
        return super().render_change_form(request, context, *args, **kwargs)

    def title_of(self, row: Any, name: str) -> str:
        """The title of the page of a row that has this name in breadcrumbs."""
        what = plain(self.label_of(row), LABEL_CHARS)
        return capfirst(f"{name}: {what}" if what else name)

    def label_of(self, row: Any) -> str:
        """What a title says of a row beside its id; other programs may have chosen it."""
        return ""

    def history_view(
        self, request: HttpRequest, object_id: str, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        name = self.row_name(object_id)
        looked_at = {"n": number_format(LOOKED_AT, force_grouping=True)}
        own = {
            "title": gettext("Change history: %s") % name,
            "row_name": name,
            "section": self._section(request),
            "note": gettext("Only the newest %(n)s changes of all rows are looked at.") % looked_at,
        }
        return super().history_view(request, object_id, own | (extra_context or {}))

    def _section(self, request: HttpRequest) -> str:
        """The name of the list: as in the bar, if it is there."""
        return section_of(request) or capfirst(str(self.opts.verbose_name_plural))

    def row_name(self, object_id: object) -> str:
        """The row in titles and breadcrumbs, such as "job 5"."""
        return f"{self.opts.verbose_name} {object_id}"
