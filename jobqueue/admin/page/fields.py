"""What forms of several pages share: fields, JSON that somebody types, and a write that may be refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime
from typing import Any

from django import forms
from django.conf import settings
from django.contrib import messages
from django.db import Error
from django.http import HttpRequest
from django.utils import timezone
from django.utils.translation import gettext

from jobqueue.admin.page.formatting import plain
from jobqueue.exceptions import DatabaseBusy, JobQueueError, OutcomeUnknown

WIDE = {"class": "vTextField"}
TALL = {"class": "vLargeTextField", "rows": 3, "spellcheck": "false"}
#: of the text of a refusal
ERROR_CHARS = 500


class MomentField(forms.DateTimeField):
    """An aware instant, written in the project's zone; Django's field knows zones with USE_TZ only."""

    def prepare_value(self, value: Any) -> Any:
        if not settings.USE_TZ and isinstance(value, datetime) and timezone.is_aware(value):
            return timezone.make_naive(value)
        return super().prepare_value(value)

    def to_python(self, value: Any) -> datetime | None:
        found = super().to_python(value)
        return timezone.make_aware(found) if found is not None and timezone.is_naive(found) else found


def read_json(text: str, kind: type, wrong: str) -> Any:
    """The value of a JSON text; an empty one of `kind` for no text."""
    if not text.strip():
        return kind()
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        raise forms.ValidationError(wrong) from None
    if not isinstance(value, kind):
        raise forms.ValidationError(wrong)
    return value


def tried(request: HttpRequest, form: forms.Form, apply: Callable[[], bool]) -> bool | None:
    """What `apply` returned; None if it was refused or the database could not be written to."""
    try:
        return apply()
    except OutcomeUnknown:
        messages.error(request, gettext("Whether it was written is unknown: look at what is set before you repeat it."))
    except (Error, DatabaseBusy):
        messages.error(request, gettext("The database could not be written to. Nothing was changed; try again later."))
    except JobQueueError as error:
        form.add_error(None, plain(error, ERROR_CHARS))
    return None
