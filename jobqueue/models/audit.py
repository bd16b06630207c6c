"""Recorded runs: bulk verbs, each for all jobs that match a filter, and redrives of dead letters.

Workers carry them out, in steps of one transaction: jobqueue.runs. They stay, as a record of who did that.
"""

from __future__ import annotations

from typing import Any, ClassVar

from django.db import models
from django.utils.translation import gettext_lazy as _

from jobqueue.db.clock import UtcNow
from jobqueue.db.fields import NameField, UnsignedBigAutoField, UtcDateTimeField

REASON_CHARS, PROBLEM_CHARS, USER_CHARS, PROGRAM_CHARS = 500, 200, 150, 64


class _OfKind(models.Manager[Any]):
    """The runs of one kind."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self._kind = kind

    def get_queryset(self) -> models.QuerySet[Any]:
        return super().get_queryset().filter(kind=self._kind)


class AuditEvent(models.Model):
    """One run: who, which verb, which jobs, why, and how far it has come. Written with the jobs of each step.

    `objects` are the bulk verbs.
    """

    class Kind(models.TextChoices):
        """REDRIVE: the verb is retry, with a canary and a rate."""

        BULK = "bulk", "bulk"
        REDRIVE = "redrive", "redrive"

    class Verb(models.TextChoices):
        """What is done to each job."""

        RETRY = "retry", _("retry")
        CANCEL = "cancel", _("cancel")
        DISCARD = "discard", _("discard")
        RELEASE = "release", _("release")
        PRUNE = "prune", _("delete")

    class State(models.TextChoices):
        """WAITING: no chunk was done yet. CANARY: the rest waits for the next attempt of the first jobs.

        DONE, STOPPED and FAILED are final.
        """

        WAITING = "waiting", _("waiting")
        CANARY = "canary", _("canary")
        RUNNING = "running", _("running")
        DONE = "done", _("done")
        STOPPED = "stopped", _("stopped")
        FAILED = "failed", _("failed")

    id = UnsignedBigAutoField(primary_key=True)
    kind = NameField(_("kind"), max_length=16, choices=Kind.choices, default=Kind.BULK)
    # Who: the id of a user as text, and the name at that time; or a program. Empty: unknown.
    user_id = NameField(_("id of the user"), max_length=64, default="")
    user_name = NameField(_("user"), max_length=USER_CHARS, default="")
    program = NameField(_("program"), max_length=PROGRAM_CHARS, default="")
    verb = NameField(_("verb"), max_length=16, choices=Verb.choices, default=Verb.RETRY)
    # Those that were given, by name; empty: all jobs.
    filters = models.JSONField(_("filter"))
    # How many jobs matched when it was recorded, of a bulk verb up to MATCHED_MAX; NULL: counting took too long.
    matched = models.BigIntegerField(_("matched"), null=True)
    # Of a redrive. Jobs that it may bring back at most; NULL = all that match.
    job_limit = models.BigIntegerField(_("limit"), null=True)
    per_second = models.FloatField(_("jobs per second"), null=True)
    canary = models.IntegerField(_("canary"), default=0)
    # Its only job runs in a process of its own: runs/alone.py. Until that begins, `changed` is 0.
    alone = models.BooleanField(_("alone"), default=False)
    # [id, epoch, attempts] of each job of the canary; [id, fence] of a job that runs alone.
    canaries = models.JSONField(_("jobs of the canary"), default=list)
    # The ids of its next jobs. Those after them are above after_id, up to until_id.
    pending = models.JSONField(_("next jobs"), default=list)
    # Of its rate, what was allowed until then is used up.
    paced_at = UtcDateTimeField(_("paced until"), null=True)
    reason = NameField(_("reason"), max_length=REASON_CHARS, default="")
    phase = NameField(_("state"), max_length=16, choices=State.choices, default=State.WAITING)
    # Why it failed, why it was stopped or by whom, or why it waits.
    problem = NameField(_("end"), max_length=PROBLEM_CHARS, default="")
    changed = models.BigIntegerField(_("changed"), default=0)
    # Left as they are: their state has changed, or another live job has their dedupe key.
    refused = models.BigIntegerField(_("not changed"), default=0)
    # The jobs up to after_id have been looked at. until_id was the newest job when it was recorded.
    after_id = models.BigIntegerField(_("last job"), default=0)
    until_id = models.BigIntegerField(_("newest job"))
    steps = models.IntegerField(_("steps"), default=0)
    # Its next step; NULL when it has ended.
    due_at = UtcDateTimeField(_("next step at"), null=True, db_default=UtcNow())
    created_at = UtcDateTimeField(_("created at"), db_default=UtcNow())
    started_at = UtcDateTimeField(_("started at"), null=True)
    updated_at = UtcDateTimeField(_("updated at"), db_default=UtcNow())
    ended_at = UtcDateTimeField(_("ended at"), null=True)

    # First: dumpdata reads by the first manager, and the model of the other kind is a proxy, which it leaves out.
    all_kinds: ClassVar[models.Manager[Any]] = models.Manager()
    objects: ClassVar[models.Manager[Any]] = _OfKind(Kind.BULK)

    class Meta:
        db_table = "job_audit"
        verbose_name = _("bulk action")
        verbose_name_plural = _("audit")
        default_permissions = ("view",)
        indexes = [
            # runs.stepping: the next step that is due
            models.Index(fields=["kind", "due_at"], name="ix_audit_due"),
            # maintenance.cleaner: those that ended long ago
            models.Index(fields=["kind", "ended_at"], name="ix_audit_ended"),
            # the newest: the lists of the admin, dead_letters.redrives()
            models.Index(fields=["kind", "id"], name="ix_audit_kind"),
        ]

    def __str__(self) -> str:
        return f"bulk action {self.pk}"


class Redrive(AuditEvent):
    """A redrive. `changed` are the jobs that it has retried, and `refused` those that it has skipped."""

    objects: ClassVar[models.Manager[Any]] = _OfKind(AuditEvent.Kind.REDRIVE)

    class Meta:
        proxy = True
        verbose_name = _("redrive")
        verbose_name_plural = _("redrives")
        default_permissions = ("view",)
        permissions = [("redrive_jobs", "Can redrive dead letters")]

    def __init__(self, *args: Any, **columns: Any) -> None:
        super().__init__(*args, **({} if args else {"kind": AuditEvent.Kind.REDRIVE}) | columns)

    def __str__(self) -> str:
        return f"redrive {self.pk}"

    def end(self, phase: AuditEvent.State, problem: str = "") -> None:
        """Set the columns of a redrive that ends; save nothing."""
        self.phase, self.problem, self.pending = phase, problem[:PROBLEM_CHARS], []
        self.due_at, self.ended_at = None, UtcNow()
