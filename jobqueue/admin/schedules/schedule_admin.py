"""The list of schedules, the page of one, and the actions: run now, enable, disable, and take back a change."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from django import forms
from django.contrib import admin, messages
from django.contrib.admin.helpers import ActionForm
from django.db import Error
from django.db.models import F, Model, Q, QuerySet
from django.http import HttpRequest, HttpResponse
from django.utils.translation import gettext, ngettext, ngettext_lazy
from django.utils.translation import gettext_lazy as _

from jobqueue import schedules
from jobqueue.admin.page.formatting import plain
from jobqueue.admin.page.readonly import ConditionFilter, NewestFirst
from jobqueue.admin.page.verb_admin import VerbAdmin, apply, needs
from jobqueue.admin.schedules.columns import WORDS, ScheduleColumns, results_of, state_of, to_take_back
from jobqueue.admin.schedules.form import ARGUMENTS, TERMS, ScheduleForm
from jobqueue.base.validation import REASON_CHARS
from jobqueue.conf import load
from jobqueue.exceptions import DatabaseBusy, JobQueueError
from jobqueue.models import Schedule
from jobqueue.schedules import editing


class ReasonForm(ActionForm):
    """The form of the actions, with a field for the reason of disabling."""

    # Not max_length: Django would say "No action selected" of a reason that is too long.
    reason = forms.CharField(
        label=_("Reason:"), required=False, widget=forms.TextInput(attrs={"maxlength": REASON_CHARS})
    )


_ADDED = ngettext_lazy("%(n)d job was added.", "%(n)d jobs were added.", "n")
_ENABLED = ngettext_lazy(
    "%(n)d schedule was enabled; it fires from its next tick on.",
    "%(n)d schedules were enabled; they fire from their next ticks on.",
    "n",
)
_DISABLED = ngettext_lazy(
    "%(n)d schedule was disabled; its jobs that are there go on.",
    "%(n)d schedules were disabled; their jobs that are there go on.",
    "n",
)
_REVERTED = ngettext_lazy(
    "The change of %(n)d schedule was taken back.", "The changes of %(n)d schedules were taken back.", "n"
)


@admin.action(description=_("Run now (adds a job)"), permissions=["run"])
def run_now(model_admin: VerbAdmin, request: HttpRequest, queryset: QuerySet[Model]) -> None:
    """Add a job of each, also of those that are disabled."""

    def add(name: str, using: str) -> bool:
        return schedules.run_now(name, using=using) > 0

    verb = _verb(model_admin, request, add)
    apply(model_admin, request, queryset, "run now", verb, _ADDED, allowed=("enabled", "disabled"))


@admin.action(description=_("Enable"), permissions=["run"])
def enable(model_admin: VerbAdmin, request: HttpRequest, queryset: QuerySet[Model]) -> None:
    """Fire the ticks again, from the next one on."""

    def change(name: str, using: str) -> bool:
        return schedules.enable(name, using=using)

    apply(
        model_admin, request, queryset, "enable", _verb(model_admin, request, change), _ENABLED, allowed=("disabled",)
    )


@admin.action(description=_("Disable (needs a reason)"), permissions=["run"])
def disable(model_admin: VerbAdmin, request: HttpRequest, queryset: QuerySet[Model]) -> None:
    """Fire no ticks until somebody enables them."""
    reason = request.POST.get("reason", "").strip()
    if not 1 <= len(reason) <= REASON_CHARS:
        text = gettext("Nothing was disabled: give a reason of 1 to %(n)d characters.") % {"n": REASON_CHARS}
        model_admin.message_user(request, text, messages.ERROR)
        return

    def change(name: str, using: str) -> bool:
        return schedules.disable(name, reason=reason, using=using)

    named = f"disable: {plain(reason)}"
    apply(model_admin, request, queryset, named, _verb(model_admin, request, change), _DISABLED, allowed=("enabled",))


@admin.action(description=_("Take back the change by hand"), permissions=["change"])
def revert(model_admin: VerbAdmin, request: HttpRequest, queryset: QuerySet[Model]) -> None:
    """Put in force again what workers announce."""

    def change(name: str, using: str) -> bool:
        return editing.revert(name, by=request.user.get_username(), using=using)

    made = Q(edited=True) | Q(source=Schedule.Source.ADMIN)
    by_hand = queryset.filter(made).exclude(announced_digest="")
    if not by_hand.exists():
        text = gettext("No chosen schedule has a change that could be taken back.")
        model_admin.message_user(request, text, messages.WARNING)
        return
    allowed = ("enabled", "disabled", "retired")
    apply(model_admin, request, by_hand, "take back", _verb(model_admin, request, change), _REVERTED, allowed=allowed)


ALL = (run_now, enable, disable, revert)


def _verb(model_admin: VerbAdmin, request: HttpRequest, change: Callable[[str, str], bool]) -> Callable[..., bool]:
    """`change` of the schedule with an id; an error that concerns this schedule is said, and others go on."""

    def verb(row_id: int, *, using: str) -> bool:
        row = Schedule.objects.using(using).filter(pk=row_id).only("name", "retired_at").first()
        if row is None or (row.retired_at is not None and change.__name__ == "add"):
            return False
        try:
            return change(row.name, using)
        except DatabaseBusy:
            raise
        except JobQueueError as error:
            model_admin.message_user(request, plain(error), messages.ERROR)
            return False

    return verb


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


class ScheduleList(NewestFirst):
    """The list, with the results of the last jobs as `results`, for those who may see jobs."""

    def get_results(self, request: HttpRequest) -> None:
        super().get_results(request)
        rows: Any = list(self.result_list)
        if request.user.has_perm("jobqueue.view_job"):
            ids = [row.last_job_id for row in rows if row.last_job_id is not None]
            results = results_of(ids, load().database)
            for row in rows:
                row.results = results
        self.result_list = rows


@admin.register(Schedule)
class ScheduleAdmin(ScheduleColumns, VerbAdmin):
    """Schedules. Unlike jobs they may be added and changed here, by schedules.editing."""

    form = ScheduleForm
    list_display = ("schedule_name", "words", "task_short", "next_tick", "last_tick", "last_result", "state")
    list_class = ScheduleList
    list_display_links = ("schedule_name",)
    list_filter = (StateFilter, SourceFilter)
    order = ("name", "pk")
    actions = ALL
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

    def get_object(self, request: HttpRequest, object_id: str, from_field: str | None = None) -> Model | None:
        """The schedule; for users who may see jobs its page shows the results of its jobs."""
        row: Any = super().get_object(request, object_id, from_field)
        if row is not None:
            row.shows_jobs = request.user.has_perm("jobqueue.view_job")
        found: Model | None = row
        return found

    def has_add_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm("jobqueue.add_schedule")

    def has_change_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        # What is saved for a retired schedule would not fire, so schedules.editing refuses it.
        retired = isinstance(obj, Schedule) and obj.retired_at is not None
        return request.user.has_perm("jobqueue.change_schedule") and not retired

    def find(self, request: HttpRequest, rows: QuerySet[Any], term: str) -> QuerySet[Any]:
        """The schedules with the term in their name or task: there are few of them."""
        return rows.filter(Q(name__icontains=term) | Q(task__icontains=term))

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
