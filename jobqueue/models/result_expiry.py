"""When DONE jobs are deleted whose task has a result_ttl_seconds."""

from __future__ import annotations

from django.db import models
from django.utils.translation import gettext_lazy as _

from jobqueue.db.fields import JobIdField, UtcDateTimeField


class ResultExpiry(models.Model):
    """Written after the ack of such a job. A job that has none is deleted as RETENTION says."""

    job_id = JobIdField(_("job"), primary_key=True)
    ttl_seconds = models.FloatField(_("seconds after the end"))
    expires_at = UtcDateTimeField(_("expires at"))

    class Meta:
        db_table = "job_result_expiry"
        verbose_name = _("expiry of a result")
        verbose_name_plural = _("expiries of results")
        default_permissions = ("view",)
        indexes = [
            # retention.windows: those whose time has come
            models.Index(fields=["expires_at"], name="ix_result_expiry"),
        ]

    def __str__(self) -> str:
        return f"job {self.job_id}"
