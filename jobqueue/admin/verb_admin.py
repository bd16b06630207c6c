"""Admin pages whose rows have verbs: actions in the list, buttons on the page, a permission for each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.contrib.admin.models import CHANGE, LogEntry
from django.contrib.contenttypes.models import ContentType
from django.core.exceptions import SuspiciousOperation
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponseRedirect
from django.urls import reverse

from jobqueue.admin.readonly import ReadOnlyAdmin

LOG_BATCH = 100


class VerbAdmin(ReadOnlyAdmin):
    """Rows with an integer key, verbs, and content that only jobqueue.view_payload shows."""

    #: the fieldset with the content, shown second, and the columns it is read from
    content: Any = None
    content_columns: tuple[str, ...] = ()
    #: verb -> what its button says
    short: Mapping[str, Any] = {}

    def verbs_for(self, row: Any) -> tuple[str, ...]:
        """The verbs that can change this row now; the functions they call decide again."""
        raise NotImplementedError

    def words_of(self, rows: QuerySet[Any]) -> list[tuple[int, str]]:
        """The key and, for the history, the state of each of these rows."""
        raise NotImplementedError

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        """The content is not even read for those who may not see it."""
        rows: QuerySet[Any] = super().get_queryset(request)
        return rows if self.shows_content(request) else rows.defer(*self.content_columns)

    def get_fieldsets(self, request: HttpRequest, obj: Any = None) -> Any:
        """With the content for those who may see it."""
        own: Any = self.fieldsets
        return (own[0], self.content, *own[1:]) if self.shows_content(request) else own

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        """All of them."""
        return [name for _title, options in self.get_fieldsets(request, obj) for name in options["fields"]]

    def shows_content(self, request: HttpRequest) -> bool:
        """jobqueue.view_payload"""
        return request.user.has_perm("jobqueue.view_payload")

    def has_retry_permission(self, request: HttpRequest) -> bool:
        """jobqueue.retry_job"""
        return request.user.has_perm("jobqueue.retry_job")

    def has_discard_permission(self, request: HttpRequest) -> bool:
        """jobqueue.discard_job"""
        return request.user.has_perm("jobqueue.discard_job")

    def change_view(self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: Any = None) -> Any:
        """The page, with a button for each verb this user may use."""
        mine = {"permitted": list(self.get_actions(request))}
        return super().change_view(request, object_id, form_url, mine | (extra_context or {}))

    def render_change_form(self, request: HttpRequest, context: Any, *args: Any, **kwargs: Any) -> Any:
        """Offer the verbs that can change this row now."""
        row = context.get("original")
        can = self.verbs_for(row) if row is not None else ()
        context["verbs"] = [(name, self.short[name]) for name in can if name in context["permitted"]]
        return super().render_change_form(request, context, *args, **kwargs)

    def response_action(self, request: HttpRequest, queryset: QuerySet[Any], *args: Any, **kwargs: Any) -> Any:
        """Do it; from a row's page, go back there."""
        chosen = request.POST.getlist(ACTION_CHECKBOX_NAME)
        if not all(text.isascii() and text.isdigit() and len(text) < 19 for text in chosen):
            raise SuspiciousOperation("a selected id is not a number")
        response = super().response_action(request, queryset, *args, **kwargs)
        if response is not None and "jobqueue_page" in request.POST and len(chosen) == 1:
            page = f"{self.admin_site.name}:{self.opts.app_label}_{self.opts.model_name}_change"
            return HttpResponseRedirect(reverse(page, args=chosen))
        return response

    def log_verb(self, request: HttpRequest, changed: Sequence[tuple[int, str]]) -> None:
        """Who did what to which row and in which state it was, in Django's own history."""
        kind = ContentType.objects.get_for_model(self.model, for_concrete_model=False).pk
        entries = [
            LogEntry(
                user_id=int(request.user.pk or 0),
                content_type_id=kind,
                object_id=str(row_id),
                object_repr=self.row_name(row_id),
                action_flag=CHANGE,
                change_message=what,
            )
            for row_id, what in changed
        ]
        LogEntry.objects.bulk_create(entries, batch_size=LOG_BATCH)
