"""The form of a redrive: which dead letters, and how fast."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from django import forms
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from jobqueue.admin.page.causes import CAUSES
from jobqueue.dead_letters.recording import CANARY_MAX
from jobqueue.durations import parse_rate
from jobqueue.exceptions import InvalidValue
from jobqueue.failures import FailureCause
from jobqueue.validation import IDS_MAX

if TYPE_CHECKING:
    from django_stubs_ext import StrOrPromise

#: jobs that a redrive retries first, unless somebody chooses another number
CANARY = 10
#: fields that choose dead letters, and fields that say how they are retried
WHICH = ("fingerprint", "queue", "task", "cause", "job_ids", "everything")
HOW = ("canary", "rate", "limit")
#: an expired job is CANCELED, so no dead letter has this cause
_CAUSES: list[tuple[str, StrOrPromise]] = [
    ("", _("any")),
    *((cause, word) for cause, word in CAUSES.items() if cause != FailureCause.EXPIRED),
]

_WIDE = forms.TextInput(attrs={"class": "vTextField"})


class RedriveForm(forms.Form):
    """Its values are those of dead_letters.redrive()."""

    fingerprint = forms.RegexField(
        r"\A[0-9a-f]{16}\Z",
        label=_("fingerprint of the failure"),
        required=False,
        widget=_WIDE,
        error_messages={"invalid": _("A fingerprint has 16 hexadecimal digits.")},
    )
    queue = forms.CharField(label=_("queue"), required=False, max_length=64, widget=_WIDE)
    task = forms.CharField(
        label=_("task"),
        required=False,
        max_length=255,
        widget=_WIDE,
        help_text=_("The whole path, such as shop.tasks.pay."),
    )
    cause = forms.ChoiceField(label=_("cause"), required=False, choices=_CAUSES)
    job_ids = forms.CharField(
        label=_("job ids"),
        required=False,
        widget=forms.Textarea(attrs={"rows": 3, "class": "vLargeTextField"}),
        help_text=_("Separated by spaces, commas or new lines."),
    )
    everything = forms.BooleanField(label=_("all dead letters, without a filter"), required=False)
    canary = forms.IntegerField(
        label=_("canary"),
        required=False,
        min_value=0,
        max_value=CANARY_MAX,
        initial=CANARY,
        help_text=_("So many jobs first; the others only after each of these has passed. 0: all at once."),
    )
    rate = forms.CharField(
        label=_("rate"), required=False, max_length=40, help_text=_("At most so many jobs: 50/s, 100/m, 5/30s.")
    )
    limit = forms.IntegerField(
        label=_("limit"), required=False, min_value=1, max_value=10**9, help_text=_("At most so many, the oldest.")
    )

    def clean_job_ids(self) -> list[int] | None:
        words = self.cleaned_data["job_ids"].replace(",", " ").split()
        if not all(word.isascii() and word.isdigit() and int(word[:19]) > 0 and len(word) < 19 for word in words):
            raise forms.ValidationError(gettext("A job id is a number above 0."))
        ids = sorted({int(word) for word in words})
        if len(ids) > IDS_MAX:
            raise forms.ValidationError(gettext("At most %(n)d ids; choose by another filter.") % {"n": IDS_MAX})
        return ids or None

    def clean_rate(self) -> str | None:
        rate: str = self.cleaned_data["rate"].strip()
        try:
            if rate:
                parse_rate(rate)
        except InvalidValue:
            raise forms.ValidationError(gettext("This is not a rate. Write 50/s, 100/m or 5/30s.")) from None
        return rate or None

    def clean(self) -> dict[str, Any]:
        """Refuse no filter, and a filter beside "everything"."""
        found: dict[str, Any] = self.cleaned_data
        filters = [name for name in WHICH if name != "everything" and found.get(name)]
        if not filters and not found.get("everything") and not self.errors:
            raise forms.ValidationError(gettext('Choose a filter, or tick "all dead letters, without a filter".'))
        if filters and found.get("everything"):
            raise forms.ValidationError(gettext('A filter and "all dead letters, without a filter" contradict.'))
        return found

    def chosen(self) -> dict[str, Any]:
        """The filters that were given, as arguments of redrive(). Call it after is_valid()."""
        return {name: self.cleaned_data[name] for name in WHICH if self.cleaned_data[name]}

    def pace(self) -> dict[str, Any]:
        """How they are retried, as arguments of redrive(). Call it after is_valid()."""
        found = {name: self.cleaned_data[name] for name in HOW if self.cleaned_data[name] is not None}
        return {"canary": 0} | found

    def hidden(self) -> list[tuple[str, object]]:
        """The values as they were checked, for the form that starts the redrive."""
        values = {**self.chosen(), **self.pace()}
        if "job_ids" in values:
            values["job_ids"] = " ".join(map(str, values["job_ids"]))
        return list(values.items())


def form_of(values: Mapping[str, object]) -> RedriveForm:
    """The form filled with these values, ready to be checked; fields that are missing have their first values."""
    return RedriveForm({"canary": CANARY} | {name: values[name] for name in (*WHICH, *HOW) if name in values})
