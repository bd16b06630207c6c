"""The list of schedules, the page of a schedule, and the form that adds one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django import forms
from django.contrib import admin
from django.db import Error
from django.db.models import F, Model, Q, QuerySet
from django.db.models.expressions import Combinable
from django.http import HttpRequest, HttpResponse
from django.utils.translation import gettext, ngettext
from django.utils.translation import gettext_lazy as _

from jobqueue.admin.page.formatting import plain
from jobqueue.admin.page.readonly import ConditionFilter, NewestFirst
from jobqueue.admin.page.verb_admin import VerbAdmin, needs
from jobqueue.admin.schedules import actions as schedule_actions
from jobqueue.admin.schedules.actions import ReasonForm
from jobqueue.admin.schedules.columns import WORDS, ScheduleColumns, state_of, to_take_back
from jobqueue.admin.schedules.form import ARGUMENTS, TERMS, ScheduleForm
from jobqueue.conf import load
from jobqueue.exceptions import DatabaseBusy, JobQueueError
from jobqueue.models import Schedule
from jobqueue.schedules import editing
from jobqueue.schedules.by_hand import REASON_CHARS

#: the attribute of a request whose write was refused
_REFUSED = "jobqueue_refused"
_INPUTS = ("name", "task", *TERMS, *ARGUMENTS)
_DEFINED = ("task_name", "expression", "zone", "on_missed", "on_overlap", "jitter", "first_at", "until_at")


class StateFilter(ConditionFilter):
    """The states that the list shows."""

    labels = WORDS | {"edited": _("changed by hand"), "differs": _("the code differs")}
    conditions: Mapping[str, Mapping[str, object]] = {
        "enabled": {"enabled": True, "retired_at": None},
        "disabled": {"enabled": False, "retired_at": None},
        "retired": {"retired_at__isnull": False},
        "edited": {"edited": True, "source__in": [Schedule.Source.CODE, Schedule.Source.SETTINGS]},
        "differs": {},
    }

    def queryset(self, request: HttpRequest, queryset: QuerySet[Model]) -> QuerySet[Model]:
        rows = super().queryset(request, queryset)
        if self.value() != "differs":
            return rows
        return rows.exclude(announced_digest="").exclude(announced_digest=F("digest"))


class SourceFilter(ConditionFilter):
    """Where schedules come from."""

    title = _("source")
    parameter_name = "source"
    labels = dict(Schedule.Source.choices)
    conditions = {str(source): {"source": source} for source in Schedule.Source}


class ByName(NewestFirst):
    """Schedules by name, in the order of the unique index."""

    page_words = (_("First"), _("Previous"), _("Next"))

    def get_ordering(self, request: HttpRequest, queryset: QuerySet[Model]) -> list[str | Combinable]:
        return ["name", "pk"]


@admin.register(Schedule)
class ScheduleAdmin(ScheduleColumns, VerbAdmin):
    """Schedules. Unlike jobs they may be added and changed here, by schedules.editing."""

    form = ScheduleForm
    list_display = ("schedule_name", "words", "task_short", "next_tick", "last_tick", "state")
    list_display_links = ("schedule_name",)
    list_filter = (StateFilter, SourceFilter)
    actions = schedule_actions.ALL
    action_form = ReasonForm
    search_fields = ("name", "task")
    search_help_text = _("Part of the name or of the task")
    content = (_("Arguments"), {"fields": ("args_json", "kwargs_json")})
    button_labels = {
        "run_now": _("Run now"),
        "enable": _("Enable"),
        "disable": _("Disable"),
        "revert": _("Take back the change"),
    }
    state_words = WORDS
    has_run_permission = needs("run_schedule")

    def has_add_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm("jobqueue.add_schedule")

    def has_change_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        # What is saved for a retired schedule would not fire, so schedules.editing refuses it.
        retired = isinstance(obj, Schedule) and obj.retired_at is not None
        return request.user.has_perm("jobqueue.change_schedule") and not retired

    def get_changelist(self, request: HttpRequest, **kwargs: object) -> type[NewestFirst]:
        return ByName

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Model], search_term: str
    ) -> tuple[QuerySet[Model], bool]:
        """The schedules with the term in their name or task: there are few of them."""
        term = search_term.strip()
        found = Q(name__icontains=term) | Q(task__icontains=term)
        return (queryset.filter(found) if term else queryset), False

    def get_fieldsets(self, request: HttpRequest, obj: Model | None = None) -> Any:
        """The state and the ticks; below them the definition, as a form for users who may change it."""
        if obj is None:
            return [
                (None, {"fields": ("name", "task")}),
                (_("When it ticks"), {"fields": TERMS}),
                (_("Arguments"), {"fields": ARGUMENTS}),
            ]
        state = ("schedule_name", "state", "words", "queue", "origin", "announced", "created", "updated")
        parts: list[Any] = [(None, {"fields": state}), (_("Ticks"), {"fields": ("next_ticks", "last_ticks")})]
        writes, shows = self.has_change_permission(request, obj), self.shows_content(request)
        parts.append((_("Definition"), {"fields": ("task", *TERMS) if writes else _DEFINED}))
        if shows:
            parts.append((_("Arguments"), {"fields": ARGUMENTS}) if writes else self.content)
        return parts

    def get_readonly_fields(self, request: HttpRequest, obj: Model | None = None) -> list[str]:
        return [name for name in super().get_readonly_fields(request, obj) if name not in _INPUTS]

    def label_of(self, row: Schedule) -> str:
        return str(row.name)

    def verbs_for(self, row: Schedule) -> tuple[str, ...]:
        """Those that change something."""
        verbs = ("run_now",) if row.retired_at is None else ()
        return (*verbs, *(("revert",) if to_take_back(row) else ()), "disable" if row.enabled else "enable")

    def states_of(self, rows: QuerySet[Schedule]) -> list[tuple[int, str]]:
        return [(row.pk, state_of(row)) for row in rows.only("enabled", "retired_at")]

    def unchanged(self, name: str, count: int) -> str:
        return ngettext("%(n)d schedule was left as it is.", "%(n)d schedules were left as they are.", count) % {
            "n": count
        }

    def add_view(
        self, request: HttpRequest, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        own = {"row_name": gettext("new schedule"), "title": gettext("New schedule")}
        return super().add_view(request, form_url, own | (extra_context or {}))

    def changeform_view(
        self,
        request: HttpRequest,
        object_id: str | None = None,
        form_url: str = "",
        extra_context: dict[str, Any] | None = None,
    ) -> HttpResponse:
        """The page; if a write is refused, the form again with what was typed and the reason."""
        try:
            return super().changeform_view(request, object_id, form_url, extra_context)
        except (Error, JobQueueError) as error:
            if request.method != "POST":
                raise
            busy = isinstance(error, (Error, DatabaseBusy))
            text = gettext("The database could not be written to. Nothing was changed; try again later.")
            setattr(request, _REFUSED, text if busy else plain(error))
        return super().changeform_view(request, object_id, form_url, extra_context)

    def get_form(
        self, request: HttpRequest, obj: Model | None = None, change: bool = False, **kwargs: Any
    ) -> type[forms.ModelForm[Any]]:
        """A class of this request, with the reason of a write that was refused."""
        kind: Any = super().get_form(request, obj, change, **kwargs)
        kind.refused = getattr(request, _REFUSED, "")
        found: type[forms.ModelForm[Any]] = kind
        return found

    def render_change_form(
        self, request: HttpRequest, context: dict[str, Any], *args: Any, **kwargs: Any
    ) -> HttpResponse:
        """Show a field for the reason beside the button that disables."""
        context |= {"reason_for": "disable", "reason_chars": REASON_CHARS}
        return super().render_change_form(request, context, *args, **kwargs)

    def save_model(self, request: HttpRequest, obj: Any, form: forms.ModelForm[Any], change: bool) -> None:
        """Write what the form says; whether it is enabled stays as it is."""
        assert isinstance(form, ScheduleForm)
        using, by = load().database, request.user.get_username()
        name = obj.name if change else form.cleaned_data["name"]
        kept = {"enabled": obj.enabled, "reason": obj.reason} if change else {}
        editing.save(name, *form.given(), by=by, using=using, **kept)
        row = Schedule.objects.using(using).get(name=name)
        obj.pk, obj.name = row.pk, row.name
