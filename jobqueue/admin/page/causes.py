"""The causes of failed attempts in the active language."""

from __future__ import annotations

from typing import TYPE_CHECKING

from django.utils.translation import gettext_lazy as _

from jobqueue.failures import FailureCause
from jobqueue.models import JobAttempt

if TYPE_CHECKING:
    from django_stubs_ext import StrOrPromise

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
