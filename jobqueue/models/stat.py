"""Statistics of ended jobs: counted by each process per minute, added up to minutes, hours and days, and in all."""

from __future__ import annotations

from django.db import models
from django.utils.translation import gettext_lazy as _

from jobqueue.db.fields import NameField, TinyIntegerField, TokenField, UtcDateTimeField


class CountedEnds(models.Model):
    """How jobs of one queue ended, and how long their runs took; with `task`, those of one task in it.

    `wait_times` and `run_times` count runs by the bounds of stats.histogram: {"3": 17} are 17 runs in the fourth one.
    """

    # Of rows of PROCESS a digest of process, minute, queue and task: a second write, also after a lost answer, writes
    # the same row. The roll-up gives its rows random ids.
    id = TokenField(primary_key=True)
    queue = NameField(_("queue"), max_length=64)
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

    class Meta:
        abstract = True


class CountedInSpan(CountedEnds):
    """The ends of a span of time. Add up the rows: a span may have several."""

    class Span(models.IntegerChoices):
        """How much time a row covers. Rows of PROCESS are written by one process; the others by the roll-up."""

        PROCESS = 0, _("a minute of one process")
        MINUTE = 1, _("a minute")
        HOUR = 2, _("an hour")
        DAY = 3, _("a day")

    span = TinyIntegerField(_("span"), choices=Span.choices)
    begins_at = UtcDateTimeField(_("begins at"))

    class Meta:
        abstract = True


class JobStat(CountedInSpan):
    """The ends of one task in one queue."""

    # "" = raw rows, which have no task.
    task = NameField(_("task"), max_length=255)

    class Meta:
        db_table = "job_stat"
        verbose_name = _("job statistics")
        verbose_name_plural = _("job statistics")
        default_permissions = ("view",)
        indexes = [
            # maintenance.stat_rollup: the oldest span, its rows by queue and task
            models.Index(fields=["span", "begins_at", "queue", "task"], name="ix_job_stat_span"),
            # maintenance.cleaner: the oldest
            models.Index(fields=["begins_at"], name="ix_job_stat_age"),
        ]

    def __str__(self) -> str:
        return f"{self.queue} {self.task} {self.begins_at}"


class QueueStat(CountedInSpan):
    """The ends of all tasks in one queue: the same ends as in JobStat, in fewer rows, which pages read."""

    class Meta:
        db_table = "job_stat_queue"
        verbose_name = _("queue statistics")
        verbose_name_plural = _("queue statistics")
        default_permissions = ()
        indexes = [
            # maintenance.stat_rollup: the oldest span, its rows by queue; stats.recent: the last minutes
            models.Index(fields=["span", "begins_at", "queue"], name="ix_queue_stat_span"),
            # maintenance.cleaner: the oldest
            models.Index(fields=["begins_at"], name="ix_queue_stat_age"),
        ]

    def __str__(self) -> str:
        return f"{self.queue} {self.begins_at}"


class JobStatTotal(CountedEnds):
    """All ends that the roll-up has taken from rows of PROCESS, ever: what the counters of Prometheus begin with.

    Add up the rows of a queue and task: two roll-ups at the same time write a row each, and a later one unites them.
    """

    # "" = raw rows, which have no task.
    task = NameField(_("task"), max_length=255)
    # Of the newest end, about: a task that has not ended anything for STAT_RETENTION_SECONDS is forgotten.
    counted_at = UtcDateTimeField(_("counted at"))

    class Meta:
        db_table = "job_stat_total"
        verbose_name = _("job statistics in all")
        verbose_name_plural = _("job statistics in all")
        default_permissions = ()
        indexes = [
            # maintenance.stat_totals: the rows of some tasks
            models.Index(fields=["queue", "task"], name="ix_stat_total_task"),
            # maintenance.cleaner: the oldest
            models.Index(fields=["counted_at"], name="ix_stat_total_age"),
        ]

    def __str__(self) -> str:
        return f"{self.queue} {self.task}"
