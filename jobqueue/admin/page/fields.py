"""What forms of several pages share: fields, arguments that somebody types, and a write that may be refused."""

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
from django.utils.translation import gettext_lazy as _

from jobqueue.admin.page.formatting import plain
from jobqueue.base.payload import JSON
from jobqueue.exceptions import DatabaseBusy, JobQueueError, OutcomeUnknown
from jobqueue.masking import MASK, has_mask, mask_value, unmask

WIDE = {"class": "vTextField"}
TALL = {"class": "vLargeTextField", "rows": 3, "spellcheck": "false"}
_LIST = (_("positional arguments"), _("A JSON list, such as [1, true]."), _("This is not a JSON list."))
_OBJECT = (
    _("named arguments"),
    _('A JSON object, such as {"country": "kr"}.'),
    _("This is not a JSON object."),
)
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


class ArgumentsField(forms.CharField):
    """The positional arguments of a call (a list) or the named ones (a dict), as JSON. Secrets are shown masked."""

    def __init__(self, kind: type[list[Any]] | type[dict[str, Any]]) -> None:
        self._kind = kind
        label, such_as, wrong = _LIST if kind is list else _OBJECT
        widget = forms.Textarea(attrs=TALL)
        super().__init__(
            label=label, help_text=such_as, error_messages={"invalid": wrong}, required=False, widget=widget
        )

    def prepare_value(self, value: Any) -> Any:
        return json_text(value) if isinstance(value, self._kind) else value

    def to_python(self, value: Any) -> Any:
        text = super().to_python(value)
        if not text:
            return self._kind()
        try:
            found = json.loads(text)
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, self._kind):
            raise forms.ValidationError(self.error_messages["invalid"], code="invalid")
        return found

    def has_changed(self, initial: Any, data: Any) -> bool:
        try:
            # As texts: true and 1 are equal in Python.
            return json_text(self.to_python(data)) != json_text(self._kind() if initial is None else initial)
        except forms.ValidationError:
            return True


def json_text(value: JSON) -> str:
    """`value` as JSON, its secrets masked."""
    return json.dumps(mask_value(value), ensure_ascii=False)


def with_secrets(given: JSON, before: JSON) -> JSON:
    """`given`, with the secrets of `before` where they were shown masked and left so."""
    found = unmask(given, before)
    if has_mask(found):
        text = gettext("%(mask)s stands for a secret, but there is none at this place. Write the value.")
        raise forms.ValidationError(text % {"mask": MASK})
    return found


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
