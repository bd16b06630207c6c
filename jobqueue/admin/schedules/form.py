"""The form that adds and changes a schedule."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from django import forms
from django.conf import settings
from django.utils import timezone
from django.utils.text import capfirst
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from jobqueue.admin.page.fields import WIDE, ArgumentsField, MomentField, with_secrets
from jobqueue.admin.page.formatting import StrOrPromise, plain
from jobqueue.base.compat import AnyTask
from jobqueue.conf import load
from jobqueue.exceptions import InvalidValue, JobQueueError, WrongSettings
from jobqueue.masking import has_mask, mask_value
from jobqueue.models import Schedule
from jobqueue.schedules.declaring import MISSED_LIMIT, MISSED_LIMIT_MAX, NAME_CHARS, Terms, check_arguments, check_name
from jobqueue.schedules.declaring import check_terms as terms_of
from jobqueue.schedules.definitions import Definition, define, from_json
from jobqueue.schedules.listing import arguments_of
from jobqueue.schedules.timing import CRON_CHARS
from jobqueue.tasks import registry

if TYPE_CHECKING:
    _ModelForm = forms.ModelForm[Any]
else:
    _ModelForm = forms.ModelForm

#: fields of the form, in their order; the arguments are content
TERMS = ("cron", "every", "timezone", "missed", "missed_limit", "overlap", "jitter_seconds", "start_at", "end_at")
ARGUMENTS = ("args", "kwargs")
MISSED_WORDS: dict[str, StrOrPromise] = {
    "latest": _("fire the latest one"),
    "all": _("fire all, the newest first up to the limit"),
    "skip": _("fire none"),
}
OVERLAP_WORDS: dict[str, StrOrPromise] = {
    "allow": _("fire all the same"),
    "skip": _("do not fire"),
    "queue": _("fire when that job has ended"),
}
UNREADABLE = _("A newer version of the package has written it; this process cannot read it.")
_UNITS = {"d": 86400, "h": 3600, "m": 60}
#: values that a widget shows less exactly than they are stored
_ROUNDED = ("every", "jitter_seconds", "start_at", "end_at")


def duration(seconds: float) -> str:
    """A duration as its field takes it, such as "15m" or "90s"."""
    for unit, size in _UNITS.items():
        if seconds and seconds % size == 0:
            return f"{seconds / size:.0f}{unit}"
    return f"{seconds:.3f}".rstrip("0").rstrip(".") + "s"


def definition_of(row: Schedule) -> Definition | None:
    """What is in force; None if a newer version of the package has written it."""
    try:
        return from_json(row.definition)
    except InvalidValue:
        return None


class ScheduleForm(_ModelForm):
    """Its values are those of @schedule. Call given() after is_valid()."""

    #: why the write of these values was refused; the page then shows them again
    refused = ""

    name = forms.CharField(
        label=_("name"),
        max_length=NAME_CHARS,
        widget=forms.TextInput(attrs=WIDE),
        help_text=_("It cannot be changed later."),
    )
    task = forms.ChoiceField(
        label=_("task"), help_text=_("Its queue, priority and other options are those that the task itself has.")
    )
    cron = forms.CharField(
        label=_("cron expression"),
        required=False,
        max_length=CRON_CHARS,
        widget=forms.TextInput(attrs=WIDE),
        help_text=_("Minute, hour, day of month, month, day of week: 0 3 * * * is 3 o'clock each day."),
    )
    every = forms.CharField(
        label=_("or every"), required=False, max_length=20, help_text=_("A duration of at least 1s: 90s, 15m, 6h, 1d.")
    )
    timezone = forms.CharField(
        label=_("time zone"),
        required=False,
        max_length=100,
        help_text=_("Of the cron expression, such as Europe/London. Empty: that of the settings."),
    )
    args = ArgumentsField(list)
    kwargs = ArgumentsField(dict)
    missed = forms.ChoiceField(
        label=_("ticks at which no worker ran"), choices=[*MISSED_WORDS.items()], initial="latest"
    )
    missed_limit = forms.IntegerField(
        label=_("limit of missed ticks"),
        min_value=1,
        max_value=MISSED_LIMIT_MAX,
        initial=MISSED_LIMIT,
        help_text=_("At most so many are fired later, if all are."),
    )
    overlap = forms.ChoiceField(
        label=_("if the job before has not ended"), choices=[*OVERLAP_WORDS.items()], initial="allow"
    )
    jitter_seconds = forms.CharField(
        label=_("jitter"),
        required=False,
        max_length=20,
        initial="0s",
        help_text=_("Each job is due up to so much later: 30s, 5m."),
    )
    start_at = MomentField(label=_("first tick not before"), required=False)
    end_at = MomentField(label=_("last tick not after"), required=False)

    class Meta:
        model = Schedule
        fields: tuple[str, ...] = ("name", "task", *TERMS, *ARGUMENTS)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._before = definition_of(self.instance) if self.instance.pk else None
        # The page leaves out the name of a schedule that exists, and the arguments for users who may not see them.
        for name in [name for name in self.fields if name not in (self._meta.fields or ())]:
            del self.fields[name]
        self._fill(self._before)
        for field in self.fields.values():
            field.label = capfirst(str(field.label))
        zone = gettext("Such as 2026-01-31 18:00 (%(zone)s).") % {"zone": timezone.get_current_timezone_name()}
        for name in ("start_at", "end_at"):
            if name in self.fields:
                self.fields[name].help_text = zone

    def _fill(self, before: Definition | None) -> None:
        list(registry.discover())
        names = registry.names()[0]
        if "task" in self.fields:
            known = names if not self.instance.task or self.instance.task in names else [*names, self.instance.task]
            field: Any = self.fields["task"]
            field.choices = [("", "---------"), *((name, plain(name)) for name in known)]
        if before is None:
            self.initial.setdefault("timezone", settings.TIME_ZONE or "UTC")
            return
        timing, arguments = before.timing, zip(ARGUMENTS, arguments_of(before), strict=True)
        for name in ("missed", "missed_limit", "overlap"):
            self.initial[name] = getattr(before, name)
        for name in ("cron", "timezone"):
            self.initial[name] = getattr(timing, name)
        for name in ("start_at", "end_at"):
            self.initial[name] = getattr(timing, name)
        for name, value in arguments:
            self.initial[name] = value
        self.initial["task"] = self.instance.task
        self.initial["every"] = duration(timing.every_seconds) if timing.every_seconds else ""
        self.initial["jitter_seconds"] = duration(before.jitter_seconds)

    def clean_name(self) -> str:
        """A new name of printable characters."""
        name: str = self.cleaned_data["name"]
        try:
            check_name(name)
        except JobQueueError as error:
            raise forms.ValidationError(plain(error)) from None
        if Schedule.objects.using(load().database).filter(name=name).exists():
            raise forms.ValidationError(gettext("There is a schedule of this name."))
        return name

    def clean_task(self) -> AnyTask:
        """The task itself. No name is imported: a task is chosen from those that are registered."""
        task = registry.find_task(self.cleaned_data["task"])
        if task is None:
            raise forms.ValidationError(gettext("This process does not know the task; choose another one."))
        return task

    def clean_args(self) -> Any:
        """The positional arguments."""
        return self._with_secrets("args")

    def clean_kwargs(self) -> Any:
        """The named arguments."""
        return self._with_secrets("kwargs")

    def _with_secrets(self, name: str) -> Any:
        given = self.cleaned_data[name]
        if self._has_new_task():
            if has_mask(given):
                raise forms.ValidationError(
                    gettext("Another task does not get secrets that you do not see. Write the values.")
                )
            return given
        before: Any = arguments_of(self._before)[ARGUMENTS.index(name)] if self._before else None
        return with_secrets(given, before)

    def _has_new_task(self) -> bool:
        """Whether the schedule is to call another task: one that its editor has chosen could tell what it gets."""
        task = self.cleaned_data.get("task")
        # By the task itself: it may have been renamed.
        return bool(self.instance.pk) and task is not None and task is not registry.find_task(self.instance.task)

    def clean(self) -> dict[str, Any]:
        """Check the values together, as those of @schedule are checked."""
        found: dict[str, Any] = self.cleaned_data
        if self.refused:
            raise forms.ValidationError(self.refused)
        if self.instance.pk and self._before is None:
            # Its arguments are not known, so a change would remove them.
            raise forms.ValidationError(str(UNREADABLE))
        if not self.errors:
            try:
                self._check(found)
            except (JobQueueError, WrongSettings) as error:
                raise forms.ValidationError(plain(error)) from None
            except Exception as error:
                # A function of the task, such as that of its keys, refuses the arguments.
                what = plain(f"{type(error).__name__}: {error}", 300)
                raise forms.ValidationError(
                    gettext("A job of it cannot be made: %(error)s") % {"error": what}
                ) from None
        return found

    def _check(self, found: dict[str, Any]) -> None:
        name, task = found.get("name") or self.instance.name, found["task"]
        if self._has_new_task() and any(self._hides(key) for key in ARGUMENTS if key not in self.fields):
            text = gettext(
                "Another task does not get secrets that you do not see. Ask somebody who may see the arguments."
            )
            raise InvalidValue(text)
        self.terms = terms_of(name, **self._terms(found))
        kept: tuple[Any, Any] = arguments_of(self._before) if self._before else ([], {})
        args, kwargs = (found.get(key, value) for key, value in zip(ARGUMENTS, kept, strict=True))
        self.arguments = check_arguments(name, task, args, kwargs)
        values = {key: getattr(self.terms, key) for key in ("missed", "missed_limit", "overlap", "jitter_seconds")}
        define(task, *self.arguments, self.terms.timing, values)

    def _hides(self, key: str) -> bool:
        """Whether the arguments that are kept as they are have secrets."""
        kept: Any = arguments_of(self._before)[ARGUMENTS.index(key)] if self._before else None
        return bool(has_mask(mask_value(kept)))

    def _terms(self, found: Mapping[str, Any]) -> dict[str, Any]:
        given = {key: None if found[key] == "" else found[key] for key in TERMS}
        if given["jitter_seconds"] is None:
            given["jitter_seconds"] = 0
        if (before := self._before) is not None:
            timing = before.timing
            stored: dict[str, object] = {"every": timing.every_seconds, "jitter_seconds": before.jitter_seconds}
            stored |= {"start_at": timing.start_at, "end_at": timing.end_at}
            given |= {key: stored[key] for key in _ROUNDED if key not in self.changed_data}
            if "every" not in self.changed_data:
                given["phase_seconds"] = timing.phase_seconds
        return given

    def _post_clean(self) -> None:
        """Leave the instance as it is: schedules.editing writes the row."""

    def given(self) -> tuple[AnyTask, list[Any], dict[str, Any], Terms]:
        """Task, arguments and terms, as editing.save() takes them."""
        return (self.cleaned_data["task"], *self.arguments, self.terms)
