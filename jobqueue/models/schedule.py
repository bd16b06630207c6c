"""Schedules: what is in force, what the code of live workers says, and which ticks are decided."""

from __future__ import annotations

from django.db import models
from django.utils.translation import gettext_lazy as _

from jobqueue.db.clock import UtcNow
from jobqueue.db.fields import JobIdField, NameField, PayloadField, UnsignedBigAutoField, UtcDateTimeField

SCHEDULE_CHARS = 255
DIGEST_CHARS = 32


class Schedule(models.Model):
    """One schedule as it is in force. The row is locked by whoever decides its ticks or changes it."""

    class Source(models.TextChoices):
        """ADMIN: made in the admin or imported; no worker announces it."""

        CODE = "code", _("code")
        SETTINGS = "settings", _("settings")
        ADMIN = "admin", _("admin")

    id = UnsignedBigAutoField(primary_key=True)
    name = NameField(_("name"), max_length=SCHEDULE_CHARS)
    source = NameField(_("source"), max_length=16, choices=Source.choices)
    # What is in force: terms and template of schedules.definitions, and its digest.
    definition = PayloadField(_("definition"))
    digest = NameField(_("digest"), max_length=DIGEST_CHARS)
    task = NameField(_("task"), max_length=255)
    # Changed by hand: what workers announce is noted below, and is not in force until the change is taken back.
    edited_by = NameField(_("edited by"), max_length=150, default="", db_default="")
    edited = models.BooleanField(_("edited"), default=False, db_default=False)
    announced_digest = NameField(_("announced digest"), max_length=DIGEST_CHARS, default="", db_default="")
    enabled = models.BooleanField(_("enabled"), default=True, db_default=True)
    reason = NameField(_("reason"), max_length=200, default="", db_default="")
    # All ticks up to then are decided; the next one; NULL: there is none, or it does not fire.
    decided_until = UtcDateTimeField(_("decided until"))
    next_at = UtcDateTimeField(_("next tick"), null=True)
    # When a worker is to look at it: the next tick, or sooner while ticks wait for the end of a job.
    look_at = UtcDateTimeField(_("next look at"), null=True)
    # The oldest tick that waits for the end of a job.
    waiting_at = UtcDateTimeField(_("waiting since"), null=True)
    last_tick_at = UtcDateTimeField(_("last tick"), null=True)
    last_job_id = JobIdField(_("last job"), null=True)
    # A schedule of code or settings that is no longer announced.
    announced_at = UtcDateTimeField(_("last announced at"), db_default=UtcNow())
    retired_at = UtcDateTimeField(_("retired at"), null=True)
    created_at = UtcDateTimeField(_("created at"), db_default=UtcNow())
    updated_at = UtcDateTimeField(_("updated at"), db_default=UtcNow())

    class Meta:
        db_table = "job_schedule"
        verbose_name = _("schedule")
        verbose_name_plural = _("schedules")
        default_permissions = ("add", "change", "view")
        permissions = [("run_schedule", "Can run, enable and disable schedules")]
        constraints = [models.UniqueConstraint(fields=["name"], name="uq_schedule_name")]
        indexes = [
            # schedules.firing: those that are due
            models.Index(fields=["look_at"], name="ix_schedule_look"),
            # maintenance.cleaner: those that were retired long ago
            models.Index(fields=["retired_at"], name="ix_schedule_retired"),
        ]

    def __str__(self) -> str:
        return str(self.name)


class ScheduleVersion(models.Model):
    """What the code or the settings of a worker say about a schedule. During a deploy there are two of them."""

    id = UnsignedBigAutoField(primary_key=True)
    name = NameField(_("name"), max_length=SCHEDULE_CHARS)
    digest = NameField(_("digest"), max_length=DIGEST_CHARS)
    source = NameField(_("source"), max_length=16)
    definition = PayloadField(_("definition"))
    # Since when workers have announced it without a longer pause. The newest one is in force.
    seen_at = UtcDateTimeField(_("first seen at"), db_default=UtcNow())
    announced_at = UtcDateTimeField(_("last announced at"), db_default=UtcNow())

    class Meta:
        db_table = "job_schedule_version"
        verbose_name = _("version of a schedule")
        verbose_name_plural = _("versions of schedules")
        default_permissions = ("view",)
        constraints = [models.UniqueConstraint(fields=["name", "digest"], name="uq_schedule_version")]
        indexes = [
            # schedules.versions: those that live workers have; maintenance.cleaner: the others
            models.Index(fields=["announced_at"], name="ix_schedule_version_age"),
        ]

    def __str__(self) -> str:
        return str(self.name)


class ScheduleTick(models.Model):
    """A tick that is decided. Its row is written in the transaction that adds the job, so no tick fires twice."""

    class Outcome(models.TextChoices):
        """WAITING: its job is added when that of the tick before has ended."""

        FIRED = "fired", _("fired")
        MISSED = "missed", _("missed")
        SKIPPED = "skipped", _("skipped")
        REFUSED = "refused", _("refused")
        WAITING = "waiting", _("waiting")

    id = UnsignedBigAutoField(primary_key=True)
    schedule_id = models.BigIntegerField(_("schedule"))
    tick_at = UtcDateTimeField(_("tick"))
    outcome = NameField(_("outcome"), max_length=16, choices=Outcome.choices)
    # Of MISSED: how many ticks the row stands for, this one and those before it.
    ticks = models.IntegerField(_("ticks"), default=1, db_default=1)
    job_id = JobIdField(_("job"), null=True)
    created_at = UtcDateTimeField(_("created at"), db_default=UtcNow())

    class Meta:
        db_table = "job_schedule_tick"
        verbose_name = _("tick")
        verbose_name_plural = _("ticks")
        default_permissions = ("view",)
        constraints = [models.UniqueConstraint(fields=["schedule_id", "tick_at"], name="uq_schedule_tick")]
        indexes = [
            # maintenance.cleaner
            models.Index(fields=["created_at"], name="ix_schedule_tick_age"),
        ]

    def __str__(self) -> str:
        return f"{self.tick_at}"
