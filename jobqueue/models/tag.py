"""The tags of jobs: a table of its own, so that jobs without tags cost nothing."""

from __future__ import annotations

from typing import ClassVar

from django.db import models
from django.utils.translation import gettext_lazy as _

from jobqueue.base.validation import TAG_CHARS
from jobqueue.db.fields import JobIdField, NameField


class JobTag(models.Model):
    """A tag of a job, written with the job and deleted with it."""

    job_id = JobIdField(_("job"))
    tag = NameField(_("tag"), max_length=TAG_CHARS)

    objects: ClassVar[models.Manager[JobTag]] = models.Manager()

    class Meta:
        db_table = "job_tag"
        verbose_name = _("tag of a job")
        verbose_name_plural = _("tags of jobs")
        default_permissions = ("view",)
        indexes = [
            # JobQuerySet.tagged(): the jobs of a tag, by id
            models.Index(fields=["tag", "job_id"], name="ix_tag"),
            # retention.deletion: the tags of a job
            models.Index(fields=["job_id"], name="ix_tag_job"),
        ]

    def __str__(self) -> str:
        return f"{self.tag} of job {self.job_id}"
