"""Ended jobs that retention has moved out of job_queue, so that nothing else reads past them."""

from __future__ import annotations

from django.db import models
from django.utils.translation import gettext_lazy as _

from jobqueue.db.clock import UtcNow
from jobqueue.db.fields import (
    ErrorField,
    JobIdField,
    KeyField,
    NameField,
    PayloadField,
    TinyIntegerField,
    UtcDateTimeField,
)
from jobqueue.models.job import DEPENDENCY_CHARS, Job


class ArchivedJob(models.Model):
    """A job as it was when it was deleted, with its attempts. Nothing of the product reads it."""

    id = JobIdField(primary_key=True)
    queue = NameField(_("queue"), max_length=64)
    status = TinyIntegerField(_("status"), choices=Job.Status.choices)
    priority = models.IntegerField(_("priority"))
    run_at = UtcDateTimeField(_("run at"))
    attempts = models.IntegerField(_("attempts"))
    max_attempts = models.IntegerField(_("max attempts"))
    payload = PayloadField(_("payload"))
    result = PayloadField(_("result"), null=True)
    last_error = ErrorField(_("last error"), null=True)
    cause = NameField(_("cause"), max_length=16, null=True)
    fingerprint = NameField(_("fingerprint"), max_length=16, null=True)
    options = PayloadField(_("options"), null=True)
    progress = PayloadField(_("progress"), null=True)
    dedupe_key = KeyField(_("dedupe key"), null=True)
    ordering_key = KeyField(_("ordering key"), null=True)
    concurrency_key = KeyField(_("concurrency key"), null=True)
    task = NameField(_("task"), max_length=255, null=True)
    dependency = NameField(_("dependency"), max_length=DEPENDENCY_CHARS, null=True)
    crashes = models.IntegerField(_("crashes"))
    last_started_at = UtcDateTimeField(_("last started at"), null=True)
    last_worker = NameField(_("last worker"), max_length=128, null=True)
    created_at = UtcDateTimeField(_("created at"))
    finished_at = UtcDateTimeField(_("finished at"), null=True)
    # Its rows of job_attempt, oldest first; NULL if it had none.
    failures = PayloadField(_("attempts that failed"), null=True)
    archived_at = UtcDateTimeField(_("archived at"), db_default=UtcNow())

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
