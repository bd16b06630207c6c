"""Bulk verbs: recorded runs of one verb over all jobs that match a filter. They stay, as a record of who did that."""

from __future__ import annotations

from django.db import models
from django.utils.translation import gettext_lazy as _

from jobqueue.db.clock import UtcNow
from jobqueue.db.fields import NameField, UnsignedBigAutoField, UtcDateTimeField

REASON_CHARS, PROBLEM_CHARS, USER_CHARS, PROGRAM_CHARS = 500, 200, 150, 64


class AuditEvent(models.Model):
    """One run: who, which verb, which jobs, why, and how far it has come. Written with the jobs of each chunk."""

    class Verb(models.TextChoices):
        """What is done to each job."""

        RETRY = "retry", _("retry")
        CANCEL = "cancel", _("cancel")
        DISCARD = "discard", _("discard")
        RELEASE = "release", _("release")
        PRUNE = "prune", _("delete")

    class State(models.TextChoices):
        """WAITING: no chunk was done yet. DONE, STOPPED and FAILED are final."""

        WAITING = "waiting", _("waiting")
        RUNNING = "running", _("running")
        DONE = "done", _("done")
        STOPPED = "stopped", _("stopped")
        FAILED = "failed", _("failed")

    id = UnsignedBigAutoField(primary_key=True)
    # Who: the id of a user as text, and the name at that time; or a program. Empty: unknown.
    user_id = NameField(_("id of the user"), max_length=64, default="")
    user_name = NameField(_("user"), max_length=USER_CHARS, default="")
    program = NameField(_("program"), max_length=PROGRAM_CHARS, default="")
    verb = NameField(_("verb"), max_length=16, choices=Verb.choices)
    # Those that were given, by name; empty: all jobs.
    filters = models.JSONField(_("filter"))
    # How many jobs matched at the confirmation, counted up to MATCHED_MAX; NULL: counting took too long.
    matched = models.BigIntegerField(_("matched"), null=True)
    reason = NameField(_("reason"), max_length=REASON_CHARS, default="")
    phase = NameField(_("state"), max_length=16, choices=State.choices, default=State.WAITING)
    # Why it failed, or who stopped it.
    problem = NameField(_("end"), max_length=PROBLEM_CHARS, default="")
    changed = models.BigIntegerField(_("changed"), default=0)
    # Left as they are: their state has changed, or another live job has their dedupe key.
    refused = models.BigIntegerField(_("not changed"), default=0)
    # The jobs up to after_id have been looked at. until_id was the newest job at the confirmation.
    after_id = models.BigIntegerField(_("last job"), default=0)
    until_id = models.BigIntegerField(_("newest job"))
    steps = models.IntegerField(_("steps"), default=0)
    # Its next chunk; NULL when it has ended.
    due_at = UtcDateTimeField(_("next step at"), null=True, db_default=UtcNow())
    created_at = UtcDateTimeField(_("created at"), db_default=UtcNow())
    started_at = UtcDateTimeField(_("started at"), null=True)
    ended_at = UtcDateTimeField(_("ended at"), null=True)

    class Meta:
        db_table = "job_audit"
        verbose_name = _("bulk action")
        verbose_name_plural = _("audit")
        default_permissions = ("view",)
        indexes = [
            # runs.bulk_steps: the next chunk that is due
            models.Index(fields=["due_at"], name="ix_audit_due"),
            # maintenance.cleaner: those that ended long ago
            models.Index(fields=["ended_at"], name="ix_audit_ended"),
        ]

    def __str__(self) -> str:
        return f"bulk action {self.pk}"
