"""Lock statistics: counters per minute, and findings such as deadlock reports, kept for LOCK_METRICS_SECONDS."""

from __future__ import annotations

from django.db import models
from django.utils.translation import gettext_lazy as _

from jobqueue.base.validation import LOCK_CHARS
from jobqueue.db.clock import UtcNow
from jobqueue.db.fields import NameField, TokenField, UtcDateTimeField


class LockStat(models.Model):
    """The counters of one lock in one process for about a minute. Only that process writes the row.

    Or those of transactions that the database refused: lockstats.recorder.TRANSACTION.
    """

    # A digest of process, minute and lock: a second write, also after a lost answer, writes the same row.
    id = TokenField(primary_key=True)
    # Of the last write.
    counted_at = UtcDateTimeField(_("counted at"), db_default=UtcNow())
    kind = NameField(_("kind of lock"), max_length=16)
    # "" = all other keys of this kind: of each minute only the most contended ones have rows.
    lock_key = NameField(_("lock key"), max_length=LOCK_CHARS)
    acquired = models.BigIntegerField(_("acquired"), default=0)
    contended = models.BigIntegerField(_("had to wait"), default=0)
    failed = models.BigIntegerField(_("not acquired"), default=0)
    released = models.BigIntegerField(_("released"), default=0)
    reentries = models.BigIntegerField(_("expired while held"), default=0)
    wait_us = models.BigIntegerField(_("time waited"), default=0)
    wait_us_max = models.BigIntegerField(_("longest wait"), default=0)
    held_us = models.BigIntegerField(_("time held"), default=0)
    held_us_max = models.BigIntegerField(_("longest hold"), default=0)

    class Meta:
        db_table = "job_lock_stat"
        verbose_name = _("lock activity")
        verbose_name_plural = _("lock activity")
        default_permissions = ("view",)
        indexes = [
            # lockstats.report: the last minutes; maintenance.cleaner: the oldest
            models.Index(fields=["counted_at"], name="ix_lock_stat_age"),
        ]

    def __str__(self) -> str:
        return f"{self.kind} {self.lock_key}"


class LockFinding(models.Model):
    """Something about locks that a person should see: a deadlock, a long wait, a slow statement, a short lock."""

    class Kind(models.TextChoices):
        """The kinds of findings."""

        DEADLOCK = "deadlock", _("deadlock")
        WAIT = "wait", _("lock wait")
        SLOW = "slow", _("slow locking statement")
        TTL = "ttl", _("lock shorter than its job")

    # A digest of the finding: seen again, by any process, it is the same row.
    id = TokenField(primary_key=True)
    kind = NameField(_("kind"), max_length=16, choices=Kind.choices)
    first_seen_at = UtcDateTimeField(_("first seen"), db_default=UtcNow())
    last_seen_at = UtcDateTimeField(_("last seen"), db_default=UtcNow())
    # How long so far: of a wait; of a statement, in all its runs.
    seconds = models.FloatField(_("seconds"), null=True)
    detail = models.JSONField(_("details"))

    class Meta:
        db_table = "job_lock_finding"
        verbose_name = _("lock finding")
        verbose_name_plural = _("lock findings")
        default_permissions = ("view",)
        indexes = [
            # lockstats.report: the newest of a kind
            models.Index(fields=["kind", "last_seen_at"], name="ix_lock_finding_kind"),
            # maintenance.cleaner: the oldest
            models.Index(fields=["last_seen_at"], name="ix_lock_finding_age"),
        ]

    def __str__(self) -> str:
        return f"{self.kind} {self.id.hex()}"
