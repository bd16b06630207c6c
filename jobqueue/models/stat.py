"""Statistics of ended jobs: what each process has counted in a minute, added up to minutes, hours and days."""

from __future__ import annotations

from django.db import models
from django.utils.translation import gettext_lazy as _

from jobqueue.db.fields import NameField, TinyIntegerField, TokenField, UtcDateTimeField


class JobStat(models.Model):
    """The ends of the jobs of one task in one queue during a span of time. Add up the rows: a span may have several.

    `wait_times` and `run_times` count runs by the bounds of stats.histogram: {"3": 17} are 17 runs in the fourth one.
    """

    class Span(models.IntegerChoices):
        """How much time a row covers. Rows of PROCESS are written by one process; the others by the roll-up."""

        PROCESS = 0, _("a minute of one process")
        MINUTE = 1, _("a minute")
        HOUR = 2, _("an hour")
        DAY = 3, _("a day")

    # A digest of process, minute, queue and task: a second write, also after a lost answer, writes the same row.
    id = TokenField(primary_key=True)
    span = TinyIntegerField(_("span"), choices=Span.choices)
    begins_at = UtcDateTimeField(_("begins at"))
    queue = NameField(_("queue"), max_length=64)
    # "" = raw rows, which have no task.
    task = NameField(_("task"), max_length=255)
    done = models.BigIntegerField(_("done"), default=0)
    # Runs that failed or were lost while attempts were left.
    retried = models.BigIntegerField(_("retried"), default=0)
    # Jobs that ended FAILED.
    dead = models.BigIntegerField(_("dead"), default=0)
    canceled = models.BigIntegerField(_("canceled"), default=0)
    # Those of retried and dead whose lease ran out.
    lost = models.BigIntegerField(_("lost"), default=0)
    # Runs whose times are in the sums and histograms.
    runs = models.BigIntegerField(_("runs"), default=0)
    wait_us = models.BigIntegerField(_("time waited"), default=0)
    wait_us_max = models.BigIntegerField(_("longest wait"), default=0)
    run_us = models.BigIntegerField(_("time run"), default=0)
    run_us_max = models.BigIntegerField(_("longest run"), default=0)
    wait_times = models.JSONField(_("waits by length"), default=dict)
    run_times = models.JSONField(_("runs by length"), default=dict)

    class Meta:
        db_table = "job_stat"
        verbose_name = _("job statistics")
        verbose_name_plural = _("job statistics")
        default_permissions = ("view",)
        indexes = [
            # maintenance.stat_rollup: the oldest span, its rows by queue and task; stats.recent: the last minutes
            models.Index(fields=["span", "begins_at", "queue", "task"], name="ix_job_stat_span"),
            # maintenance.cleaner: the oldest
            models.Index(fields=["begins_at"], name="ix_job_stat_age"),
        ]

    def __str__(self) -> str:
        return f"{self.queue} {self.task} {self.begins_at}"
