"""The causes of failed attempts in the active language."""

from __future__ import annotations

from django.utils.translation import gettext_lazy as _

from jobqueue.admin.page.formatting import StrOrPromise
from jobqueue.failures import FailureCause
from jobqueue.models import JobAttempt

CAUSES: dict[str, StrOrPromise] = {
    FailureCause.FORMAT: _("format"),
    FailureCause.DEPENDENCY: _("dependency"),
    FailureCause.DATA: _("data"),
    FailureCause.RESOURCE: _("resource"),
    FailureCause.LOST: _("lease lost"),
    FailureCause.TIMEOUT: _("timeout"),
    FailureCause.EXPIRED: _("expired"),
    FailureCause.UNKNOWN: _("unknown"),
}
#: what an attempt may have besides
REQUESTED: dict[str, StrOrPromise] = {JobAttempt.SNOOZED: _("snoozed"), JobAttempt.DISCARDED: _("discarded")}
