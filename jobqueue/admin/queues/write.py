"""A change by a form: what is wrong goes to the form, or to a message, and never to an error page."""

from __future__ import annotations

from collections.abc import Callable

from django import forms
from django.contrib import messages
from django.db import Error
from django.http import HttpRequest
from django.utils.translation import gettext

from jobqueue.admin.page.formatting import plain
from jobqueue.exceptions import DatabaseBusy, InvalidType, InvalidValue, OutcomeUnknown


def tried(request: HttpRequest, form: forms.Form, apply: Callable[[], bool]) -> bool | None:
    """What `apply` returned; None if it was refused or the database could not be written to."""
    try:
        return apply()
    except (InvalidType, InvalidValue) as error:
        form.add_error(None, plain(error))
    except OutcomeUnknown:
        messages.error(request, gettext("Whether it was written is unknown: look at what is set before you repeat it."))
    except (Error, DatabaseBusy):
        messages.error(request, gettext("The database could not be written to. Nothing was changed; try again later."))
    return None
