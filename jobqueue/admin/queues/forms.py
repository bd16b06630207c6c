"""The forms of the pages of queues and circuit breakers, and what happens when one is sent."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django import forms
from django.utils import timezone
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from jobqueue.admin.page.fields import WIDE
from jobqueue.base.durations import parse_rate
from jobqueue.base.validation import INT_MAX, REASON_CHARS
from jobqueue.conf import load
from jobqueue.db.clock import read_now
from jobqueue.exceptions import InvalidValue
from jobqueue.flow import KEEP
from jobqueue.flow.rules import read_until

_NONE = "none"


class ReasonForm(forms.Form):
    """Why something is stopped, and until when."""

    reason = forms.CharField(
        label=_("reason"),
        max_length=REASON_CHARS,
        widget=forms.TextInput(attrs=WIDE),
        help_text=_("Shown to everybody who looks here."),
    )
    until = forms.CharField(label=_("until"), required=False, max_length=40)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fields["until"].help_text = gettext(
            "A duration from now, such as 2h, or a time, such as 2026-01-31 18:00 (%(zone)s). Empty: until somebody "
            "ends it."
        ) % {"zone": timezone.get_current_timezone_name()}

    def clean_until(self) -> datetime | None:
        text: str = self.cleaned_data["until"].strip()
        if not text:
            return None
        using = load().database
        try:
            until = read_until(text, using=using, zone=timezone.get_current_timezone())
        except InvalidValue:
            raise forms.ValidationError(
                gettext("This is neither a duration nor a time. Write 2h, or 2026-01-31 18:00.")
            ) from None
        if until <= read_now(using):
            raise forms.ValidationError(gettext("This time has passed."))
        return until


class LimitForm(forms.Form):
    """New limits, each as an argument of set_limit(). Call changes() after is_valid()."""

    concurrency = forms.CharField(
        label=_("concurrency"),
        required=False,
        max_length=10,
        help_text=_("How many jobs run at once in all workers. 0: paused; none: no limit; empty: not changed."),
    )
    rate = forms.CharField(
        label=_("rate"),
        required=False,
        max_length=20,
        help_text=_("How fast jobs start: 10/s, 100/m, 5/30s. 0: paused; none: no limit; empty: not changed."),
    )

    def __init__(self, *args: Any, present: tuple[str, str] = ("", ""), **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        for name, text in zip(("concurrency", "rate"), present, strict=True):
            self.fields[name].widget.attrs["placeholder"] = text

    def clean_concurrency(self) -> Any:
        text: str = self.cleaned_data["concurrency"].strip().lower()
        if text in ("", _NONE):
            return None if text else KEEP
        if not (text.isascii() and text.isdigit() and int(text) <= INT_MAX):
            raise forms.ValidationError(gettext("Write a whole number from 0, or none."))
        return int(text)

    def clean_rate(self) -> Any:
        text: str = self.cleaned_data["rate"].strip().lower()
        if text in ("", _NONE):
            return None if text else KEEP
        try:
            if text != "0":
                parse_rate(text)
        except InvalidValue:
            raise forms.ValidationError(gettext("This is not a rate. Write 50/s, 100/m or 5/30s.")) from None
        return text

    def clean(self) -> dict[str, Any]:
        """Refuse a form that changes nothing."""
        found: dict[str, Any] = self.cleaned_data
        if not self.errors and all(value is KEEP for value in found.values()):
            raise forms.ValidationError(gettext("Give a concurrency, a rate or both."))
        return found

    def changes(self) -> dict[str, Any]:
        """The limits that were given."""
        return {name: value for name, value in self.cleaned_data.items() if value is not KEEP}
