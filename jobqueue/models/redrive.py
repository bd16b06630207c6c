"""Redrives: recorded runs that bring dead letters back. Workers carry them out, a batch per transaction."""

from __future__ import annotations

from django.db import models
from django.utils.translation import gettext_lazy as _

from jobqueue.db.clock import UtcNow
from jobqueue.db.fields import NameField, UnsignedBigAutoField, UtcDateTimeField


class Redrive(models.Model):
    """One run: which dead letters, how fast, and how far it has come. Written with the jobs of each batch."""

    class State(models.TextChoices):
        """CANARY: the rest waits for the next attempt of the first jobs. DONE and STOPPED are final."""

        CANARY = "canary", _("canary")
        RUNNING = "running", _("running")
        DONE = "done", _("done")
        STOPPED = "stopped", _("stopped")

    id = UnsignedBigAutoField(primary_key=True)
    phase = NameField(_("state"), max_length=16, choices=State.choices)
    # Why it was stopped.
    reason = NameField(_("reason"), max_length=200, default="")
    # fingerprint, queue, task, cause, job_ids: those that were given.
    filters = models.JSONField(_("filter"))
    # Jobs that it may bring back at most; NULL = all that match.
    job_limit = models.BigIntegerField(_("limit"), null=True)
    per_second = models.FloatField(_("jobs per second"), null=True)
    canary = models.IntegerField(_("canary"), default=0)
    # Its only job runs in a process of its own: runs/alone.py. Until that begins, redriven is 0.
    alone = models.BooleanField(_("alone"), default=False)
    # [id, epoch, attempts] of each job of the canary; [id, fence] of a job that runs alone.
    canaries = models.JSONField(_("jobs of the canary"), default=list)
    # How many dead letters matched when it was recorded.
    matched = models.BigIntegerField(_("matched"))
    redriven = models.BigIntegerField(_("redriven"), default=0)
    # Left as they are: no longer FAILED, or another live job has their dedupe key.
    skipped = models.BigIntegerField(_("skipped"), default=0)
    # The ids of its next jobs. Those after them are above after_id, up to until_id.
    pending = models.JSONField(_("next jobs"), default=list)
    after_id = models.BigIntegerField(_("last job"), default=0)
    until_id = models.BigIntegerField(_("newest job"))
    # Of its rate, what was allowed until then is used up.
    paced_at = UtcDateTimeField(_("paced until"), null=True)
    # Its next step; NULL when it has ended.
    due_at = UtcDateTimeField(_("next step at"), null=True, db_default=UtcNow())
    steps = models.IntegerField(_("steps"), default=0)
    created_at = UtcDateTimeField(_("created at"), db_default=UtcNow())
    updated_at = UtcDateTimeField(_("updated at"), db_default=UtcNow())
    ended_at = UtcDateTimeField(_("ended at"), null=True)

    class Meta:
        db_table = "job_redrive"
        verbose_name = _("redrive")
        verbose_name_plural = _("redrives")
        default_permissions = ("view",)
        permissions = [("redrive_jobs", "Can redrive dead letters")]
        indexes = [
            # runs.redrive_steps: the next step that is due
            models.Index(fields=["due_at"], name="ix_redrive_due"),
            # maintenance.cleaner: those that ended long ago
            models.Index(fields=["ended_at"], name="ix_redrive_ended"),
        ]

    def __str__(self) -> str:
        return f"redrive {self.pk}"

    def end(self, phase: State, reason: str = "") -> None:
        """Set the columns of a redrive that ends; save nothing."""
        self.phase, self.reason, self.pending = phase, reason[:200], []
        self.due_at, self.ended_at = None, UtcNow()
