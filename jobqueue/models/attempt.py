"""The attempts of a job that ended without success."""

from __future__ import annotations

from django.db import models
from django.utils.translation import gettext_lazy as _

from jobqueue.db.clock import UtcNow
from jobqueue.db.fields import ErrorField, JobIdField, NameField, UnsignedBigAutoField, UtcDateTimeField


class JobAttempt(models.Model):
    """One failed or lost attempt. Successful jobs write no row: their one attempt is on the job itself."""

    id = UnsignedBigAutoField(primary_key=True)
    job_id = JobIdField(_("job"))
    attempt = models.IntegerField(_("attempt"))
    fence = models.BigIntegerField(_("fence"))
    worker = NameField(_("worker"), max_length=128, null=True)
    started_at = UtcDateTimeField(_("started at"), null=True)
    ended_at = UtcDateTimeField(_("ended at"), db_default=UtcNow())
    cause = NameField(_("cause"), max_length=16)
    error_class = NameField(_("error class"), max_length=255, default="")
    error = ErrorField(_("error"))
    # What the attempt has logged, capped; NULL when it logged nothing or logs are not kept.
    log = ErrorField(_("log"), null=True)

    class Meta:
        db_table = "job_attempt"
        verbose_name = _("attempt")
        verbose_name_plural = _("attempts")
        indexes = [
            # the attempts of one job, in order: job page, task results
            models.Index(fields=["job_id", "id"], name="ix_attempt_job"),
        ]

    def __str__(self) -> str:
        return f"attempt {self.attempt} of job {self.job_id}: {self.cause}"
