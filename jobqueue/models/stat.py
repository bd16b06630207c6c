"""Statistics of ended jobs: counted by each process per minute, added up to minutes, hours and days, and in all."""

from __future__ import annotations

from datetime import UTC, datetime

from django.db import models
from django.utils.translation import gettext_lazy as _

from jobqueue.db.clock import UtcNow
from jobqueue.db.fields import NameField, TinyIntegerField, TokenField, UtcDateTimeField

#: `begins_at` of totals: before every time that somebody asks for
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class JobStat(models.Model):
    """How jobs of one task in a queue, or of all its tasks, ended in a span of time, and how long their runs took.

    Add up the rows of some spans: a span may have several. `wait_times` and `run_times` count runs by the bounds of
    stats.ends: {"3": 17} are 17 runs in the fourth one.
    """

    class Span(models.IntegerChoices):
        """How much time a row covers. Rows of a PROCESS are written by one process; the others by the roll-up.

        Those of a QUEUE count the same ends in fewer rows, which pages read.
        """

        PROCESS = 0, _("a minute of one process")
        MINUTE = 1, _("a minute")
        HOUR = 2, _("an hour")
        DAY = 3, _("a day")
        #: what the roll-up has ever taken from rows of PROCESS: the counters of Prometheus begin with it
        TOTAL = 4, _("total")
        QUEUE_PROCESS = 5, _("a minute of one process")
        QUEUE_MINUTE = 6, _("a minute")
        QUEUE_HOUR = 7, _("an hour")
        QUEUE_DAY = 8, _("a day")

    # Of rows of a PROCESS a digest of process, minute, queue and task: a second write, also after a lost answer, writes
    # the same row. The roll-up gives its rows random ids.
    id = TokenField(primary_key=True)
    queue = NameField(_("queue"), max_length=64)
    # "" = raw rows, which have no task; and all tasks of a QUEUE.
    task = NameField(_("task"), max_length=255)
    done = models.BigIntegerField(_("done"), default=0)
    # Runs that failed or were lost while attempts were left.
    retried = models.BigIntegerField(_("retried"), default=0)
    # Jobs that ended FAILED.
    dead = models.BigIntegerField(_("dead"), default=0)
    canceled = models.BigIntegerField(_("canceled"), default=0)
    # Those of retried and dead whose process died or whose lease ran out.
    lost = models.BigIntegerField(_("lost"), default=0)
    # Runs whose times are in the sums and histograms.
    runs = models.BigIntegerField(_("runs"), default=0)
    wait_us = models.BigIntegerField(_("time waited"), default=0)
    wait_us_max = models.BigIntegerField(_("longest wait"), default=0)
    run_us = models.BigIntegerField(_("time run"), default=0)
    run_us_max = models.BigIntegerField(_("longest run"), default=0)
    wait_times = models.JSONField(_("waits by length"), default=dict)
    run_times = models.JSONField(_("runs by length"), default=dict)
    span = TinyIntegerField(_("span"), choices=Span.choices)
    begins_at = UtcDateTimeField(_("begins at"))
    # The age of the row: as begins_at; of a total, when it was last added to. A task that has not ended anything for
    # STAT_RETENTION_SECONDS is forgotten.
    counted_at = UtcDateTimeField(_("counted at"), db_default=UtcNow())

    class Meta:
        db_table = "job_stat"
        verbose_name = _("job statistics")
        verbose_name_plural = _("job statistics")
        default_permissions = ("view",)
        indexes = [
            # maintenance.stat_rollup: the oldest span, its rows by queue and task, and the totals of some tasks;
            # stats.history: the last minutes
            models.Index(fields=["span", "begins_at", "queue", "task"], name="ix_job_stat_span"),
            # maintenance.cleaner: the oldest
            models.Index(fields=["counted_at"], name="ix_job_stat_age"),
        ]

    def __str__(self) -> str:
        return f"{self.queue} {self.task} {self.begins_at}"


#: spans of rows that cover each end once: those of tasks, and those of queues
SPANS = (JobStat.Span.PROCESS, JobStat.Span.MINUTE, JobStat.Span.HOUR, JobStat.Span.DAY)
QUEUE_SPANS = (
    JobStat.Span.QUEUE_PROCESS,
    JobStat.Span.QUEUE_MINUTE,
    JobStat.Span.QUEUE_HOUR,
    JobStat.Span.QUEUE_DAY,
)
