"""Admin pages whose rows have verbs: actions in the list, buttons on the page of a row, a permission for each verb."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from django.contrib.admin.models import CHANGE, LogEntry
from django.contrib.contenttypes.models import ContentType
from django.db.models import Model, QuerySet
from django.db.models.functions import Right
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse
from django.utils.translation import ngettext

from jobqueue.admin.page.readonly import NewestFirst, ReadOnlyAdmin, check_selected
from jobqueue.validation import KEY_BYTES

if TYPE_CHECKING:
    from django_stubs_ext import StrOrPromise

LOG_BATCH = 100
ERROR_TAIL_CHARS = 500


class VerbList(NewestFirst):
    """A list with the end of the last error as `error_tail`."""

    def get_queryset(self, request: HttpRequest, exclude_parameters: list[str | None] | None = None) -> QuerySet[Model]:
        rows: QuerySet[Model] = super().get_queryset(request, exclude_parameters)
        return self.shown(rows)

    def shown(self, rows: QuerySet[Model]) -> QuerySet[Model]:
        """`rows` with the columns that the list needs."""
        few = rows.defer(*self.model_admin.list_defer)
        found: QuerySet[Model] = few.annotate(error_tail=Right("last_error", ERROR_TAIL_CHARS))
        return found


def needs(permission: str) -> Callable[[VerbAdmin, HttpRequest], bool]:
    """A method that tells whether a user has this permission."""
    return lambda self, request: request.user.has_perm(f"jobqueue.{permission}")


class VerbAdmin(ReadOnlyAdmin):
    """Rows with an integer key, verbs, and content that only users with jobqueue.view_payload see."""

    #: the fieldset with the content, which is shown second, and the columns that it reads
    content: Any = None
    content_columns: tuple[str, ...] = ()
    #: verb -> label of its button
    button_labels: Mapping[str, StrOrPromise] = {}
    #: state, as states_of() gives it -> its word
    state_words: Mapping[str, StrOrPromise] = {}

    def verbs_for(self, row: Any) -> tuple[str, ...]:
        """The verbs that can change this row now; the functions they call check that again."""
        raise NotImplementedError

    def button_label(self, name: str, row: Any) -> StrOrPromise:
        """The label of the button for a verb on the page of this row."""
        return self.button_labels[name]

    def unchanged(self, name: str, count: int) -> str:
        """Why a verb has not changed `count` rows whose state allows it."""
        return ngettext(
            "%(n)d was not changed: its state has just changed.",
            "%(n)d were not changed: their states have just changed.",
            count,
        ) % {"n": count}

    def states_of(self, rows: QuerySet[Any]) -> list[tuple[int, str]]:
        """The primary key of each row, and its state for the history and for messages."""
        raise NotImplementedError

    def with_key(self, request: HttpRequest, rows: QuerySet[Any], key: bytes) -> QuerySet[Any]:
        """The rows with this key, found by an index."""
        raise NotImplementedError

    def get_changelist(self, request: HttpRequest, **kwargs: object) -> type[NewestFirst]:
        return VerbList

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Model], search_term: str
    ) -> tuple[QuerySet[Model], bool]:
        """Find a row by its id if the term is one, else rows by their key."""
        term = search_term.strip()
        if not term:
            return queryset, False
        if term.isascii() and term.isdigit() and len(term) < 19:
            by_id = queryset.filter(pk=int(term))
            if by_id.exists():
                return by_id, False
        key = term.encode("utf-8", "replace")
        return queryset.none() if len(key) > KEY_BYTES else self.with_key(request, queryset, key), False

    def get_queryset(self, request: HttpRequest) -> QuerySet[Model]:
        """The rows; the content is not even read for users who may not see it."""
        rows = super().get_queryset(request)
        return rows if self.shows_content(request) else rows.defer(*self.content_columns)

    def get_fieldsets(self, request: HttpRequest, obj: Model | None = None) -> Any:
        own: Any = self.fieldsets
        return (own[0], self.content, *own[1:]) if self.shows_content(request) else own

    def get_readonly_fields(self, request: HttpRequest, obj: Model | None = None) -> list[str]:
        return [name for _title, options in self.get_fieldsets(request, obj) for name in options["fields"]]

    def shows_content(self, request: HttpRequest) -> bool:
        """Whether this user may see payloads and results."""
        return request.user.has_perm("jobqueue.view_payload")

    has_retry_permission = needs("retry_job")
    has_discard_permission = needs("discard_job")

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        own = {"permitted": list(self.get_actions(request))}
        return super().change_view(request, object_id, form_url, own | (extra_context or {}))

    def render_change_form(
        self, request: HttpRequest, context: dict[str, Any], *args: Any, **kwargs: Any
    ) -> HttpResponse:
        """Show a button for each verb that can change this row now and that this user may use."""
        row = context.get("original")
        verbs = self.verbs_for(row) if row is not None else ()
        context["verbs"] = [(name, self.button_label(name, row)) for name in verbs if name in context["permitted"]]
        return super().render_change_form(request, context, *args, **kwargs)

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

    def log_verb(self, request: HttpRequest, changed: Sequence[tuple[int, str]]) -> None:
        """Record in Django's history which rows this user changed, each with a text."""
        kind = ContentType.objects.get_for_model(self.model, for_concrete_model=False).pk
        entries = [
            LogEntry(
                user_id=request.user.pk or 0,
                content_type_id=kind,
                object_id=str(row_id),
                object_repr=self.row_name(row_id),
                action_flag=CHANGE,
                change_message=what,
            )
            for row_id, what in changed
        ]
        LogEntry.objects.bulk_create(entries, batch_size=LOG_BATCH)
