"""The worker processes that are, or were, running."""

from __future__ import annotations

from django.db import models
from django.utils.translation import gettext_lazy as _

from jobqueue.db.clock import UtcNow
from jobqueue.db.fields import NameField, PayloadField, UnsignedBigAutoField, UtcDateTimeField


class Worker(models.Model):
    """One child process of a runworker command. Its name is what its jobs carry in locked_by."""

    id = UnsignedBigAutoField(primary_key=True)
    name = NameField(_("name"), max_length=128)
    host = NameField(_("host"), max_length=255)
    pid = models.BigIntegerField(_("pid"))
    supervisor_pid = models.BigIntegerField(_("supervisor pid"))
    # Random per start: host and pid can come again.
    boot_id = NameField(_("boot id"), max_length=32)
    queues = NameField(_("queues"), max_length=1000)
    concurrency = models.IntegerField(_("concurrency"))
    version = NameField(_("version"), max_length=32)
    started_at = UtcDateTimeField(_("started at"), db_default=UtcNow())
    heartbeat_at = UtcDateTimeField(_("last heartbeat"), db_default=UtcNow())
    # How far apart its heartbeats are; NULL for workers of older versions.
    heartbeat_seconds = models.FloatField(_("seconds between heartbeats"), null=True)
    # How far the clock of its host is ahead of the database's, below 0: behind, at a heartbeat; NULL: not known.
    clock_ahead_seconds = models.FloatField(_("seconds by which its clock is ahead"), null=True)
    # Resident memory of its process, of the last heartbeat at which it had changed by a tenth. NULL: not known.
    rss_bytes = models.BigIntegerField(_("memory"), null=True)
    # How far retries multiply, by task: the counts of its process since the start of the command.
    retries = PayloadField(_("retries by task"), null=True)
    # The limits that its code and settings have: jobqueue.gates.limits. NULL: it runs a version without limits.
    gates = PayloadField(_("limits that it knows"), null=True)
    # The ids of the versions of schedules that its code and settings have. NULL: none.
    schedules = PayloadField(_("schedules that it announces"), null=True)
    # Resources that its host lacks, slow commits, and whether it claims no due work: monitor/troubles.py. NULL: none.
    troubles = PayloadField(_("troubles"), null=True)
    # When a process last asked for its stacks. NULL: no request is open.
    stacks_asked_at = UtcDateTimeField(_("stacks asked for at"), null=True)
    # The last answer, and when it was written: jobqueue.worker.run.stacks.
    stacks = PayloadField(_("stacks of its threads"), null=True)
    stacks_at = UtcDateTimeField(_("stacks written at"), null=True)
    stopped_at = UtcDateTimeField(_("stopped at"), null=True)
    stop_reason = NameField(_("stop reason"), max_length=200, default="")

    class Meta:
        db_table = "job_worker"
        verbose_name = _("worker")
        verbose_name_plural = _("workers")
        default_permissions = ("view",)
        constraints = [models.UniqueConstraint(fields=["name"], name="uq_worker_name")]
        indexes = [
            # workers that run, and those that stopped sending heartbeats
            models.Index(fields=["stopped_at", "heartbeat_at"], name="ix_worker_alive"),
        ]

    def __str__(self) -> str:
        return str(self.name)
