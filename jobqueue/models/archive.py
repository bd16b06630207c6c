"""Ended jobs that retention has moved out of job_queue, so that nothing else reads past them."""

from __future__ import annotations

from django.db import models
from django.utils.translation import gettext_lazy as _

from jobqueue.db.clock import UtcNow
from jobqueue.db.fields import JobIdField, PayloadField, UtcDateTimeField
from jobqueue.models.job import JobColumns


class ArchivedJob(JobColumns):
    """A job as it was when it was deleted, with its attempts. Nothing of the product reads it."""

    id = JobIdField(primary_key=True)
    # Its rows of job_attempt, oldest first; NULL if it had none.
    failures = PayloadField(_("attempts that failed"), null=True)
    archived_at = UtcDateTimeField(_("archived at"), db_default=UtcNow())

    # None is Django's way to leave out columns of a base: these say nothing of a job that has ended.
    locked_by = lock_token = locked_at = lock_until = lease_seconds = expires_at = None
    released_key = unique_seconds = wait_reason = allowance = cancel_requested_at = None
    fence = unique_mode = gate = epoch = updated_at = None  # type: ignore[assignment]

    class Meta:
        db_table = "job_archive"
        verbose_name = _("archived job")
        verbose_name_plural = _("archived jobs")
        default_permissions = ("view",)
        indexes = [
            # maintenance.cleaner: oldest first
            models.Index(fields=["archived_at"], name="ix_archive_age"),
        ]

    def __str__(self) -> str:
        return f"archived job {self.pk}"
