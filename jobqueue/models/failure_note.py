"""What people have written about failures of one kind."""

from __future__ import annotations

from django.db import models
from django.utils.translation import gettext_lazy as _

from jobqueue.db.clock import UtcNow
from jobqueue.db.fields import ErrorField, NameField, UtcDateTimeField

AUTHOR_CHARS = 150


class FailureNote(models.Model):
    """A note on a fingerprint, and so on all jobs that fail like that, now and later. dead_letters.note() writes it."""

    fingerprint = NameField(_("fingerprint of the failure"), max_length=16, primary_key=True)
    note = ErrorField(_("note"))
    author = NameField(_("written by"), max_length=AUTHOR_CHARS, default="")
    updated_at = UtcDateTimeField(_("updated at"), db_default=UtcNow())

    class Meta:
        db_table = "job_failure_note"
        verbose_name = _("note on a failure")
        verbose_name_plural = _("notes on failures")
        default_permissions = ("view", "change")

    def __str__(self) -> str:
        return f"note on {self.fingerprint}"
