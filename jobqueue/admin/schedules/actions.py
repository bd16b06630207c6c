"""The admin actions on schedules: run now, enable, disable, and take back a change that was made by hand."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from django import forms
from django.contrib import admin, messages
from django.contrib.admin.helpers import ActionForm
from django.db.models import Model, Q, QuerySet
from django.http import HttpRequest
from django.utils.translation import gettext, ngettext
from django.utils.translation import gettext_lazy as _

from jobqueue import schedules
from jobqueue.admin.page.apply import Changed, apply
from jobqueue.admin.page.formatting import plain
from jobqueue.admin.page.verb_admin import VerbAdmin
from jobqueue.exceptions import DatabaseBusy, JobQueueError
from jobqueue.models import Schedule
from jobqueue.schedules import editing
from jobqueue.schedules.by_hand import REASON_CHARS


class ReasonForm(ActionForm):
    """The form of the actions, with a field for the reason of disabling."""

    # Not max_length: Django would say "No action selected" of a reason that is too long.
    reason = forms.CharField(
        label=_("Reason:"), required=False, widget=forms.TextInput(attrs={"maxlength": REASON_CHARS})
    )


@admin.action(description=_("Run now (adds a job)"), permissions=["run"])
def run_now(model_admin: VerbAdmin, request: HttpRequest, queryset: QuerySet[Model]) -> None:
    """Add a job of each, also of those that are disabled."""

    def add(name: str, using: str) -> bool:
        return schedules.run_now(name, using=using) > 0

    verb = _verb(model_admin, request, add)
    apply(model_admin, request, queryset, "run now", verb, _added, allowed=("enabled", "disabled"))


@admin.action(description=_("Enable"), permissions=["run"])
def enable(model_admin: VerbAdmin, request: HttpRequest, queryset: QuerySet[Model]) -> None:
    """Fire the ticks again, from the next one on."""

    def change(name: str, using: str) -> bool:
        return schedules.enable(name, using=using)

    apply(
        model_admin, request, queryset, "enable", _verb(model_admin, request, change), _enabled, allowed=("disabled",)
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
    apply(model_admin, request, queryset, named, _verb(model_admin, request, change), _disabled, allowed=("enabled",))


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
    apply(model_admin, request, by_hand, "take back", _verb(model_admin, request, change), _reverted, allowed=allowed)


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


def _added(changed: Changed) -> Iterator[str]:
    yield ngettext("%(n)d job was added.", "%(n)d jobs were added.", len(changed)) % {"n": len(changed)}


def _enabled(changed: Changed) -> Iterator[str]:
    yield ngettext(
        "%(n)d schedule was enabled; it fires from its next tick on.",
        "%(n)d schedules were enabled; they fire from their next ticks on.",
        len(changed),
    ) % {"n": len(changed)}


def _disabled(changed: Changed) -> Iterator[str]:
    yield ngettext(
        "%(n)d schedule was disabled; its jobs that are there go on.",
        "%(n)d schedules were disabled; their jobs that are there go on.",
        len(changed),
    ) % {"n": len(changed)}


def _reverted(changed: Changed) -> Iterator[str]:
    yield ngettext(
        "The change of %(n)d schedule was taken back.", "The changes of %(n)d schedules were taken back.", len(changed)
    ) % {"n": len(changed)}
